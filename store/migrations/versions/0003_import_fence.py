"""Imports are unpacked behind a fence; a Temporal workflow id may be used again"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column(
        "dataset_imports", sa.Column("unpack_try", sa.Integer(), server_default="0", nullable=False)
    )
    op.drop_constraint("jobs_workflow_id_key", "jobs", type_="unique")
