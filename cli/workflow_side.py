"""The workflows that a worker serves, put together with how they are run: half of the composition root."""

from __future__ import annotations

from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.worker import WorkflowSide
from workflows import names
from workflows.archive import ArchiveWorkflow
from workflows.dataset_import import DatasetImportWorkflow
from workflows.job import JobWorkflow
from workflows.provider import ProviderWorkflow
from workflows.reaper import ReaperWorkflow
from workflows.regrade import RegradeWorkflow
from workflows.trial import TrialWorkflow

# Our models are passed through: re-executing them for each workflow costs ten times its run.
PASSED_THROUGH = (
    "domain",
    "activities.signatures",
    "workflows.failures",
    "workflows.inputs",
    "workflows.names",
    "workflows.options",
    "pydantic",
)


def sandboxed() -> SandboxedWorkflowRunner:
    """What the tests run and replay workflows in: it catches a clock, a random number or I/O in them."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    return SandboxedWorkflowRunner(restrictions=restrictions)


def workflow_side(queue: str = names.QUEUE, runner: WorkflowRunner | None = None) -> WorkflowSide:
    """Every workflow of ours on `queue`.

    Outside of the sandbox unless `runner` says so: importing a workflow's module anew for each run was
    a fifth of a worker's work, and let code that was replaced under a live worker into new workflows.
    """
    return WorkflowSide(
        workflows=[
            JobWorkflow,
            TrialWorkflow,
            RegradeWorkflow,
            DatasetImportWorkflow,
            ArchiveWorkflow,
            ProviderWorkflow,
            ReaperWorkflow,
        ],
        queue=queue,
        data_converter=names.DATA_CONVERTER,
        runner=runner or UnsandboxedWorkflowRunner(),
    )
