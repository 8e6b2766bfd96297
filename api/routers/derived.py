"""Derived jobs: resume, retry and regrade. Each answers a new Job (contract §2.7, §2.8)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.answers import json_answer
from api.platform import CallerDep, Platform, PlatformDep
from api.queries import idempotency_key, json_body
from domain.derivation import ResumeRequest, RetryRequest
from domain.regrading import RegradeRequest, TrialRegradeRequest
from domain.requests import RequestModel, parse_request
from store.accounts import Caller
from store.derived import resume_job, retry_job, retry_trial
from store.job_reads import read_job
from store.new_job import Accepted
from store.regrades import regrade_job, regrade_trial

router = APIRouter()


@router.post("/api/jobs/{job_id:segment}/resume")
async def resume(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Run what failed or was stopped of a finished job."""
    body = parse_request(ResumeRequest, await json_body(request))
    accepted = await resume_job(platform.db, caller, job_id, body, idempotency_key(request))
    return await _new_job(platform, caller, accepted)


@router.post("/api/jobs/{job_id:segment}/retry")
async def retry(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Run chosen trials again."""
    body = parse_request(RetryRequest, await json_body(request))
    accepted = await retry_job(platform.db, caller, job_id, body, idempotency_key(request))
    return await _new_job(platform, caller, accepted)


@router.post("/api/trials/{trial_id:segment}/retry")
async def retry_one(trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Run one settled trial again."""
    parse_request(RequestModel, await json_body(request))
    accepted = await retry_trial(platform.db, caller, trial_id, idempotency_key(request))
    return await _new_job(platform, caller, accepted)


@router.post("/api/jobs/{job_id:segment}/regrade")
async def regrade(job_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Let the verifiers of a finished job judge again what they judged."""
    body = parse_request(RegradeRequest, await json_body(request))
    return await _new_job(platform, caller, await regrade_job(platform.db, caller, job_id, body))


@router.post("/api/trials/{trial_id:segment}/regrade")
async def regrade_one(trial_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Let one settled trial's verifier judge again."""
    body = parse_request(TrialRegradeRequest, await json_body(request))
    return await _new_job(platform, caller, await regrade_trial(platform.db, caller, trial_id, body))


async def _new_job(platform: Platform, caller: Caller, accepted: Accepted) -> Response:
    platform.outbox.wake()
    job = await read_job(platform.db, caller, accepted.job_id)
    return json_answer({**job, "idempotent_replay": accepted.is_replay}, 201)
