"""Trials: read, files, stop, download. Their traces are in `traces.py`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from api.answers import json_answer
from api.archives_out import built_archive
from api.downloads import file_answer, package_answer
from api.platform import CallerDep, PlatformDep
from api.queries import json_body, page_request
from domain.errors import ApiError
from domain.requests import RequestModel, parse_request
from domain.vocabulary import TrialStatus
from store import trial_reads
from store.job_verbs import request_stop

router = APIRouter()


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
        retired = await trial_reads.retired_output(platform.db, trial, path)
        raise ApiError("not_found", f"The trial holds no file {path}{f': {retired}' if retired else ''}.")
    return await file_answer(request, platform.blobs, row["blob_key"], row["size_bytes"])


@router.get("/api/trials/{trial_id:segment}/download")
async def download_trial(
    trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep
) -> Response:
    """The trial's folder, once it has settled."""
    trial = await trial_reads.find_trial(platform.db, caller, trial_id)
    if not TrialStatus(trial["status"]).is_terminal:
        raise ApiError("trial_not_settled", f"The trial is {trial['status']}; its folder comes at the end.")
    if trial_reads.is_regrade(trial):
        raise ApiError(
            "feature_unsupported",
            f"The trial is a regrade and has no folder; the agent's run is in {trial['source_trial_id']}.",
            details={"source_trial_id": trial["source_trial_id"]},
        )
    package = await built_archive(platform, request, "trial", trial_id, f"trial-{trial_id}.tar.gz")
    return await package_answer(platform.blobs, package)
