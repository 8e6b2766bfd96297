"""Indexes for what is asked again and again of tables that only grow: taken room, and trials by their end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_index(
        "box_leases_taken",
        "box_leases",
        ["host_id"],
        unique=False,
        postgresql_where=sa.text("state <> 'gone'"),
    )
    op.drop_index("box_leases_of_host", table_name="box_leases")
    op.create_index("trials_ended", "trials", ["finished_at"], unique=False)
