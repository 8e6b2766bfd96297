"""What Temporal alone asks for a trial's shape on this machine: the floor under the platform's own cost.

A job of the same form as ours (a window of children that outlive it, a signal each) whose trials have the
same activities, which do nothing: one local and four normal ones.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import ParentClosePolicy

from tests.bench.cpu import tree_cpu_ms

NORMAL_ACTIVITIES = 4
ONE_TRY = timedelta(hours=4)
# About what ours carry.
PAYLOAD = "x" * 300


@activity.defn
async def do_nothing(payload: str) -> str:
    return payload


@workflow.defn
class BareTrial:
    @workflow.run
    async def run(self, job: str) -> str:
        await workflow.execute_local_activity(do_nothing, PAYLOAD, start_to_close_timeout=ONE_TRY)
        for _ in range(NORMAL_ACTIVITIES):
            await workflow.execute_activity(do_nothing, PAYLOAD, start_to_close_timeout=ONE_TRY)
        await workflow.get_external_workflow_handle(job).signal(BareJob.settled)
        return PAYLOAD


@workflow.defn
class BareJob:
    def __init__(self) -> None:
        self._n_settled = 0

    @workflow.signal
    def settled(self) -> None:
        self._n_settled += 1

    @workflow.run
    async def run(self, trials: int, width: int) -> int:
        job = workflow.info().workflow_id
        for number in range(trials):
            at_least = number - width + 1
            await workflow.wait_condition(lambda wanted=at_least: self._n_settled >= wanted)
            await workflow.start_child_workflow(
                BareTrial.run, job, id=f"{job}/{number}", parent_close_policy=ParentClosePolicy.ABANDON
            )
        await workflow.wait_condition(lambda: self._n_settled >= trials)
        return self._n_settled


async def bare_cpu_ms(address: str, namespace: str, server_pid: int, trials: int, width: int) -> float:
    """CPU-ms a trial of the server at `address` and of a worker in this process."""
    client = await Client.connect(address, namespace=namespace)
    queue = f"bare-{uuid4().hex[:8]}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[BareJob, BareTrial],
        activities=[do_nothing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        server, own = tree_cpu_ms(server_pid), time.process_time()
        await client.execute_workflow(BareJob.run, args=[trials, width], id=queue, task_queue=queue)
        spent = tree_cpu_ms(server_pid) - server + (time.process_time() - own) * 1000
    return spent / trials


def measure(address: str, namespace: str, server_pid: int, trials: int, width: int) -> float:
    """See `bare_cpu_ms`."""
    return asyncio.run(bare_cpu_ms(address, namespace, server_pid, trials, width))
