"""Rows while the agent runs, over a real store: nothing doubled, nothing lost, whoever dies meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from activities.traces import lines, live
from activities.traces.gateway import write_gateway_lines
from activities.traces.lines import LineSplitter, LongLine
from activities.traces.live import LiveTrace
from activities.traces.roster import PARSERS
from domain.vocabulary import AttemptPhase
from store import attempt_spend
from store.database import Database
from store.fences import Fence
from store.spend import reserve, settle_call
from store.streams import add_trace_events, append_chunk
from store.traces import GATEWAY_SEQ_BASE, stored_events
from tests.finished_jobs import accept, publish
from tests.store.money_factory import ended, measured, minted, new_call

STREAMS: dict[live.Stream, str] = {"out": "agent/stdout", "err": "agent/stderr"}
CLAUDE = (Path(__file__).parents[1] / "fixtures" / "streams" / "claude.jsonl").read_bytes()
TYPES = [
    "agent_thought_chunk", "agent_message_chunk", "tool_call", "tool_call_update",
    "agent_thought_chunk", "agent_message_chunk", "usage",
]  # fmt: skip


@pytest.fixture
async def fence(db: Database) -> Fence:
    """The agent phase of a trial whose prompt is told."""
    await publish(db, "alpha")
    job_id = await accept(db)
    trial_id = await (await db.pool()).fetchval("SELECT id FROM trials WHERE job_id = $1 LIMIT 1", job_id)
    await add_trace_events(db, trial_id, 1, [(1, "prompt", {"_prompt": {"text": "do it"}})])
    return Fence(job_id, trial_id, 1, AttemptPhase.AGENT, 1)


async def rows(db: Database, fence: Fence) -> list[tuple[int, str, dict[str, Any]]]:
    return [row async for row in stored_events(db, fence.trial_id, fence.attempt_number)]


async def follow(db: Database, fence: Fence, trace: LiveTrace, at: int, data: bytes) -> int:
    """What a follower does with a piece of stdout; returns where it goes on."""
    await append_chunk(db, fence, "agent/stdout", at, data)
    await trace.feed("out", at, data)
    return at + len(data)


def pieces(data: bytes, size: int) -> Sequence[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


async def whole(db: Database, fence: Fence) -> list[tuple[int, str, dict[str, Any]]]:
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    await follow(db, fence, trace, 0, CLAUDE)
    await trace.finish()
    return await rows(db, fence)


async def test_a_row_is_there_when_its_line_is(db: Database, fence: Fence) -> None:
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    at = 0
    seen: list[int] = []
    for line in CLAUDE.splitlines(keepends=True):
        at = await follow(db, fence, trace, at, line)
        seen.append(len(await rows(db, fence)))
    assert seen == [1, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    report = await trace.finish()
    stored = await rows(db, fence)
    assert [seq for seq, _, _ in stored] == list(range(1, 9))
    assert [kind for _, kind, _ in stored] == ["prompt", *TYPES]
    assert (report.final_text, report.has_ended) == ("done", True)


@pytest.mark.parametrize("size", [1_000, 777])
async def test_whoever_follows_on_doubles_and_loses_nothing(db: Database, fence: Fence, size: int) -> None:
    """After every piece the worker dies: once before its rows are written, once after."""
    at = 0
    for n, piece in enumerate(pieces(CLAUDE, size)):
        trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
        await append_chunk(db, fence, "agent/stdout", at, piece)
        if n % 2:
            await trace.feed("out", at, piece)
        at += len(piece)
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    assert (await trace.finish()).final_text == "done"
    stored = await rows(db, fence)
    assert [seq for seq, _, _ in stored] == list(range(1, 9))
    assert [kind for _, kind, _ in stored] == ["prompt", *TYPES]


async def test_rows_that_the_store_lost_are_written_again_at_the_end(db: Database, fence: Fence) -> None:
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    await follow(db, fence, trace, 0, CLAUDE)
    before = await rows(db, fence)
    pool = await db.pool()
    await pool.execute("DELETE FROM trace_events WHERE seq IN (3, 4)")
    assert (await trace.finish()).final_text == "done"
    assert await rows(db, fence) == before


async def test_rows_of_another_parser_are_repaired(db: Database, fence: Fence) -> None:
    """A worker of another release read the first part otherwise."""
    stale: list[tuple[int, str, dict[str, Any]]] = [(2, "plan", {"old": 1}), (40, "plan", {"old": 2})]
    await add_trace_events(db, fence.trial_id, 1, stale)
    assert [(seq, kind) for seq, kind, _ in await whole(db, fence)] == list(
        enumerate(["prompt", *TYPES], start=1)
    )


async def test_a_piece_fed_again_after_an_error_of_the_store(
    db: Database, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)

    async def away(*_: Any) -> None:
        raise asyncpg.CannotConnectNowError("starting up")

    with monkeypatch.context() as patch:
        patch.setattr(live, "write_events", away)
        with pytest.raises(asyncpg.CannotConnectNowError):
            await follow(db, fence, trace, 0, CLAUDE)
    await trace.feed("out", 0, CLAUDE)
    await trace.finish()
    assert len(await rows(db, fence)) == 8


async def test_a_worker_that_wakes_late_writes_nothing(db: Database, fence: Fence) -> None:
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    await (await db.pool()).execute("UPDATE trials SET fence_phase = 3, fence_try = 2")
    await trace.feed("out", 0, CLAUDE)
    assert len(await rows(db, fence)) == 1


async def test_output_that_is_missing_is_told(db: Database, fence: Fence) -> None:
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    await trace.feed("out", 100, CLAUDE)
    loss = (await rows(db, fence))[1]
    assert loss == (2, "trace_loss", {"reason": "output that was not stored", "bytes": 100})


async def test_a_line_without_end_is_dropped_and_the_rest_is_read(
    db: Database, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4_000)
    trace = await LiveTrace.open(db, fence, PARSERS["kimi"], STREAMS)
    data = (
        b'{"role": "assistant", "content": "'
        + b"x" * 9_000
        + b'"}\n{"role":"assistant","content":"done"}\n{"ro'
    )
    at = 0
    for piece in pieces(data, 1_000):
        at = await follow(db, fence, trace, at, piece)
    assert (await trace.finish()).final_text == "done"
    stored = await rows(db, fence)
    assert [kind for _, kind, _ in stored] == ["prompt", "trace_loss", "agent_message_chunk", "trace_loss"]
    assert stored[1][2] == {"reason": "a line that was too long", "bytes": 9_036}
    assert stored[3][2] == {"reason": "a line that is not JSON", "bytes": 4}


async def test_lines_without_end_make_a_trace_of_bounded_length(
    db: Database, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_EVENTS", 3)
    trace = await LiveTrace.open(db, fence, PARSERS["claude"], STREAMS)
    await follow(db, fence, trace, 0, b"{\n" * 2_000 + CLAUDE)
    assert (await trace.finish()).final_text == "done"
    stored = await rows(db, fence)
    assert [kind for _, kind, _ in stored] == ["prompt", *["trace_loss"] * 4]
    assert stored[-1][2] == {"reason": "events after the first 3", "events": 2_004}


async def test_stderr_is_read_for_what_only_it_tells(db: Database, fence: Fence) -> None:
    trace = await LiveTrace.open(db, fence, PARSERS["kimi"], STREAMS)
    said = b"error: failed to run prompt: provider.auth_error: 401 no such key\n"
    await append_chunk(db, fence, "agent/stderr", 0, said)
    trace = await LiveTrace.open(db, fence, PARSERS["kimi"], STREAMS)
    report = await trace.finish()
    assert report.error is not None
    assert (report.error.kind, report.error.http_status) == ("auth", 401)
    assert [kind for _, kind, _ in await rows(db, fence)] == ["prompt", "error"]


def test_lines_are_the_same_however_they_come() -> None:
    data = b"one\n\ntwo\r\nthree"
    for size in range(1, len(data) + 1):
        splitter = LineSplitter()
        found: list[bytes | LongLine] = []
        for piece in pieces(data, size):
            found.extend(splitter.feed(piece))
        assert [*found, *splitter.end()] == [b"one", b"", b"two\r", b"three"]


async def test_the_gateways_calls_come_last(db: Database, fence: Fence) -> None:
    plan = await minted(db, job_id=fence.job_id, trial_id=fence.trial_id)
    judge = await minted(db, job_id=fence.job_id, trial_id=fence.trial_id, role="judge")
    first, second, judges = new_call(plan, 100), new_call(plan, 200), new_call(judge, 100)
    for call in (first, second, judges):
        assert await reserve(db, call) is None
    usage = {"input_tokens": 10, "cached_input_tokens": 20, "cache_write_5m_tokens": 3, "output_tokens": 7}
    await settle_call(db, first.call_id, measured(90, **usage))
    await settle_call(db, second.call_id, ended("held"))
    await whole(db, fence)
    for _ in range(2):
        await write_gateway_lines(db, fence)
    one, two = (await rows(db, fence))[-2:]
    assert [one[0], two[0]] == [GATEWAY_SEQ_BASE, GATEWAY_SEQ_BASE + 1]
    update = one[2]["update"]
    assert (one[1], update["sessionUpdate"], update["source"], update["scope"]) == (
        "usage", "usage", "gateway", "call",
    )  # fmt: skip
    assert (update["callId"], update["status"], one[2]["model"]) == (first.call_id, "measured", "opus")
    assert update["usage"] == {
        "promptTokens": 33, "completionTokens": 7, "cachedTokens": 20, "costUsd": 9e-08,
        "extra": {"cache_write_tokens": 3},
    }  # fmt: skip
    assert one[2]["timestamp"] == update["startedAt"]
    unmeasured = two[2]["update"]["usage"]
    assert unmeasured == {
        "promptTokens": None, "completionTokens": None, "cachedTokens": None, "costUsd": None, "extra": {},
    }  # fmt: skip


async def test_more_calls_than_a_trace_holds_are_told_as_lost(
    db: Database, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_spend, "MAX_CALLS", 3)
    plan = await minted(db, job_id=fence.job_id, trial_id=fence.trial_id)
    judge = await minted(db, job_id=fence.job_id, trial_id=fence.trial_id, role="judge")
    for of in (judge, judge, plan, plan, plan):
        await reserve(db, new_call(of, 1))
    await write_gateway_lines(db, fence)
    assert [row[1] for row in await rows(db, fence) if row[0] >= GATEWAY_SEQ_BASE] == ["usage"] * 3
    for _ in range(2):
        await reserve(db, new_call(plan, 2000))
    for _ in range(2):
        await write_gateway_lines(db, fence)
    *kept, lost = [row for row in await rows(db, fence) if row[0] >= GATEWAY_SEQ_BASE]
    assert [row[1] for row in kept] == ["usage"] * 3
    assert lost == (
        GATEWAY_SEQ_BASE + 3, "trace_loss", {"reason": "calls after the first 3", "events": 2},
    )  # fmt: skip
