"""Every table, so that importing this module registers them all with SQLModel's metadata."""

from __future__ import annotations

from store.accounts import ApiKey, Membership, Organization, User
from store.agents import AgentRevision
from store.budgets import OrganizationBudget, PlatformStop, UserCredits
from store.datasets import Dataset, DatasetImport, DatasetTask, DatasetVersion, UploadSession
from store.hosts import BoxLease, Host
from store.incidents import Incident
from store.installation import Installation
from store.jobs import Intent, Job, JobEvent, JobGroup
from store.keys import GatewayKey
from store.prices import OperatorPrice
from store.provider_health import ProviderHealth
from store.provider_keys import ProviderKey
from store.spend import GatewayCall
from store.trials import Archive, StreamChunk, TraceEvent, Trial, TrialFile

__all__ = [
    "AgentRevision",
    "ApiKey",
    "Archive",
    "BoxLease",
    "Dataset",
    "DatasetImport",
    "DatasetTask",
    "DatasetVersion",
    "GatewayCall",
    "GatewayKey",
    "Host",
    "Incident",
    "Installation",
    "Intent",
    "Job",
    "JobEvent",
    "JobGroup",
    "Membership",
    "OperatorPrice",
    "Organization",
    "OrganizationBudget",
    "PlatformStop",
    "ProviderHealth",
    "ProviderKey",
    "StreamChunk",
    "TraceEvent",
    "Trial",
    "TrialFile",
    "UploadSession",
    "User",
    "UserCredits",
]
