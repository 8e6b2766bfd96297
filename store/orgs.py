"""Organizations as a caller sees them: which one owns what is created, and the wire bodies."""

from __future__ import annotations

from typing import Any

from domain.errors import ApiError
from domain.money import usd_of_nanos
from domain.trials import wire_time
from store.accounts import Caller
from store.budgets import month_spend
from store.database import Database

_MINE = """
SELECT o.id, o.slug, o.display_name, o.is_personal, o.created_at, m.role,
       (SELECT count(*) FROM memberships WHERE org_id = o.id) AS member_count
FROM organizations o JOIN memberships m ON m.org_id = o.id AND m.user_id = $1
ORDER BY o.is_personal DESC, o.slug
"""
_MEMBERS = """
SELECT m.user_id, u.email, m.role, m.joined_at FROM memberships m JOIN users u ON u.id = m.user_id
WHERE m.org_id = $1 ORDER BY m.role DESC, m.joined_at, m.user_id
"""
_USAGE = """
SELECT coalesce(sum((by_status ->> 'RUNNING')::int + (by_status ->> 'SCORING')::int), 0) AS in_flight_trials,
       coalesce(sum((by_status ->> 'QUEUED')::int), 0) AS queued_trials,
       (SELECT count(*) FROM dataset_imports WHERE org_id = $1 AND status IN ('QUEUED', 'RUNNING')) AS imports
FROM jobs WHERE org_id = $1 AND finished_at IS NULL
"""
# No count is limited in this release beyond what hosts admit; 0 would mean paused.
_UNLIMITED = 1_000_000


async def owning_org(connection: Any, caller: Caller, org: str | None) -> str:
    """The id of the organization that owns what a caller creates: the one named, else the default.

    Raises `org_not_found` for one that does not exist or that the caller is no member of.
    """
    if org is None:
        return caller.default_org_id
    found = await connection.fetchval(
        "SELECT id FROM organizations WHERE (id = $1 OR slug = $1) AND id = ANY($2)", org, caller.org_ids
    )
    if found is None:
        raise ApiError("org_not_found", f"org: no organization {org}.", param="org")
    return str(found)


async def auth_status(db: Database, caller: Caller) -> dict[str, Any]:
    """AuthStatus: the caller and the key they came with."""
    pool = await db.pool()
    key = await pool.fetchrow(
        "SELECT id, label, created_at, last_used_at FROM api_keys WHERE id = $1", caller.key_id
    )
    return {
        "user_id": caller.user_id,
        "email": caller.email,
        "key": {
            "id": key["id"],
            "label": key["label"],
            "created_at": wire_time(key["created_at"]),
            "last_used_at": wire_time(key["last_used_at"]),
        },
    }


async def list_orgs(db: Database, caller: Caller) -> list[dict[str, Any]]:
    """Organization bodies, the personal one first."""
    pool = await db.pool()
    return [_wire(row) for row in await pool.fetch(_MINE, caller.user_id)]


async def get_org(db: Database, caller: Caller, org: str) -> dict[str, Any]:
    """OrganizationDetail; raises `org_not_found`."""
    pool = await db.pool()
    rows = await pool.fetch(_MINE, caller.user_id)
    row = next((row for row in rows if org in (row["id"], row["slug"])), None)
    if row is None:
        raise ApiError("org_not_found", f"No organization {org}.")
    usage = await pool.fetchrow(_USAGE, row["id"])
    limit_nanos, spent_nanos, read_at = await month_spend(db, row["id"])
    return {
        **_wire(row),
        "member_count": row["member_count"],
        "quota": {
            "max_concurrent_trials": _UNLIMITED,
            "max_queued_trials": _UNLIMITED,
            "max_concurrent_imports": _UNLIMITED,
            "max_concurrent_analyses": 0,
            "max_concurrent_sessions": 0,
            "monthly_budget_usd": usd_of_nanos(limit_nanos),
            "max_concurrent_sandboxes_e2b": 0,
            "max_concurrent_sandboxes_daytona": 0,
            "max_concurrent_sandboxes_modal": 0,
        },
        "usage": {
            "in_flight_trials": usage["in_flight_trials"],
            "queued_trials": usage["queued_trials"],
            "in_flight_imports": usage["imports"],
            "in_flight_analyses": 0,
            "active_sessions": 0,
            "month_spend_usd": usd_of_nanos(spent_nanos),
            "month_spend_as_of": wire_time(read_at),
        },
    }


async def list_members(db: Database, caller: Caller, org: str) -> list[dict[str, Any]]:
    """OrgMember bodies, owners first; raises `org_not_found`."""
    detail = await get_org(db, caller, org)
    pool = await db.pool()
    return [
        {
            "user_id": row["user_id"],
            "email": row["email"],
            "role": row["role"],
            "joined_at": wire_time(row["joined_at"]),
        }
        for row in await pool.fetch(_MEMBERS, detail["org_id"])
    ]


def _wire(row: Any) -> dict[str, Any]:
    return {
        "org_id": row["id"],
        "slug": row["slug"],
        "display_name": row["display_name"],
        "personal": row["is_personal"],
        "role": row["role"],
        "created_at": wire_time(row["created_at"]),
    }
