"""Datasets, their versions and tasks, imports and resumable uploads: the tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index, text
from sqlmodel import Field

from store.database import Row, json_column, time_column


class Dataset(Row, table=True):
    """A ledger: the first publisher owns a name; `active_version_id` is what the bare name runs."""

    __tablename__ = "datasets"
    id: str = Field(primary_key=True)
    name: str = Field(unique=True)
    org_id: str = Field(index=True)
    owner_user_id: str
    title: str | None = None
    description: str | None = None
    active_version_id: str | None = None
    created_at: datetime = Field(sa_column=time_column())
    updated_at: datetime = Field(sa_column=time_column())


class DatasetVersion(Row, table=True):
    """A record of one published content. Publishing a label again makes a new row and sets
    `replaced_at` on the old one, which jobs that ran it keep naming by id."""

    __tablename__ = "dataset_versions"
    __table_args__ = (
        Index(
            "dataset_versions_current_label",
            "dataset_id",
            "version",
            unique=True,
            postgresql_where=text("replaced_at IS NULL"),
        ),
    )
    id: str = Field(primary_key=True)
    dataset_id: str = Field(foreign_key="datasets.id", ondelete="CASCADE")
    version: str
    state: str
    task_count: int = 0
    n_failed_tasks: int = 0
    manifest: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    source: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    package_key: str | None = None
    package_sha256: str | None = None
    package_bytes: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    created_at: datetime = Field(sa_column=time_column())
    replaced_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class DatasetTask(Row, table=True):
    """A record of one task of a version: parsed (`task`, domain.tasks.Task as JSON), then built.

    `state` is `PENDING`, `READY` or `FAILED`; `digest` is the task content digest of contract 6.7 and
    `image_digest` that of its environment alone; `images` maps provider → {id, handle, base_image_replaced};
    `verdicts` maps provider → TaskProviderVerdict; the task's directory is the blob `package_key`.
    """

    __tablename__ = "dataset_tasks"
    version_id: str = Field(primary_key=True, foreign_key="dataset_versions.id", ondelete="CASCADE")
    task_name: str = Field(primary_key=True)
    ordinal: int
    state: str
    digest: str | None = None
    image_digest: str | None = None
    task: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    verdicts: dict[str, Any] = Field(sa_column=json_column())
    notes: list[dict[str, Any]] = Field(sa_column=json_column())
    images: dict[str, Any] = Field(sa_column=json_column())
    failure: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    agent_timeout_sec: float | None = None
    verifier_timeout_sec: float | None = None
    package_key: str | None = None
    package_sha256: str | None = None


class DatasetImport(Row, table=True):
    """A record of one publish, as contract 3.4 shows it."""

    __tablename__ = "dataset_imports"
    __table_args__ = (Index("dataset_imports_newest", "owner_user_id", "created_at", "id"),)
    id: str = Field(primary_key=True)
    owner_user_id: str
    org_id: str
    dataset_name: str
    version: str
    version_id: str | None = None
    status: str
    is_receiving: bool = False
    failure: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    warnings: list[dict[str, Any]] = Field(sa_column=json_column())
    progress: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    task_count: int | None = None
    archive_key: str | None = None
    archive_sha256: str | None = None
    unpack_try: int = Field(default=0, sa_column_kwargs={"server_default": "0"})
    created_at: datetime = Field(sa_column=time_column())
    updated_at: datetime = Field(sa_column=time_column())


class UploadSession(Row, table=True):
    """A ledger of one resumable upload (contract 1.15). Chunks are blobs named by their offset."""

    __tablename__ = "upload_sessions"
    id: str = Field(primary_key=True)
    owner_user_id: str
    kind: str
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    sha256: str
    offset_bytes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    fields: dict[str, Any] = Field(sa_column=json_column())
    import_id: str | None = None
    state: str = "open"
    created_at: datetime = Field(sa_column=time_column())
    updated_at: datetime = Field(sa_column=time_column())
