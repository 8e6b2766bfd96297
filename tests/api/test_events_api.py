"""The job stream of contract §1.16."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api import sse
from store import record
from store.capacity_waits import note_wait
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, run_job, settle_trial, start_trial

BODY = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}


async def new_job(api: Api) -> str:
    await add_dataset(api.db, api.caller)
    return (await api.http.post("/api/jobs", json=BODY)).json()["id"]


async def frames(api: Api, job_id: str, **headers: str) -> AsyncIterator[dict[str, str]]:
    """Events of a stream until the server ends it; comments come as `{"comment": …}`."""
    async with api.http.stream("GET", f"/api/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        frame: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                yield {"comment": line[1:]}
            elif line:
                key, _, value = line.partition(": ")
                frame[key] = value
            elif frame:
                yield frame
                frame = {}


async def events(api: Api, job_id: str, **headers: str) -> list[dict[str, str]]:
    return [frame async for frame in frames(api, job_id, **headers) if "comment" not in frame]


async def test_a_finished_job_replays_to_its_terminal_event(api: Api):
    job_id = await new_job(api)
    await run_job(api.db, job_id, [1.0, None, 0.0])
    replay = await events(api, job_id)
    assert [frame["id"] for frame in replay] == [str(n) for n in range(1, len(replay) + 1)]
    assert replay[0]["event"] == "job.created"
    assert replay[-1]["event"] == "job.completed"
    assert replay[-1]["data"] == f'{{"job_id":"{job_id}"}}'


async def test_a_resume_gives_what_comes_strictly_after(api: Api):
    job_id = await new_job(api)
    await run_job(api.db, job_id, [1.0, 1.0, 1.0])
    replay = await events(api, job_id)
    rest = await events(api, job_id, **{"Last-Event-ID": replay[2]["id"]})
    assert rest == replay[3:]


async def test_a_resume_after_the_terminal_event_ends_at_once(api: Api):
    job_id = await new_job(api)
    await run_job(api.db, job_id, [1.0, 1.0, 1.0])
    last = (await events(api, job_id))[-1]["id"]
    assert await asyncio.wait_for(events(api, job_id, **{"Last-Event-ID": last}), 5) == []


async def test_an_event_arrives_soon_after_its_commit(api: Api):
    job_id = await new_job(api)
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async for frame in frames(api, job_id):
            if "event" in frame:
                seen.put_nowait(frame["event"])

    following = asyncio.create_task(follow())
    assert await asyncio.wait_for(seen.get(), 5) == "job.created"
    await record.start_job(api.db, job_id)
    assert await asyncio.wait_for(seen.get(), 5) == "job.running"
    following.cancel()


async def test_silence_is_filled_with_comments(api: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "HEARTBEAT_SEC", 0.05)
    job_id = await new_job(api)
    comments = 0
    async for frame in frames(api, job_id):
        comments += "comment" in frame
        if comments == 4:
            break
    assert sse.HEARTBEAT_SEC < 15


async def test_the_published_client_goes_on_after_the_server_was_cut(api: Api):
    job_id = await new_job(api)
    await record.start_job(api.db, job_id)
    pool = await api.db.pool()
    rows = await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job_id)
    seen: list[Any] = []

    async def follow() -> None:
        async for event in api.published().jobs.watch(job_id):
            seen.append(event)
            if event.type == "trial.settled":
                await pool.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
                )

    following = asyncio.create_task(follow())
    for row in rows:
        await start_trial(api.db, row)
        await settle_trial(api.db, row, 1.0)
    await record.finish_job(api.db, job_id)
    await asyncio.wait_for(following, 30)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type == "job.completed"


async def test_a_wait_is_told_once_and_the_published_client_passes_it_on(api: Api):
    job_id = await new_job(api)
    await record.start_job(api.db, job_id)
    pool = await api.db.pool()
    rows = await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job_id)
    for waiting_for in ("room", "room", "more room"):
        async with api.db.transaction() as connection:
            row = await connection.fetchrow("SELECT * FROM trials WHERE id = $1 FOR UPDATE", rows[0]["id"])
            await note_wait(connection, row, waiting_for)
    for row in rows:
        await settle_trial(api.db, row, 1.0)
    await record.finish_job(api.db, job_id)
    seen = [event async for event in api.published().jobs.watch(job_id)]
    [wait] = [event for event in seen if str(event.type) == "trial.waiting"]
    assert wait.data == {
        "trial_id": rows[0]["id"],
        "task_name": rows[0]["task_name"],
        "waiting_for": "room",
        "since": wait.data["since"],
    }
    assert seen[-1].type == "job.completed"


@pytest.mark.parametrize("position", ["x", "-1", "1.5", "99999999999999999999"])
async def test_an_unusable_resume_position_is_refused(api: Api, position: str):
    job_id = await new_job(api)
    answer = await api.http.get(f"/api/jobs/{job_id}/events", headers={"Last-Event-ID": position})
    assert answer.json()["error"]["code"] == "invalid_after"
