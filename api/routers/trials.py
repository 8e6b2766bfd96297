"""Trials: read, trace, artifacts, files, stop, download."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import APIRouter, Request, Response
from pydantic import Field

from api.answers import json_answer
from api.archives_out import built_archive
from api.downloads import file_answer, package_answer
from api.platform import CallerDep, Platform, PlatformDep
from api.queries import json_body, page_request
from domain.errors import ApiError
from domain.requests import RequestModel, parse_request
from domain.rosters import roster_of
from domain.vocabulary import TraceStream, TrialStatus
from store import trial_reads
from store.job_verbs import request_stop
from store.pages import PageRequest, parse_page
from store.streams import read_stream
from store.trial_reads import TraceFilter

router = APIRouter()

TRACE_PAGE = 200
MAX_TYPE_CHARS, MAX_GREP_CHARS, MAX_TAIL = 100, 512, 10_000
# Artifacts are answered as one JSON string; a larger one is read as a file, by ranges.
MAX_ARTIFACT_BYTES = 32 * 1024 * 1024
_HOME_RECORD = "agent/agent-home.json"
_STREAMS: tuple[str, ...] = get_args(TraceStream)
# While a trial runs its output is in the streams, afterwards in its files.
_LIVE_STREAMS = {
    "verifier": "verifier/stdout",
    "trace-stdout": "agent/stdout",
    "trace-stderr": "agent/stderr",
}


class StopRequest(RequestModel):
    """The body of `POST /api/trials/stop`."""

    trial_ids: Annotated[list[str], Field(min_length=1, max_length=10_000)]


@router.post("/api/trials/stop")
async def stop_trials(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """End chosen live trials; the four lists partition the requested ids."""
    body = parse_request(StopRequest, await json_body(request))
    outcome = await request_stop(platform.db, caller, body.trial_ids)
    platform.outbox.wake()
    trials = await trial_reads.read_trials(platform.db, caller, outcome.stopped)
    return json_answer(
        {
            "stopped": [trials[trial_id] for trial_id in outcome.stopped if trial_id in trials],
            "stopped_analyses": [],
            "already_terminal": outcome.already_terminal,
            "not_found": outcome.not_found,
        }
    )


@router.get("/api/trials/{trial_id:segment}")
async def read_trial(trial_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """One trial, its exception message whole."""
    return json_answer(await trial_reads.read_trial(platform.db, caller, trial_id))


@router.get("/api/trials/{trial_id:segment}/trace")
async def read_trace(trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Parsed events, or with `stream` one artifact as text."""
    trial = await trial_reads.find_trial(platform.db, caller, trial_id)
    stream = request.query_params.get("stream")
    if stream is None:
        page, wanted = _trace_request(request)
        return json_answer(await trial_reads.read_trace(platform.db, trial, page, wanted))
    if stream not in _STREAMS:
        message = f"stream: {stream[:40]} is not among {', '.join(_STREAMS)}."
        raise ApiError("invalid_format", message, param="stream")
    if stream == "agent-home":
        return json_answer({"files": await _agent_home(platform, trial)})
    if stream == "trajectory":
        raise ApiError("not_found", "No harness of this release writes a trajectory of its own.")
    return json_answer({"log": await _artifact(platform, trial, stream)})


@router.get("/api/trials/{trial_id:segment}/files")
async def list_files(trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Kept files, by path."""
    trial = await trial_reads.find_trial(platform.db, caller, trial_id)
    page = page_request(request, trial_reads.FILES_CURSOR)
    return json_answer(await trial_reads.list_files(platform.db, trial, page))


@router.get("/api/trials/{trial_id:segment}/files/{path:tail}")
async def read_file(
    trial_id: str, path: str, request: Request, platform: PlatformDep, caller: CallerDep
) -> Response:
    """A kept file's bytes, whole or a range."""
    trial = await trial_reads.find_trial(platform.db, caller, trial_id)
    row = await trial_reads.find_file(platform.db, trial, path)
    if row is None:
        raise ApiError("not_found", f"The trial holds no file {path}.")
    return await file_answer(request, platform.blobs, row["blob_key"], row["size_bytes"])


@router.get("/api/trials/{trial_id:segment}/download")
async def download_trial(
    trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep
) -> Response:
    """The trial's folder, once it has settled."""
    trial = await trial_reads.find_trial(platform.db, caller, trial_id)
    if not TrialStatus(trial["status"]).is_terminal:
        raise ApiError("trial_not_settled", f"The trial is {trial['status']}; its folder comes at the end.")
    package = await built_archive(platform, request, "trial", trial_id, f"trial-{trial_id}.tar.gz")
    return await package_answer(platform.blobs, package)


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
    if text is not None and not 1 <= len(text) <= max_chars:
        raise ApiError("invalid_input", f"{param}: 1 to {max_chars} characters.", param=param)
    return text


async def _artifact(platform: Platform, trial: Any, stream: str) -> str | None:
    """The text of one artifact, None when nothing is kept; bytes that are no UTF-8 are replaced."""
    row = await trial_reads.find_file(platform.db, trial, _artifact_path(trial, stream))
    if row is not None:
        if row["size_bytes"] > MAX_ARTIFACT_BYTES:
            message = f"{row['path']} has {row['size_bytes']} bytes; read it as a file."
            raise ApiError("invalid_input", message, param="format", status=413)
        return (await platform.blobs.get(row["blob_key"])).decode("utf-8", "replace")
    if stream not in _LIVE_STREAMS:
        return None
    data = await read_stream(platform.db, trial["id"], trial["attempt_number"], _LIVE_STREAMS[stream])
    return None if data is None else data.decode("utf-8", "replace")


def _artifact_path(trial: Any, stream: str) -> str:
    if stream == "trace-stdout":
        return f"agent/{roster_of(trial['arms'][trial['arm_index']]['name']).stdout_file}"
    return {
        "verifier": "verifier/test-stdout.txt",
        "trace-stderr": "agent/stderr.log",
        "trace-atif": "agent/trajectory.json",
    }[stream]


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
