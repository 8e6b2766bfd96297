"""What clients of our workflows must agree on: names, ids, queues and the data converter."""

from __future__ import annotations

from temporalio.contrib.pydantic import pydantic_data_converter

from activities import signatures

NAMESPACE = "evolve"
QUEUE = "evolve"

JOB_WORKFLOW = signatures.JOB_WORKFLOW
TRIAL_WORKFLOW = signatures.TRIAL_WORKFLOW
REGRADE_WORKFLOW = "RegradeWorkflow"
DATASET_IMPORT_WORKFLOW = "DatasetImportWorkflow"
ARCHIVE_WORKFLOW = "ArchiveWorkflow"
PROVIDER_WORKFLOW = signatures.PROVIDER_WORKFLOW
REAPER_WORKFLOW = signatures.REAPER_WORKFLOW

# Signals of JobWorkflow.
SIGNAL_CANCEL = signatures.SIGNAL_CANCEL
SIGNAL_STOP_TRIALS = "stop_trials"  # argument: list of trial indexes
SIGNAL_SET_PAUSED = "set_paused"  # arguments: the intent's number, whether the job is paused
SIGNAL_TRIAL_SETTLED = "trial_settled"
QUERY_PROGRESS = "progress"
SEARCH_OUTCOME = "Outcome"

SIGNAL_HOST_LOST = signatures.SIGNAL_HOST_LOST  # of TrialWorkflow and RegradeWorkflow; argument: LostHost

# Of ProviderWorkflow; activities too start and signal it.
SIGNAL_CREATE_ENDED = signatures.SIGNAL_CREATE_ENDED
UPDATE_SET_BREAKER = "set_breaker"  # argument: "open" or "close"
SIGNAL_ORDER_BREAKER = "order_breaker"  # the same, by who does not wait for the answer
QUERY_BREAKER = "breaker"

DATA_CONVERTER = pydantic_data_converter


def job_workflow_id(job_id: str) -> str:
    """`job/<id>`."""
    return f"job/{job_id}"


def trial_workflow_id(trial_id: str) -> str:
    """`trial/<id>`."""
    return f"trial/{trial_id}"


def dataset_import_workflow_id(import_id: str) -> str:
    """`dataset-import/<id>`."""
    return f"dataset-import/{import_id}"


def provider_workflow_id(provider: str) -> str:
    """`provider/<name>`."""
    return f"provider/{provider}"


def archive_workflow_id(kind: str, subject_id: str) -> str:
    """`archive/<job or trial>/<id>`."""
    return f"archive/{kind}/{subject_id}"
