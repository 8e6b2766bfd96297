"""Agents of the caller's own: register, list, show, replace, remove."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response

from api.agent_sources import SCRIPT_PART, check_source, stored_source
from api.answers import json_answer, no_content
from api.multipart import read_form
from api.platform import CallerDep, Platform, PlatformDep
from api.queries import one_of, page_request
from domain.agents import read_registration
from domain.vocabulary import JobListScope
from store import agents
from store.accounts import Caller

router = APIRouter()

_PARTS = frozenset({"name", "run_command", "org", "env", SCRIPT_PART})


@router.get("/api/agents")
async def list_agents(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Registered agents, newest first."""
    scope = cast("JobListScope", one_of(request, "scope", ("my", "shared", "org"), "my"))
    page = page_request(request, agents.LIST_CURSOR)
    return json_answer(await agents.list_agents(platform.db, caller, page, scope))


@router.post("/api/agents")
async def create_agent(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Register an agent under a name that is free."""
    return await _register(request, platform, caller, None)


@router.get("/api/agents/{name:segment}")
async def read_agent(name: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """One agent, the caller's or one of their organizations'."""
    return json_answer((await agents.read_agent(platform.db, caller, name)).wire())


@router.put("/api/agents/{name:segment}")
async def replace_agent(name: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Register or replace in one step: everything is as this call says, and at no time is it missing."""
    return await _register(request, platform, caller, name)


@router.delete("/api/agents/{name:segment}")
async def delete_agent(name: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """Take the name away; jobs that ran or run it keep what they have."""
    await _drop(platform, await agents.delete_agent(platform.db, caller, name))
    return no_content()


async def _register(request: Request, platform: Platform, caller: Caller, path_name: str | None) -> Response:
    """What the metadata can be refused for is refused before the archive's bytes are read."""
    form = await read_form(request, _PARTS)
    registration = read_registration(form.fields, path_name)
    is_new = path_name is None
    check_source(form)
    await agents.check_registration(platform.db, caller, registration, is_new=is_new)
    async with stored_source(platform.blobs, form) as source:
        agent, unneeded = await agents.write_agent(platform.db, caller, registration, source, is_new=is_new)
    await _drop(platform, unneeded)
    return json_answer(agent.wire(), 201 if is_new else 200)


async def _drop(platform: Platform, keys: list[str]) -> None:
    for key in keys:
        await platform.blobs.delete(key)
