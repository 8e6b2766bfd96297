"""Traces: a trial's parsed events, its artifacts as text, and a job's events searched."""

from __future__ import annotations

from typing import Any, get_args

from fastapi import APIRouter, Request, Response

from api.answers import json_answer
from api.platform import CallerDep, Platform, PlatformDep
from domain.errors import ApiError
from domain.rosters import roster_of
from domain.vocabulary import TraceStream
from store import traces, trial_reads
from store.job_reads import find_job
from store.pages import PageRequest, parse_page
from store.streams import high_water, read_stream
from store.traces import TraceFilter

router = APIRouter()

TRACE_PAGE = 200
MAX_TYPE_CHARS, MAX_GREP_CHARS, MAX_TAIL, MAX_ID_CHARS = 100, 512, 10_000, 100
# Artifacts are answered as one JSON string; a larger one is read as a file, by ranges.
MAX_ARTIFACT_BYTES = 32 * 1024 * 1024
_HOME_RECORD = "agent/agent-home.json"
_STREAMS: tuple[str, ...] = get_args(TraceStream)
# While a trial runs its output is in the streams, afterwards in its files; of steps the newest one's.
_LIVE_STREAMS = {
    "verifier": "verifier/stdout",
    "trace-stdout": "agent/stdout",
    "trace-stderr": "agent/stderr",
}


@router.get("/api/trials/{trial_id:segment}/trace")
async def read_trace(trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Parsed events, or with `stream` one artifact as text."""
    trial = await trial_reads.find_trial(platform.db, caller, trial_id)
    stream = request.query_params.get("stream")
    if stream is None:
        page, wanted = _trace_request(request)
        return json_answer(await traces.read_trace(platform.db, trial, page, wanted))
    if stream not in _STREAMS:
        message = f"stream: {stream[:40]} is not among {', '.join(_STREAMS)}."
        raise ApiError("invalid_format", message, param="stream")
    if stream == "agent-home":
        return json_answer({"files": await _agent_home(platform, trial)})
    if stream == "trajectory":
        raise ApiError("not_found", "No harness of this release writes a trajectory of its own.")
    return json_answer(await _artifact(platform, trial, stream))


@router.get("/api/jobs/{job_id:segment}/grep")
async def grep_job(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Trials whose trace matches, by id: how often, and their first matching events."""
    await find_job(platform.db, caller, job_id)
    query = request.query_params
    page = parse_page(query.get("limit"), None, ())
    cursor = query.get("cursor")
    if cursor is not None:
        # Like a trace's, a position: the last group's trial id.
        if not 1 <= len(cursor) <= MAX_ID_CHARS:
            raise ApiError("invalid_cursor", "cursor: the last group's trial id.", param="cursor")
        page = PageRequest(page.limit, (cursor,))
    wanted = TraceFilter(
        type=_short(query.get("type"), "type", MAX_TYPE_CHARS),
        grep=_short(query.get("q", ""), "q", MAX_GREP_CHARS),
    )
    return json_answer(await traces.grep_job(platform.db, job_id, page, wanted))


def _trace_request(request: Request) -> tuple[PageRequest, TraceFilter]:
    query = request.query_params
    page = parse_page(query.get("limit"), None, (), default_limit=TRACE_PAGE)
    cursor = query.get("cursor")
    if cursor is not None:
        # A position, not a page's secret: a caller may make one from the last event it saw.
        if not _is_whole(cursor):
            raise ApiError("invalid_cursor", "cursor: the seq of the last event seen.", param="cursor")
        page = PageRequest(page.limit, (int(cursor),))
    tail = query.get("tail")
    if tail is not None and (not _is_whole(tail) or not 1 <= int(tail) <= MAX_TAIL):
        raise ApiError("invalid_input", f"tail: a whole number from 1 to {MAX_TAIL}.", param="tail")
    wanted = TraceFilter(
        type=_short(query.get("type"), "type", MAX_TYPE_CHARS),
        grep=_short(query.get("grep"), "grep", MAX_GREP_CHARS),
        tail=None if tail is None else int(tail),
    )
    return page, wanted


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _short(text: str | None, param: str, max_chars: int) -> str | None:
    if text is not None and (not 1 <= len(text) <= max_chars or "\0" in text):
        raise ApiError(
            "invalid_input", f"{param}: 1 to {max_chars} characters, none of them NUL.", param=param
        )
    return text


async def _artifact(platform: Platform, trial: Any, stream: str) -> dict[str, str | None]:
    """The text of one artifact; bytes that are no UTF-8 are replaced. `log` null: nothing is served."""
    path = _artifact_path(trial, stream)
    row = await trial_reads.find_file(platform.db, trial, path)
    if row is not None:
        _require_readable(path, row["size_bytes"])
        return {"log": (await platform.blobs.get(row["blob_key"])).decode("utf-8", "replace")}
    log = await _live_output(platform, trial, stream, path) if stream in _LIVE_STREAMS else None
    if log is not None:
        return {"log": log}
    retired = await trial_reads.retired_output(platform.db, trial, path)
    return {"log": None, "reason": retired} if retired else {"log": None}


async def _live_output(platform: Platform, trial: Any, stream: str, path: str) -> str | None:
    key = (trial["id"], trial["attempt_number"], f"{_step_folder(trial)}{_LIVE_STREAMS[stream]}")
    _require_readable(path, await high_water(platform.db, *key))
    data = await read_stream(platform.db, *key)
    return None if data is None else data.decode("utf-8", "replace")


def _require_readable(path: str, size_bytes: int) -> None:
    if size_bytes > MAX_ARTIFACT_BYTES:
        message = f"{path} has {size_bytes} bytes; read it as a file."
        raise ApiError("invalid_input", message, param="format", status=413)


def _artifact_path(trial: Any, stream: str) -> str:
    if stream == "trace-atif":
        return "agent/trajectory.json"
    stdout_file = roster_of(trial["arms"][trial["arm_index"]]["name"]).stdout_file
    printed = {
        "trace-stdout": f"agent/{stdout_file}",
        "verifier": "verifier/test-stdout.txt",
        "trace-stderr": "agent/stderr.log",
    }
    return f"{_step_folder(trial)}{printed[stream]}"


def _step_folder(trial: Any) -> str:
    """Where the newest step of a multi-step trial has its outputs; empty for any other trial."""
    steps = trial["result"].get("step_results")
    return f"steps/{steps[-1]['step_name']}/" if steps else ""


async def _agent_home(platform: Platform, trial: Any) -> dict[str, str] | None:
    """The home's text files by their path in the box, with the capture record; None when none was kept."""
    record = await trial_reads.find_file(platform.db, trial, _HOME_RECORD)
    if record is None:
        return None
    rows = [record, *await trial_reads.files_under(platform.db, trial, "agent/.")]
    if sum(row["size_bytes"] for row in rows) > MAX_ARTIFACT_BYTES:
        message = "The home is too large for one answer; read its files."
        raise ApiError("invalid_input", message, param="format", status=413)
    files: dict[str, str] = {}
    for row in rows:
        try:
            text = (await platform.blobs.get(row["blob_key"])).decode()
        except UnicodeDecodeError:
            continue
        files[row["path"].removeprefix("agent")] = text
    return files
