"""Registered agents, with the published client: whose they are, and what a job may do with them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from evolve import EvolveAPIError, HostedClientConfig
from evolve.hosted import AgentsClient

from domain.agents import MAX_PER_USER
from store.accounts import create_user, mint_key
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, run_job

SCRIPT = "#!/bin/sh\nmkdir -p $PREFIX/bin\ncp acme $PREFIX/bin\n"


@pytest_asyncio.fixture(autouse=True)
async def _no_sources(api: Api) -> None:
    """The blobs are the session's."""
    for key in await api.blobs.list("agent-sources/"):
        await api.blobs.delete(key)


def client_of(api: Api, key: str | None = None) -> AgentsClient:
    return AgentsClient(HostedClientConfig(base_url=api.url, api_key=key or api.key))


async def code_of(call: Any) -> tuple[str, int | None, str | None]:
    with pytest.raises(EvolveAPIError) as caught:
        await call
    return caught.value.code, caught.value.status, caught.value.param


async def refused(api: Api, files: dict[str, Any], method: str = "POST", path: str = "/api/agents") -> Any:
    answer = await api.http.request(method, path, files=files)
    return answer.json()["error"]


def form(**changes: Any) -> dict[str, Any]:
    parts = {"name": "acme-cli", "run_command": "acme", "install_script": SCRIPT, **changes}
    return {name: (None, value) for name, value in parts.items() if value is not None}


def packed(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            archive.addfile(member)
    return target.getvalue()


async def colleague(api: Api) -> str:
    """The key of another member of the caller's organization."""
    async with api.db.session() as session:
        user = await create_user(session, "colleague@example.com", slug="colleague")
        _, key = await mint_key(session, user.id)
    pool = await api.db.pool()
    await pool.execute(
        "INSERT INTO memberships (org_id, user_id, role, joined_at) VALUES ($1, $2, 'member', now())",
        api.caller.default_org_id,
        user.id,
    )
    return key


async def test_an_agent_is_registered_read_listed_and_removed(api: Api):
    agents = client_of(api)
    made = await agents.create(
        name="acme-cli", install_script=SCRIPT, run_command="acme --go", env={"ACME_MODE": "fast"}
    )
    assert (made.name, made.org, made.source) == ("acme-cli", "personal", "install_script")
    assert (made.run_command, made.env) == ("acme --go", {"ACME_MODE": "fast"})
    assert made.created_at == made.updated_at != ""
    assert await agents.get("acme-cli") == made
    assert [agent.name async for agent in agents.list()] == ["acme-cli"]
    await agents.delete("acme-cli")
    assert await code_of(agents.get("acme-cli")) == ("agent_not_found", 404, "name")
    assert await api.blobs.list("agent-sources/") == []


async def test_a_directory_is_uploaded_whole(api: Api, tmp_path: Path):
    (tmp_path / "install.sh").write_text(SCRIPT)
    (tmp_path / "acme").write_text("#!/bin/sh\n")
    made = await client_of(api).create(name="acme-cli", directory=str(tmp_path), run_command="acme")
    assert made.source == "tarball"
    (key,) = await api.blobs.list("agent-sources/")
    with tarfile.open(fileobj=io.BytesIO(await api.blobs.get(key))) as archive:
        assert sorted(archive.getnames()) == ["acme", "install.sh"]


async def test_an_upsert_replaces_everything_and_the_name_is_never_missing(api: Api):
    agents = client_of(api)
    first = await agents.upsert("acme-cli", install_script=SCRIPT, run_command="a", env={"A": "1"})
    second = await agents.upsert("acme-cli", install_script=SCRIPT + "\n", run_command="b")
    assert (second.run_command, second.env, second.created_at) == ("b", {}, first.created_at)
    assert second.updated_at > first.updated_at
    assert len(await api.blobs.list("agent-sources/")) == 1
    upsert = agents.upsert("acme-cli", install_script=SCRIPT, run_command="c", org="stranger")
    assert await code_of(upsert) == ("invalid_input", 400, "org")


async def test_a_name_is_taken_once(api: Api):
    agents = client_of(api)
    await agents.create(name="acme-cli", install_script=SCRIPT, run_command="a")
    again = agents.create(name="acme-cli", install_script=SCRIPT, run_command="a")
    assert await code_of(again) == ("agent_name_taken", 409, "name")
    other = client_of(api, api.stranger_key)
    await other.create(name="acme-cli", install_script=SCRIPT, run_command="theirs")
    assert (await agents.get("acme-cli")).run_command == "a"


async def test_strangers_see_nothing_and_colleagues_may_read_but_not_change(api: Api):
    await client_of(api).create(name="acme-cli", install_script=SCRIPT, run_command="a")
    stranger, member = client_of(api, api.stranger_key), client_of(api, await colleague(api))
    for call in (stranger.get("acme-cli"), stranger.delete("acme-cli")):
        assert (await code_of(call))[:2] == ("agent_not_found", 404)
    assert (await member.get("acme-cli")).org == "personal"
    for call in (
        member.delete("acme-cli"),
        member.upsert("acme-cli", install_script=SCRIPT, run_command="mine"),
    ):
        assert (await code_of(call))[:2] == ("org_forbidden", 403)
    scopes = {
        scope: [agent.name async for agent in member.list(scope=scope)] for scope in ("my", "shared", "org")
    }
    assert scopes == {"my": [], "shared": ["acme-cli"], "org": ["acme-cli"]}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "claude"}, "agent_name_reserved"),
        ({"name": "Acme"}, "agent_invalid_name"),
        ({"run_command": None}, "invalid_input"),
        ({"install_script": None}, "agent_source_required"),
        ({"install_script": "  "}, "agent_source_required"),
        ({"install_script": "x" * (1024 * 1024 + 1)}, "agent_too_large"),
        ({"env": '{"OPENAI_BASE_URL": "https://x"}'}, "agent_invalid_env"),
        ({"env": '{"GH_TOKEN": "x"}'}, "agent_invalid_env"),
        ({"org": "nowhere"}, "org_not_found"),
        ({"colour": "red"}, "invalid_input"),
    ],
)
async def test_a_registration_is_refused_by_name_and_leaves_nothing(
    api: Api, changes: dict[str, Any], code: str
):
    assert (await refused(api, form(**changes)))["code"] == code
    assert await api.blobs.list("agent-sources/") == []
    assert (await api.get("/api/agents"))["items"] == []


async def test_a_script_beside_an_archive_is_a_conflict(api: Api):
    files = {**form(), "archive": ("source.tar.gz", packed("install.sh"), "application/gzip")}
    assert (await refused(api, files))["code"] == "agent_source_conflict"


@pytest.mark.parametrize(
    "archive",
    [
        b"no archive",
        packed("readme"),
        packed("../install.sh"),
        packed("install.sh", kind=tarfile.SYMTYPE),
    ],
    ids=["garbage", "nothing to build", "outside", "link"],
)
async def test_an_archive_that_nothing_can_be_built_from_is_refused(api: Api, archive: bytes):
    files = {**form(install_script=None), "archive": ("source.tar.gz", archive, "application/gzip")}
    error = await refused(api, files)
    assert (error["code"], error["param"]) == ("invalid_archive", "archive")
    assert await api.blobs.list("agent-sources/") == []


async def test_a_user_holds_only_so_many(api: Api):
    pool = await api.db.pool()
    await pool.execute(
        "INSERT INTO agent_revisions (id, name, org_id, owner_user_id, source, run_command, env, source_key,"
        " source_sha256, source_bytes, created_at, updated_at)"
        " SELECT n::text, 'agent-' || n, $1, $2, 'install_script', 'x', '{}', 'k', '', 0, now(), now()"
        " FROM generate_series(1, $3) n",
        api.caller.default_org_id,
        api.caller.user_id,
        MAX_PER_USER,
    )
    error = await refused(api, form())
    assert (error["code"], error["details"]) == ("agent_limit_reached", {"max_per_user": MAX_PER_USER})


async def test_a_running_job_keeps_the_revision_that_it_pinned(api: Api):
    await add_dataset(api.db, api.caller)
    agents, jobs = client_of(api), api.published().jobs
    await agents.create(name="acme-cli", install_script=SCRIPT, run_command="first")
    asked: dict[str, Any] = {
        "datasets": [{"name": "demo"}],
        "agents": [{"name": "acme-cli", "model_name": "gpt-6.1-sol"}],
    }
    job = await jobs.start(**asked)
    assert (job.agents[0].name, job.agents[0].reasoning_effort) == ("acme-cli", None)
    await agents.upsert("acme-cli", install_script=SCRIPT, run_command="second")
    pool = await api.db.pool()
    pinned = await pool.fetchval("SELECT plan -> 'arms' -> 0 ->> 'registration' FROM jobs")
    command = "SELECT run_command FROM agent_revisions WHERE id = $1"
    assert await pool.fetchval(command, pinned) == "first"
    await run_job(api.db, job.id, [1.0] * 3)
    await agents.delete("acme-cli")
    assert await pool.fetchval("SELECT count(*) FROM agent_revisions") == 0
    assert list((await jobs.get(job.id)).stats["evals"]) == ["acme-cli__gpt-6.1-sol__demo"]
    assert (await code_of(jobs.start(**asked)))[:2] == ("agent_not_found", 404)


async def test_another_accounts_agent_cannot_be_run(api: Api):
    await add_dataset(api.db, api.caller)
    await client_of(api, api.stranger_key).create(name="acme-cli", install_script=SCRIPT, run_command="x")
    start = api.published().jobs.start(
        datasets=[{"name": "demo"}], agents=[{"name": "acme-cli", "model_name": "gpt-6.1-sol"}]
    )
    assert (await code_of(start))[0] == "agent_not_found"
