"""Trials and what they leave: the tables. Functions that write them are in `record.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Computed, Index, LargeBinary, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field

from store.database import Row, json_column, time_column


class Trial(Row, table=True):
    """A plan (job, task, arm, attempt) and the record of its newest attempt number.

    `result` holds the wire members of contract 3.8 that phases write (`verifier_result`,
    `exception_info`, `agent_result`, timings …). The fence is (attempt_number, fence_phase, fence_try):
    a write that carries a lower one is refused. `source_trial_id` is the trial of another job that a derived
    one was made of. `rewards` and `exception_type` are Postgres's own copies
    out of `result`, so that a job's lists of trial ids are read without unpacking ten thousand documents.
    """

    __tablename__ = "trials"
    __table_args__ = (
        Index("trials_of_job", "job_id", "index", unique=True),
        Index("trials_of_job_by_status", "job_id", "status", "index"),
        Index("trials_of_job_by_task", "job_id", "source", "task_name"),
        Index("trials_ended", "finished_at"),
    )
    id: str = Field(primary_key=True)
    job_id: str = Field(foreign_key="jobs.id", ondelete="CASCADE")
    index: int
    task_name: str
    source: str
    version_id: str
    arm_index: int
    attempt: int
    source_trial_id: str | None = None
    evals_key: str
    status: str = "QUEUED"
    attempt_number: int = 1
    phase: str | None = None
    fence_phase: int = 0
    fence_try: int = 0
    reward: float | None = None
    result: dict[str, Any] = Field(sa_column=json_column())
    rewards: dict[str, Any] | None = Field(
        default=None, sa_column=Column(JSONB, Computed("result -> 'verifier_result' -> 'rewards'"))
    )
    exception_type: str | None = Field(
        default=None, sa_column=Column(String, Computed("result -> 'exception_info' ->> 'exception_type'"))
    )
    n_retries: int = 0
    retries: list[dict[str, Any]] = Field(sa_column=json_column())
    sandbox_id: str | None = None
    host_id: str | None = None
    stop_requested_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    started_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    finished_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class StreamChunk(Row, table=True):
    """A record: raw output as it was read. The highest end of a stream is where a follower goes on."""

    __tablename__ = "stream_chunks"
    trial_id: str = Field(primary_key=True, foreign_key="trials.id", ondelete="CASCADE")
    attempt_number: int = Field(primary_key=True)
    name: str = Field(primary_key=True)
    offset_bytes: int = Field(sa_column=Column(BigInteger, primary_key=True))
    data: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class TrialFile(Row, table=True):
    """A record: one kept file of a trial, at its path in the trial folder (contract 8.2)."""

    __tablename__ = "trial_files"
    trial_id: str = Field(primary_key=True, foreign_key="trials.id", ondelete="CASCADE")
    attempt_number: int = Field(primary_key=True)
    path: str = Field(primary_key=True)
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    sha256: str
    blob_key: str
    mode: int = 0o644


class TraceEvent(Row, table=True):
    """A record: one parsed event of contract 4.4."""

    __tablename__ = "trace_events"
    trial_id: str = Field(primary_key=True, foreign_key="trials.id", ondelete="CASCADE")
    attempt_number: int = Field(primary_key=True)
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True))
    type: str
    data: dict[str, Any] = Field(sa_column=json_column())


class Archive(Row, table=True):
    """A record: a download built once. `kind`: `job` or `trial`; `state`: `building`, `ready`, `failed`."""

    __tablename__ = "archives"
    kind: str = Field(primary_key=True)
    subject_id: str = Field(primary_key=True)
    state: str
    blob_key: str | None = None
    sha256: str | None = None
    size_bytes: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    failure: str | None = None
    updated_at: datetime = Field(sa_column=time_column())
