"""Intents reach Temporal at least once, whoever was down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_core import from_json
from temporalio.client import Client, WorkflowExecutionStatus

from api.reconcile import Outbox
from domain.jobs import JobCreate
from domain.requests import parse_request
from store.accept import accept_job
from store.accounts import Caller, authenticate, ensure_owner, mint_key
from store.database import Database
from store.intents import IntentKind, add_intent, count_undelivered
from store.job_verbs import request_cancel, request_pause, request_stop
from tests.api.conditions import until
from tests.api.conftest import unused_port
from tests.api.seeding import add_dataset
from tests.temporal import running_temporal
from workflows import names


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with running_temporal() as address:
        yield address


async def connect(address: str) -> Client:
    return await Client.connect(address, namespace="evolve", data_converter=names.DATA_CONVERTER)


@asynccontextmanager
async def delivering(db: Database, address: str) -> AsyncIterator[Outbox]:
    outbox = Outbox(db, address, "evolve")
    outbox.start()
    yield outbox
    await outbox.close()


async def new_job(db: Database) -> tuple[Caller, str]:
    async with db.session() as session:
        owner = await ensure_owner(session)
        _, key = await mint_key(session, owner.id)
    caller = await authenticate(db, key)
    assert caller is not None
    await add_dataset(db, caller)
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "nop"}]}
    accepted = await accept_job(db, caller, parse_request(JobCreate, body))
    return caller, accepted.job_id


async def all_delivered(db: Database) -> None:
    await until(db, "SELECT NOT EXISTS (SELECT FROM intents WHERE delivered_at IS NULL)")


async def signals_of(client: Client, workflow_id: str) -> list[tuple[str, list[Any]]]:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return [
        (
            event.workflow_execution_signaled_event_attributes.signal_name,
            [from_json(p.data) for p in event.workflow_execution_signaled_event_attributes.input.payloads],
        )
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]


async def test_an_accepted_job_is_started_under_its_own_id(db: Database, temporal: str):
    _, job_id = await new_job(db)
    async with delivering(db, temporal):
        await all_delivered(db)
    found = await (await connect(temporal)).get_workflow_handle(f"job/{job_id}").describe()
    assert (found.workflow_type, found.status) == (names.JOB_WORKFLOW, WorkflowExecutionStatus.RUNNING)


async def test_intents_wait_while_temporal_is_down_and_say_why(db: Database, temporal: str):
    _, job_id = await new_job(db)
    async with delivering(db, f"127.0.0.1:{unused_port()}"):
        await until(db, "SELECT n_tries > 0 AND last_error IS NOT NULL FROM intents")
        assert await count_undelivered(db) == 1
    async with delivering(db, temporal):
        await all_delivered(db)
    await (await connect(temporal)).get_workflow_handle(f"job/{job_id}").describe()


async def test_delivering_again_changes_nothing(db: Database, temporal: str):
    _, job_id = await new_job(db)
    pool = await db.pool()
    client = await connect(temporal)
    async with delivering(db, temporal) as outbox:
        await all_delivered(db)
        first = await client.get_workflow_handle(f"job/{job_id}").describe()
        await client.get_workflow_handle(f"job/{job_id}").terminate()
        await pool.execute("UPDATE intents SET delivered_at = NULL")
        outbox.wake()
        await all_delivered(db)
    again = await client.get_workflow_handle(f"job/{job_id}").describe()
    assert again.run_id == first.run_id


async def test_a_cancel_reaches_a_job_whose_start_was_not_delivered(db: Database, temporal: str):
    caller, job_id = await new_job(db)
    await request_cancel(db, caller, job_id)
    pool = await db.pool()
    await pool.execute("DELETE FROM intents WHERE kind = 'job.start'")
    async with delivering(db, temporal):
        await all_delivered(db)
    client = await connect(temporal)
    assert await signals_of(client, f"job/{job_id}") == [(names.SIGNAL_CANCEL, [])]


async def test_a_pause_and_its_end_are_told_in_numbered_words(db: Database, temporal: str):
    caller, job_id = await new_job(db)
    for is_paused in (True, True, False, True):
        await request_pause(db, caller, job_id, is_paused=is_paused)
    pool = await db.pool()
    rows = await pool.fetch("SELECT id FROM intents WHERE kind = 'job.pause' ORDER BY id")
    numbers = [row["id"] for row in rows]
    async with delivering(db, temporal):
        await all_delivered(db)
    words = list(zip(numbers, (True, False, True), strict=True))
    told = await signals_of(await connect(temporal), f"job/{job_id}")
    assert told == [(names.SIGNAL_SET_PAUSED, list(word)) for word in words]


async def test_a_stop_carries_the_indexes_of_its_trials(db: Database, temporal: str):
    caller, job_id = await new_job(db)
    pool = await db.pool()
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM trials ORDER BY index")]
    await request_stop(db, caller, [ids[2], ids[0]])
    async with delivering(db, temporal):
        await all_delivered(db)
    client = await connect(temporal)
    assert await signals_of(client, f"job/{job_id}") == [(names.SIGNAL_STOP_TRIALS, [[0, 2]])]


async def test_signals_to_what_has_ended_or_was_deleted_are_delivered(db: Database, temporal: str):
    _, job_id = await new_job(db)
    pool = await db.pool()
    await pool.execute("UPDATE jobs SET workflow_id = 'brought-by-a-client'")
    async with db.transaction() as connection:
        await add_intent(connection, IntentKind.CANCEL_JOB, job_id)
        await add_intent(connection, IntentKind.CANCEL_JOB, "deleted")
        await add_intent(connection, IntentKind.START_IMPORT, "import-1")
        await add_intent(connection, IntentKind.BUILD_ARCHIVE, job_id, {"kind": "job"})
    async with delivering(db, temporal):
        await all_delivered(db)
    client = await connect(temporal)
    await client.get_workflow_handle("dataset-import/import-1").describe()
    await client.get_workflow_handle(f"archive/job/{job_id}").describe()
