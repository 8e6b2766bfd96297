"""What the command line does in the database itself: schema, owner's key, users and keys.

Part of the composition root: it may import the store, lazily.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cli.errors import CliError
from cli.stack.home import Home, write_private

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from store.accounts import ApiKey, User
    from store.database import Database

CANCEL_POLL_SEC = 0.5
# Longer than a trial takes to end: its processes swept, what it left kept.
CANCEL_PATIENCE_SEC = 120.0
# Where a process that would end them is away; the supervisor may be starting it again.
CANCEL_PATIENCE_WHILE_AWAY_SEC = 20.0
OWNER_KEY_LABEL = "evolve up"


@dataclass(frozen=True)
class KeyRow:
    """A key as it is listed: never its secret."""

    id: str
    user: str
    label: str | None
    is_read_only: bool
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True)
class ProviderRow:
    """How a provider's breaker stands. `is_held`: an operator opened it, and it is not probed."""

    provider: str
    state: str
    since: datetime | None
    is_held: bool
    reason: str | None


@dataclass(frozen=True)
class NewKey:
    """`secret` cannot be read again."""

    id: str
    user: str
    secret: str


def database_url() -> str:
    """`EVOLVE_DATABASE_URL`, or the embedded Postgres of this home. Raises `CliError` when there is none."""
    url = os.environ.get("EVOLVE_DATABASE_URL")
    if url:
        return url
    home = Home.from_environment()
    if not home.pg_data.exists():
        raise CliError(
            f"no database: {home.path} has none and EVOLVE_DATABASE_URL is not set; `evolve up` makes one",
            code="no_database",
        )
    return home.database_url


async def migrate() -> None:
    """Bring the database to this release's schema."""
    from store import migrations

    with naming_the_database():
        await migrations.upgrade(database_url())


async def ensure_credentials(home: Home, dashboard_url: str) -> None:
    """credentials.json with a key that works; the key in it is kept while it does."""
    from store.accounts import authenticate, ensure_owner, mint_key
    from store.database import Database

    db = Database(database_url())
    try:
        secret = _stored_key(home)
        if secret is None or await authenticate(db, secret) is None:
            async with db.session() as session:
                owner = await ensure_owner(session)
                _, secret = await mint_key(session, owner.id, label=OWNER_KEY_LABEL)
        document = {"api_key": secret, "dashboard_url": dashboard_url}
        write_private(home.credentials, json.dumps(document, indent=2) + "\n")
    finally:
        await db.close()


def _stored_key(home: Home) -> str | None:
    try:
        return str(json.loads(home.credentials.read_text(encoding="utf-8"))["api_key"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


async def create_key(email: str | None, *, label: str | None, is_read_only: bool) -> NewKey:
    """A new key of a user, of the owner when `email` is None."""
    from store.accounts import mint_key

    async with _session() as session:
        user = await _user(session, email)
        key, secret = await mint_key(session, user.id, label=label, is_read_only=is_read_only)
        return NewKey(id=key.id, user=user.email or user.id, secret=secret)


async def list_keys(email: str | None) -> list[KeyRow]:
    """Keys of a user, or of all."""
    from sqlmodel import select

    from store.accounts import User
    from store.accounts import list_keys as keys_of

    async with _session() as session:
        user_id = (await _user(session, email)).id if email else None
        keys = await keys_of(session, user_id)
        users = {user.id: user for user in (await session.execute(select(User))).scalars()}
        return [_row(key, users.get(key.user_id)) for key in keys]


async def revoke_key(key_id: str) -> None:
    """Revoke for good. Raises `CliError` when there is no such key."""
    from store.accounts import revoke_key as revoke

    async with _session() as session:
        if not await revoke(session, key_id):
            raise CliError(f"no API key has the id {key_id}", code="not_found")


async def add_user(email: str, slug: str) -> NewKey:
    """A user with a personal organization and a first key. Raises `CliError` when a name is taken."""
    from sqlmodel import select

    from store.accounts import Organization, create_user, find_user, mint_key

    async with _session() as session:
        if await find_user(session, email) is not None:
            raise CliError(f"there is a user {email} already", code="conflict")
        taken = await session.execute(select(Organization).where(Organization.slug == slug))
        if taken.scalar_one_or_none() is not None:
            raise CliError(f"there is an organization {slug} already: choose another --slug", code="conflict")
        user = await create_user(session, email, slug=slug)
        key, secret = await mint_key(session, user.id)
        return NewKey(id=key.id, user=email, secret=secret)


async def cancel_all_jobs(told: Callable[[str], None], patience_sec: float = CANCEL_PATIENCE_SEC) -> None:
    """Ask every job to end, whoever's it is, and wait until all have; a job that ends tells its trials.

    Raises `CliError` when no job or trial has ended for `patience_sec`: the wish stays written.
    """
    from store.database import Database

    db = Database(database_url())
    try:
        with naming_the_database():
            await _request_cancels(db)
            said, moved_at = (0, 0), time.monotonic()
            while (unfinished := await _count_unfinished(db))[0]:
                if unfinished[0] != said[0]:
                    told(f"waiting for the end of {_cancelled_jobs(unfinished[0])}")
                if unfinished != said:
                    said, moved_at = unfinished, time.monotonic()
                elif time.monotonic() - moved_at > patience_sec:
                    raise _not_ended(unfinished[0], patience_sec)
                await asyncio.sleep(CANCEL_POLL_SEC)
    finally:
        await db.close()


async def list_providers() -> list[ProviderRow]:
    """Every provider whose boxes ever failed to be made, and how its breaker stands."""
    from store.database import Database
    from store.provider_health import list_health

    db = Database(database_url())
    try:
        with naming_the_database():
            rows = await list_health(db)
    finally:
        await db.close()
    return [
        ProviderRow(row["provider"], row["state"], row["since"], row["is_held"], row["reason"])
        for row in rows
    ]


async def order_provider(provider: str, order: str) -> None:
    """Ask a provider's breaker to `open` or `close`; the API's outbox delivers it."""
    from store.database import Database
    from store.intents import IntentKind, add_intent

    db = Database(database_url())
    try:
        with naming_the_database():
            async with db.transaction() as connection:
                await add_intent(connection, IntentKind.ORDER_BREAKER, provider, {"order": order})
    finally:
        await db.close()


async def _request_cancels(db: Database) -> None:
    from domain.vocabulary import JobStatus
    from store.intents import IntentKind, add_intent
    from store.record import cancel_job

    live = [JobStatus.QUEUED.value, JobStatus.RUNNING.value]
    async with db.transaction() as connection:
        jobs = await connection.fetch("SELECT id FROM jobs WHERE status = ANY($1) FOR UPDATE", live)
        for job in jobs:
            await cancel_job(connection, job["id"])
            await add_intent(connection, IntentKind.CANCEL_JOB, job["id"])


async def _count_unfinished(db: Database) -> tuple[int, int]:
    """Jobs, and trials of theirs, that have not ended."""
    from domain.vocabulary import JOB_TERMINAL, TRIAL_TERMINAL

    query = """
        SELECT count(DISTINCT jobs.id), count(trials.id)
        FROM jobs LEFT JOIN trials ON trials.job_id = jobs.id AND trials.status <> ALL($2)
        WHERE jobs.status <> ALL($1)
    """
    ended = [[status.value for status in statuses] for statuses in (JOB_TERMINAL, TRIAL_TERMINAL)]
    async with db.transaction() as connection:
        jobs, trials = await connection.fetchrow(query, *ended)
        return int(jobs), int(trials)


def _cancelled_jobs(count: int) -> str:
    return f"{count} cancelled job{'s' if count > 1 else ''}"


def _not_ended(count: int, patience_sec: float) -> CliError:
    return CliError(
        f"{_cancelled_jobs(count)} not ended, and nothing moved for {patience_sec:.0f} s: `evolve status` "
        "says which process is away; `evolve down` stops without waiting, and the next `evolve up` ends them",
        code="jobs_not_ended",
    )


def _row(key: ApiKey, user: User | None) -> KeyRow:
    return KeyRow(
        id=key.id,
        user=(user.email if user else None) or key.user_id,
        label=key.label,
        is_read_only=key.is_read_only,
        created_at=key.created_at,
        last_used_at=key.last_used_at,
        revoked_at=key.revoked_at,
    )


async def _user(session: AsyncSession, email: str | None) -> User:
    from store.accounts import ensure_owner, find_user

    if email is None:
        return await ensure_owner(session)
    user = await find_user(session, email)
    if user is None:
        raise CliError(
            f"no user has the address {email}: `evolve admin user add` makes one", code="not_found"
        )
    return user


@asynccontextmanager
async def _session() -> AsyncGenerator[AsyncSession]:
    from store.database import Database

    db = Database(database_url())
    try:
        with naming_the_database():
            async with db.session() as session:
                yield session
    finally:
        await db.close()


@contextmanager
def naming_the_database() -> Generator[None]:
    """A server that does not answer becomes one line that says what to do."""
    try:
        yield
    except OSError as error:
        raise CliError(
            f"the database does not answer ({error.strerror or error}): `evolve up` starts the embedded one",
            code="database_unreachable",
        ) from error
