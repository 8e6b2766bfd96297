"""Registered agents: whose they are, their revisions, and what a job pins of them (contract §2.4, §6.10)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Index, text
from sqlmodel import Field

from domain.agents import MAX_PER_USER, AgentSource, RegisteredAgent, Registration
from domain.errors import ApiError
from domain.vocabulary import JobListScope
from store.accounts import Caller
from store.database import Database, Row, json_column, now, time_column
from store.orgs import owning_org
from store.pages import PageRequest, page

LIST_CURSOR = (datetime, str)


class AgentRevision(Row, table=True):
    """An intent: one registration of an agent, never changed. An edit makes a new row and sets `replaced_at`
    on the old one; the current row of a name has none. `created_at` is the first revision's."""

    __tablename__ = "agent_revisions"
    __table_args__ = (
        Index(
            "agent_revisions_current_name",
            "org_id",
            "name",
            unique=True,
            postgresql_where=text("replaced_at IS NULL"),
        ),
        Index("agent_revisions_owner", "owner_user_id", "created_at", "id"),
    )
    id: str = Field(primary_key=True)
    name: str
    org_id: str
    owner_user_id: str
    source: str
    run_command: str
    env: dict[str, Any] = Field(sa_column=json_column())
    source_key: str
    source_sha256: str
    source_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    created_at: datetime = Field(sa_column=time_column())
    updated_at: datetime = Field(sa_column=time_column())
    replaced_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


@dataclass(frozen=True)
class StoredSource:
    """The bytes that an agent is built from, already stored as a blob."""

    kind: AgentSource
    blob_key: str
    sha256: str
    size_bytes: int


# Of two agents of one name, in two organizations, the caller's own comes first, then the older one.
_FIND = """
SELECT a.*, o.slug AS org FROM agent_revisions a JOIN organizations o ON o.id = a.org_id
WHERE a.name = $1 AND a.org_id = ANY($2) AND a.replaced_at IS NULL
ORDER BY a.owner_user_id <> $3, a.created_at, a.id LIMIT 1
"""
# Whether an agent may be the caller's own.
_SCOPES: dict[JobListScope, list[bool]] = {"my": [True], "shared": [False], "org": [True, False]}
_LIST = """
SELECT a.*, o.slug AS org FROM agent_revisions a JOIN organizations o ON o.id = a.org_id
WHERE a.replaced_at IS NULL AND a.org_id = ANY($1) AND (a.owner_user_id = $2) = ANY($3)
  AND ($4::timestamptz IS NULL OR (a.created_at, a.id) < ($4, $5))
ORDER BY a.created_at DESC, a.id DESC LIMIT $6
"""
_INSERT = """
INSERT INTO agent_revisions (id, name, org_id, owner_user_id, source, run_command, env, source_key,
                             source_sha256, source_bytes, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
"""


async def check_registration(
    db: Database, caller: Caller, registration: Registration, *, is_new: bool
) -> None:
    """Refuse before a byte of the source is read what the write would refuse after it."""
    async with db.transaction() as connection:
        await _place(connection, caller, registration, is_new=is_new)


async def write_agent(
    db: Database, caller: Caller, registration: Registration, source: StoredSource, *, is_new: bool
) -> tuple[RegisteredAgent, list[str]]:
    """Register the agent, or with `is_new` False replace it where it is there: at no time is it missing.

    Returns it with the blobs that nobody needs any more. Raises `agent_name_taken`, `agent_limit_reached`,
    `org_not_found`, and of an edit `org_forbidden` and, for another organization, `invalid_input`.
    """
    async with db.transaction() as connection:
        # Two registrations of one user at a time: the second counts the first.
        lock = f"agents/{caller.user_id}"
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
        org_id, earlier = await _place(connection, caller, registration, is_new=is_new)
        at = now()
        unneeded = [] if earlier is None else await _replace(connection, earlier, at)
        created_at = at if earlier is None else earlier["created_at"]
        revision_id = str(uuid4())
        await connection.execute(
            _INSERT,
            revision_id,
            registration.name,
            org_id,
            caller.user_id,
            source.kind,
            registration.run_command,
            dict(registration.env),
            source.blob_key,
            source.sha256,
            source.size_bytes,
            created_at,
            at,
        )
        row = await _find(connection, caller, registration.name)
    return _agent(row), unneeded


async def read_agent(db: Database, caller: Caller, name: str) -> RegisteredAgent:
    """The caller's own agent of that name, else one of their organizations'; raises `agent_not_found`."""
    row = await _find(await db.pool(), caller, name)
    if row is None:
        raise _not_found(name)
    return _agent(row)


async def list_agents(
    db: Database, caller: Caller, request: PageRequest, scope: JobListScope
) -> dict[str, Any]:
    """A page of agents, newest first."""
    pool = await db.pool()
    rows = await pool.fetch(
        _LIST,
        list(caller.org_ids),
        caller.user_id,
        _SCOPES[scope],
        *(request.after or (None, None)),
        request.fetch,
    )
    return page(rows, request, lambda row: (row["created_at"], row["id"]), lambda row: _agent(row).wire())


async def delete_agent(db: Database, caller: Caller, name: str) -> list[str]:
    """Take the name away; jobs that pinned a revision keep it. Returns the blobs that nobody needs.

    Raises `agent_not_found`, and `org_forbidden` for an agent of somebody else.
    """
    async with db.transaction() as connection:
        row = await _find(connection, caller, name)
        if row is None:
            raise _not_found(name)
        _require_owner(row, caller)
        return await _replace(connection, row, now())


async def registrations_of(connection: Any, caller: Caller, names: list[str]) -> dict[str, str]:
    """Name → present revision of those names that are registered agents the caller may run.

    The rows stay locked for the transaction, so that a revision is not removed under a job that pins it.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        # An edit that held the row made another: the second look finds that one.
        row = await _locked(connection, caller, name) or await _locked(connection, caller, name)
        if row is not None:
            found[name] = row["id"]
    return found


async def _locked(connection: Any, caller: Caller, name: str) -> Any:
    return await connection.fetchrow(f"{_FIND} FOR SHARE OF a", name, list(caller.org_ids), caller.user_id)


async def read_revision(db: Database, revision_id: str) -> Any:
    """A revision's row, whatever became of its name; None when it was removed."""
    pool = await db.pool()
    return await pool.fetchrow("SELECT * FROM agent_revisions WHERE id = $1", revision_id)


async def _place(
    connection: Any, caller: Caller, registration: Registration, *, is_new: bool
) -> tuple[str, Any]:
    """The organization that owns it, and the current revision that it replaces, None for a new agent."""
    earlier = None if is_new else await _find(connection, caller, registration.name)
    if earlier is not None:
        _require_owner(earlier, caller)
        if registration.org not in (None, earlier["org_id"], earlier["org"]):
            message = f"org: {registration.name} is {earlier['org']}'s, and stays so."
            raise ApiError("invalid_input", message, param="org")
        return str(earlier["org_id"]), earlier
    org_id = await owning_org(connection, caller, registration.org)
    taken = await connection.fetchval(
        "SELECT id FROM agent_revisions WHERE org_id = $1 AND name = $2 AND replaced_at IS NULL",
        org_id,
        registration.name,
    )
    if taken is not None:
        raise ApiError("agent_name_taken", f"name: {registration.name} is registered already.", param="name")
    n_held = await connection.fetchval(
        "SELECT count(*) FROM agent_revisions WHERE owner_user_id = $1 AND replaced_at IS NULL",
        caller.user_id,
    )
    if n_held >= MAX_PER_USER:
        message = f"{MAX_PER_USER} agents are registered; remove one first."
        raise ApiError("agent_limit_reached", message, details={"max_per_user": MAX_PER_USER})
    return org_id, None


async def _replace(connection: Any, row: Any, at: datetime) -> list[str]:
    """Retire a revision. It is removed once no job that still runs has pinned it; returns its blobs then."""
    await connection.execute("UPDATE agent_revisions SET replaced_at = $2 WHERE id = $1", row["id"], at)
    rows = await connection.fetch(
        """
        DELETE FROM agent_revisions a
        WHERE a.org_id = $1 AND a.name = $2 AND a.replaced_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM jobs j WHERE j.finished_at IS NULL
            AND j.plan -> 'arms' @> jsonb_build_array(jsonb_build_object('registration', a.id)))
        RETURNING a.id, a.source_key
        """,
        row["org_id"],
        row["name"],
    )
    return [key for gone in rows for key in (gone["source_key"], built_key(gone["id"]))]


def built_key(revision_id: str) -> str:
    """The blob of what a revision was built to."""
    return f"agents/{revision_id}/prefix.tar"


async def _find(connection: Any, caller: Caller, name: str) -> Any:
    return await connection.fetchrow(_FIND, name, list(caller.org_ids), caller.user_id)


def _require_owner(row: Any, caller: Caller) -> None:
    if row["owner_user_id"] != caller.user_id:
        raise ApiError("org_forbidden", f"{row['name']} is not yours to change.", param="name")


def _not_found(name: str) -> ApiError:
    return ApiError("agent_not_found", f"No agent {name}.", param="name")


def _agent(row: Any) -> RegisteredAgent:
    return RegisteredAgent(
        id=row["id"],
        name=row["name"],
        org=row["org"],
        source=row["source"],
        run_command=row["run_command"],
        env=row["env"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
