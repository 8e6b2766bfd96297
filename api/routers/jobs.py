"""Jobs: create, read, follow, cancel, pause, download, delete."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response

from api.answers import json_answer
from api.archives_out import built_archive
from api.downloads import package_answer
from api.platform import CallerDep, Platform, PlatformDep
from api.queries import comma_words, idempotency_key, json_body, one_of, page_request
from api.sse import event_stream, job_events, parse_last_event_id
from domain.errors import ApiError
from domain.jobs import JobCreate
from domain.requests import parse_request
from domain.vocabulary import JobListScope, JobStatus, TrialStatus
from store import job_reads, trial_reads
from store.accept import Origin, accept_job
from store.accounts import Caller
from store.job_verbs import delete_job, request_cancel, request_pause

router = APIRouter()


@router.post("/api/jobs")
async def create_job(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Accept a job; a repeat with the same Idempotency-Key answers the first one."""
    body = parse_request(JobCreate, await json_body(request))
    origin = Origin(idempotency_key=idempotency_key(request))
    accepted = await accept_job(platform.db, caller, body, origin, platform.settings.job_rules())
    platform.outbox.wake()
    job = await job_reads.read_job(platform.db, caller, accepted.job_id)
    return json_answer({**job, "idempotent_replay": accepted.is_replay}, 201)


@router.get("/api/jobs")
async def list_jobs(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Jobs, newest first. Checks and uploaded jobs do not exist in this release."""
    scope = cast("JobListScope", one_of(request, "scope", ("my", "shared", "org"), "my"))
    kind = one_of(request, "kind", ("job", "check", "all"), "job")
    is_uploaded = request.query_params.get("uploaded") is not None and (
        one_of(request, "uploaded", ("true", "false"), "false") == "true"
    )
    page = page_request(request, job_reads.LIST_CURSOR)
    if kind == "check" or is_uploaded:
        return json_answer({"items": [], "nextCursor": None, "hasMore": False})
    search = request.query_params.get("search")
    return json_answer(await job_reads.list_jobs(platform.db, caller, page, scope=scope, search=search))


@router.get("/api/jobs/{job_id:segment}")
async def read_job(job_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """One job with its statistics and lists of trial ids."""
    return json_answer(await job_reads.read_job(platform.db, caller, job_id, is_viewed=True))


@router.delete("/api/jobs/{job_id:segment}")
async def remove_job(job_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Remove a terminal job, its trials and everything they left."""
    deleted = await delete_job(platform.db, caller, job_id)
    await deleted.delete_blobs(platform.blobs)
    answer = {"job_id": job_id, "trials_deleted": len(deleted.trial_ids), "analyses_deleted": 0}
    return json_answer(answer)


@router.get("/api/jobs/{job_id:segment}/trials")
async def list_trials(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """The job's trials, in the order of its plan."""
    document = await trial_reads.list_trials(
        platform.db,
        caller,
        job_id,
        page_request(request, trial_reads.TRIALS_CURSOR),
        statuses=comma_words(request, "status", TrialStatus, "invalid_status"),
        source=request.query_params.get("dataset"),
    )
    return json_answer(document)


@router.get("/api/jobs/{job_id:segment}/tasks")
async def list_tasks(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """One row a task."""
    page = page_request(request, job_reads.TASKS_CURSOR)
    return json_answer(await job_reads.list_tasks(platform.db, caller, job_id, page))


@router.get("/api/jobs/{job_id:segment}/events")
async def follow_job(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Every event from the first, or after Last-Event-ID, to the terminal one."""
    after_seq = parse_last_event_id(request.headers.get("last-event-id"))
    await job_reads.find_job(platform.db, caller, job_id)
    return event_stream(job_events(platform.db, platform.feed, job_id, after_seq))


@router.post("/api/jobs/{job_id:segment}/cancel")
async def cancel_job(job_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Ask for the end of every trial; answered at once."""
    await request_cancel(platform.db, caller, job_id)
    platform.outbox.wake()
    return json_answer(await job_reads.read_job(platform.db, caller, job_id))


@router.post("/api/jobs/{job_id:segment}/pause")
async def pause_job(job_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Let what runs finish and start nothing more; answered at once."""
    return await _set_paused(platform, caller, job_id, is_paused=True)


@router.post("/api/jobs/{job_id:segment}/unpause")
async def unpause_job(job_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Go on where a pause left off."""
    return await _set_paused(platform, caller, job_id, is_paused=False)


async def _set_paused(platform: Platform, caller: Caller, job_id: str, *, is_paused: bool) -> Response:
    await request_pause(platform.db, caller, job_id, is_paused=is_paused)
    platform.outbox.wake()
    return json_answer(await job_reads.read_job(platform.db, caller, job_id))


@router.get("/api/jobs/{job_id:segment}/download")
async def download_job(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """The job's folder, once it is terminal."""
    job = await job_reads.find_job(platform.db, caller, job_id)
    if not JobStatus(job["status"]).is_terminal:
        raise ApiError("job_not_terminal", f"The job is {job['status']}; its archive comes at the end.")
    package = await built_archive(platform, request, "job", job_id, f"job-{job_id}-results.tar.gz")
    return await package_answer(platform.blobs, package)
