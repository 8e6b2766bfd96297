"""Who the caller is, and the organizations they belong to."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.answers import json_answer
from api.platform import CallerDep, PlatformDep
from store.orgs import auth_status, get_org, list_members, list_orgs

router = APIRouter()


@router.get("/api/auth/status")
async def status(platform: PlatformDep, caller: CallerDep) -> Response:
    """The caller and the key they came with."""
    return json_answer(await auth_status(platform.db, caller))


@router.get("/api/orgs")
async def orgs(platform: PlatformDep, caller: CallerDep) -> Response:
    """The caller's organizations, the personal one first."""
    return json_answer({"items": await list_orgs(platform.db, caller)})


@router.get("/api/orgs/{org:segment}")
async def org_detail(org: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """One organization by slug or id."""
    return json_answer(await get_org(platform.db, caller, org))


@router.get("/api/orgs/{org:segment}/members")
async def members(org: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Its members, owners first."""
    return json_answer({"items": await list_members(platform.db, caller, org)})
