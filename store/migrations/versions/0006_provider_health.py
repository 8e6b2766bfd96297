"""Whether a provider's boxes are being made, as its breaker says"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "provider_health",
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outage_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_held", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("probe_trial_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("provider"),
    )
