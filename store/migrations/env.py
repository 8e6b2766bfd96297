"""Alembic's entry: runs on the connection that `store.migrations.upgrade` hands over."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlmodel import SQLModel
from sqlmodel.sql.sqltypes import AutoString

import store.tables  # noqa: F401  (registers every table)


def _render(kind: str, item: Any, _: Any) -> str | Literal[False]:
    """SQLModel's own string type is written as plain `sa.String()`: migrations depend on Alembic alone."""
    return "sa.String()" if kind == "type" and isinstance(item, AutoString) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_item=_render,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
