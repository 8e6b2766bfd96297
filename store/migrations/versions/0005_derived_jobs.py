"""Derived jobs name their source, and a job may be paused"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("trials", sa.Column("source_trial_id", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("source_job_id", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "jobs_derived",
        "jobs",
        ["source_job_id"],
        unique=False,
        postgresql_where=sa.text("source_job_id IS NOT NULL"),
    )
