"""Jobs, the intents about them, and their materialised statistics: the tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index, text
from sqlmodel import Field

from store.database import Row, json_column, time_column


class Job(Row, table=True):
    """A plan (`plan`: domain.jobs.JobPlan without its trials) and the record of how far it came.

    `by_status` counts trials of every status; `totals` holds the sums of JobStats that a settle adds to.
    `last_seq` is the highest event number: whoever appends locks this row. `source_job_id` names the job that
    a derived one was made of, which may be deleted since. While `paused_at` is set, no trial starts.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("jobs_newest", "owner_user_id", "started_at", "id"),
        Index("jobs_org_newest", "org_id", "started_at", "id"),
        Index(
            "jobs_idempotency",
            "owner_user_id",
            "idempotency_verb",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index("jobs_derived", "source_job_id", postgresql_where=text("source_job_id IS NOT NULL")),
    )
    id: str = Field(primary_key=True)
    owner_user_id: str
    org_id: str
    name: str
    status: str
    plan: dict[str, Any] = Field(sa_column=json_column())
    n_total_trials: int
    by_status: dict[str, Any] = Field(sa_column=json_column())
    totals: dict[str, Any] = Field(sa_column=json_column())
    workflow_id: str
    idempotency_verb: str | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    last_seq: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    started_at: datetime = Field(sa_column=time_column())
    updated_at: datetime = Field(sa_column=time_column())
    source_job_id: str | None = None
    paused_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    cancel_requested_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    finished_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class JobGroup(Row, table=True):
    """A record: the sums behind one entry of `stats.evals` (contract 6.4), kept by the settle.

    `reward_sums` maps reward key → sum; `pass_at_k` is written once, by the settle that completes the group.
    """

    __tablename__ = "job_groups"
    job_id: str = Field(primary_key=True, foreign_key="jobs.id", ondelete="CASCADE")
    evals_key: str = Field(primary_key=True)
    arm_index: int
    source: str
    n_total: int
    n_settled: int = 0
    n_rewarded: int = 0
    n_errors: int = 0
    reward_sum: float = 0.0
    is_binary: bool = True
    pass_at_k: dict[str, Any] = Field(sa_column=json_column())


class Intent(Row, table=True):
    """An intent: written in the request's transaction, delivered to Temporal at least once.

    `kind` is one of `job.start`, `job.cancel`, `job.pause`, `trial.stop`, `import.start`, `archive.build`.
    """

    __tablename__ = "intents"
    __table_args__ = (Index("intents_undelivered", "id", postgresql_where=text("delivered_at IS NULL")),)
    id: int | None = Field(default=None, sa_column=Column(BigInteger, primary_key=True, autoincrement=True))
    kind: str
    subject_id: str
    payload: dict[str, Any] = Field(sa_column=json_column())
    created_at: datetime = Field(sa_column=time_column())
    delivered_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    n_tries: int = 0
    last_error: str | None = None


class JobEvent(Row, table=True):
    """A record: `seq` is gapless per job and in commit order; `key` makes a repeated append a no-op."""

    __tablename__ = "job_events"
    __table_args__ = (Index("job_events_key", "job_id", "key", unique=True),)
    job_id: str = Field(primary_key=True, foreign_key="jobs.id", ondelete="CASCADE")
    seq: int = Field(sa_column=Column(BigInteger, primary_key=True))
    key: str
    type: str
    payload: dict[str, Any] = Field(sa_column=json_column())
    at: datetime = Field(sa_column=time_column())
