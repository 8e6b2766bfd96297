"""Every table, so that importing this module registers them all with SQLModel's metadata."""

from __future__ import annotations

from store.accounts import ApiKey, Membership, Organization, User
from store.datasets import Dataset, DatasetImport, DatasetTask, DatasetVersion, UploadSession
from store.hosts import BoxLease, Host
from store.installation import Installation
from store.jobs import Intent, Job, JobEvent, JobGroup
from store.trials import Archive, StreamChunk, TraceEvent, Trial, TrialFile

__all__ = [
    "ApiKey",
    "Archive",
    "BoxLease",
    "Dataset",
    "DatasetImport",
    "DatasetTask",
    "DatasetVersion",
    "Host",
    "Installation",
    "Intent",
    "Job",
    "JobEvent",
    "JobGroup",
    "Membership",
    "Organization",
    "StreamChunk",
    "TraceEvent",
    "Trial",
    "TrialFile",
    "UploadSession",
    "User",
]
