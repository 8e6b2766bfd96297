"""A trial's rewards and exception type as columns of their own, computed from its result"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column(
        "trials",
        sa.Column("rewards", postgresql.JSONB(), sa.Computed("result -> 'verifier_result' -> 'rewards'")),
    )
    op.add_column(
        "trials",
        sa.Column(
            "exception_type",
            sa.String(),
            sa.Computed("result -> 'exception_info' ->> 'exception_type'"),
        ),
    )
