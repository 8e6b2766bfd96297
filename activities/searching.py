"""Search attributes: what an operator finds jobs and trials by in Temporal's UI.

A server refuses attributes that its namespace does not have, and the task that asked for them would be tried
for ever. So a worker looks once at its start, and workflows write what their activities give them: nothing
where one is missing.
"""

from __future__ import annotations

import structlog
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from domain.arms import AgentArm

log = structlog.get_logger()

JOB_ID, TASK_NAME, AGENT, MODEL, PROVIDER, OUTCOME = (
    "JobId",
    "TaskName",
    "Agent",
    "Model",
    "Provider",
    "Outcome",
)
"""All of type Keyword, as `temporal-dev.yaml` declares them."""
ALL = frozenset((JOB_ID, TASK_NAME, AGENT, MODEL, PROVIDER, OUTCOME))


async def has_search_attributes(client: Client) -> bool:
    """Whether the namespace has every one of them."""
    try:
        request = ListSearchAttributesRequest(namespace=client.namespace)
        found = await client.operator_service.list_search_attributes(request)
    except RPCError as error:
        log.info("search attributes cannot be asked for", error=str(error))
        return False
    missing = ALL - set(found.custom_attributes)
    if missing:
        log.info("workflows are not found by search attributes", missing=sorted(missing))
    return not missing


def of_trial(job_id: str, task_name: str, arm: AgentArm, provider: str) -> dict[str, str]:
    """A trial's; an agent that calls no model has none of it."""
    values = {JOB_ID: job_id, TASK_NAME: task_name, AGENT: arm.name, PROVIDER: provider}
    return values if arm.model_name is None else {**values, MODEL: arm.model_name}
