"""What a client may know before it has a key."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.answers import json_answer
from api.limits import UPLOAD_LIMITS
from api.platform import Platform, PlatformDep
from domain.capabilities import Deployment, capability_document
from domain.vocabulary import SandboxProvider
from store.hosts import newest_host
from store.outages import is_database_away

router = APIRouter()


@router.get("/api/meta")
async def meta(platform: PlatformDep) -> Response:
    """The capability document; the default provider is the newest worker host's."""
    default, reason = await _default_provider(platform)
    here = Deployment(default, reason, UPLOAD_LIMITS, platform.settings.job_rules())
    return json_answer(capability_document(here))


async def _default_provider(platform: Platform) -> tuple[SandboxProvider, str]:
    try:
        host = await newest_host(platform.db)
    except Exception as error:
        if not is_database_away(error):
            raise
        return SandboxProvider.LOCAL, "the database is not answering; this is what a new host would say"
    if host is None:
        return SandboxProvider.LOCAL, "no worker host has registered yet"
    return SandboxProvider(host.default_provider), host.default_reason


@router.get("/healthz")
async def healthz(platform: PlatformDep) -> Response:
    """200 while the database answers; `undelivered_intents` wait for Temporal."""
    return json_answer({"status": "ok", "undelivered_intents": await platform.outbox.backlog()})
