"""The workflows that a worker serves, put together with how they are run: half of the composition root."""

from __future__ import annotations

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.worker import WorkflowSide
from workflows import names
from workflows.archive import ArchiveWorkflow
from workflows.dataset_import import DatasetImportWorkflow
from workflows.job import JobWorkflow
from workflows.trial import TrialWorkflow

# Our models are passed through: re-executing them for each workflow costs ten times its run.
PASSED_THROUGH = (
    "domain",
    "activities.signatures",
    "workflows.inputs",
    "workflows.names",
    "workflows.options",
    "pydantic",
)


def workflow_side(queue: str = names.QUEUE) -> WorkflowSide:
    """Every workflow of ours, sandboxed, on `queue`."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    return WorkflowSide(
        workflows=[JobWorkflow, TrialWorkflow, DatasetImportWorkflow, ArchiveWorkflow],
        queue=queue,
        data_converter=names.DATA_CONVERTER,
        runner=SandboxedWorkflowRunner(restrictions=restrictions),
    )
