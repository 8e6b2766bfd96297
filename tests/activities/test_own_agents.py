"""Registered agents in real boxes: built once without a secret, run by the run contract."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import SecretStr

from activities.bundles import Bundles
from activities.harnesses.base import HarnessContext, ModelAccess
from activities.harnesses.own import OwnAgent, OwnHarness, built_path, read_own_agent
from activities.npm_registry import NpmRegistry
from activities.own_agents import FAILURE_KEPT_SEC, AgentBuildFailed, ensure_built
from activities.packages import TaskPackages
from activities.sandboxes import process
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec
from activities.settings import WorkerSettings
from activities.trial_context import Hands
from domain.agents import AgentSource, Registration
from domain.arms import AgentArm
from domain.errors import ProviderCreateFailure
from domain.providers import PROVIDERS
from domain.tasks import TaskFiles, parse_task
from store.accounts import caller_of_owner, ensure_owner
from store.agents import StoredSource, built_key, write_agent
from store.blobs import Blobs
from store.database import Database
from store.server_secret import ServerSecret
from tests.activities.box_conformance import Bench
from tests.activities.local_bench import local_bench

ACME = """#!/bin/sh
echo "asked: $(cat)"
echo "file: $(cat "$EVOLVE_INSTRUCTION_FILE")"
echo "model: $EVOLVE_MODEL mode: $ACME_MODE home: $HOME"
echo "gateway: $EVOLVE_GATEWAY_BASE_URL $OPENAI_BASE_URL"
echo "keys: $EVOLVE_GATEWAY_API_KEY $OPENAI_API_KEY"
pwd
"""
INSTALL = f"""
set -e
echo building
mkdir -p "$PREFIX/bin"
cat > "$PREFIX/bin/acme-real" <<'X'
{ACME}
X
chmod 755 "$PREFIX/bin/acme-real"
ln -s acme-real "$PREFIX/bin/acme"
env > "$PREFIX/build-env"
"""


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with local_bench(tmp_path / "local") as bench:
        yield bench


@pytest.fixture
def hands(db: Database, tmp_path: Path, bench: Bench) -> Hands:
    settings = WorkerSettings(
        database_url=SecretStr(db.url), home=tmp_path, blob_url=f"file://{tmp_path}/blobs"
    )
    blobs = Blobs(settings.blob_url)
    return Hands(
        settings=settings,
        db=db,
        blobs=blobs,
        installation_id=bench.installation_id,
        providers={"local": bench.provider},
        default_provider="local",
        capabilities=PROVIDERS,
        packages=TaskPackages(tmp_path / "tasks", blobs),
        bundles=Bundles(tmp_path / "bundles", NpmRegistry()),
        secret=ServerSecret("a secret for tests, long enough to be one"),
    )


async def registered(hands: Hands, source: bytes, kind: AgentSource = "install_script") -> OwnAgent:
    async with hands.db.session() as session:
        await ensure_owner(session)
    caller = await caller_of_owner(hands.db, None)
    registration = Registration("acme-cli", "acme && exit 3", {"ACME_MODE": "fast"}, None)
    await hands.blobs.put("agent-sources/s", source)
    stored = StoredSource(kind, "agent-sources/s", "0" * 64, len(source))
    agent, _ = await write_agent(hands.db, caller, registration, stored, is_new=True)
    return await read_own_agent(hands.db, agent.id)


async def build(hands: Hands, bench: Bench, agent: OwnAgent) -> bool:
    return await ensure_built(hands, bench.provider, agent, fence=1)


def packed(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(target.getvalue())


async def test_an_agent_is_built_once_and_runs_by_the_run_contract(hands: Hands, bench: Bench):
    agent = await registered(hands, INSTALL.encode())
    answers = await asyncio.gather(*(build(hands, bench, agent) for _ in range(3)))
    assert sorted(answers) == [False, True, True]
    assert await bench.provider.list(bench.installation_id) == []

    harness = OwnHarness(agent, built_path(hands.settings.state_dir, agent.revision_id))
    context = HarnessContext(
        task=parse_task("hello", "", TaskFiles(instruction=b"Say hello.\n")),
        task_dir=Path("/nowhere"),
        arm=AgentArm(name="acme-cli", model_name="gpt-6.1-sol", registration=agent.revision_id),
        access=ModelAccess("http://127.0.0.1:8801", "evk-x", "gpt-6.1-sol"),
        home="/tmp",
    )
    box = await bench.box()
    await harness.install(box, context)
    launch = harness.launch(context)
    assert launch is not None
    assert "evk-x" not in " ".join(launch.argv)
    spec = ProcessSpec("agent", launch.argv, user="nobody", env=launch.env, stdin=launch.stdin)
    await process.start(box, spec)
    out, end = b"", None
    async for item in process.follow(box, "agent", {}):
        if isinstance(item, Chunk):
            out += item.data
        else:
            end = item
    assert isinstance(end, ExitStatus)
    assert end.exit_code == 3
    assert out.decode().splitlines() == [
        "asked: Say hello.",
        "file: Say hello.",
        "model: gpt-6.1-sol mode: fast home: /tmp",
        "gateway: http://127.0.0.1:8801/v1 http://127.0.0.1:8801/v1",
        "keys: evk-x evk-x",
        "/app",
    ]
    env = (await box.read("/opt/evolve/build-env")).decode()
    assert "PREFIX=/opt/evolve" in env
    assert "EVOLVE" not in env.replace("/opt/evolve", "")


async def test_another_host_takes_what_was_built(hands: Hands, bench: Bench):
    agent = await registered(hands, b"exit 9")
    await hands.blobs.put(built_key(agent.revision_id), b"built elsewhere")
    assert await build(hands, bench, agent) is False
    assert built_path(hands.settings.state_dir, agent.revision_id).read_bytes() == b"built elsewhere"


@pytest.mark.parametrize(
    "files",
    [
        {"bin/acme": b"#!/bin/sh\n", "lib/data": b"x"},
        {"install.sh": b'cp -R tree "$PREFIX/bin"', "tree/acme": b"#!/bin/sh\n"},
    ],
    ids=["bin", "install.sh"],
)
async def test_a_directory_is_built_by_its_script_or_taken_as_it_is(
    hands: Hands, bench: Bench, files: dict[str, bytes]
):
    agent = await registered(hands, packed(files), "tarball")
    await build(hands, bench, agent)
    with tarfile.open(built_path(hands.settings.state_dir, agent.revision_id)) as built:
        assert "bin/acme" in {name.removeprefix("./") for name in built.getnames()}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (b"echo the mirror is away >&2; exit 7", r"exit code 7: the mirror is away"),
        (b"true", r"no executable in \$PREFIX/bin"),
        (b'mkdir "$PREFIX/bin"; echo x > "$PREFIX/bin/acme"', r"no executable"),
    ],
)
async def test_a_build_that_leaves_no_program_fails_with_what_it_said(
    hands: Hands, bench: Bench, script: bytes, told: str
):
    agent = await registered(hands, script)
    with pytest.raises(AgentBuildFailed, match=told):
        await build(hands, bench, agent)
    assert await bench.provider.list(bench.installation_id) == []
    assert not built_path(hands.settings.state_dir, agent.revision_id).exists()


async def told_by_failed_build(hands: Hands, bench: Bench, agent: OwnAgent) -> str:
    with pytest.raises(AgentBuildFailed) as failed:
        await build(hands, bench, agent)
    return failed.value.message


async def test_a_build_that_failed_is_not_begun_again_for_a_while(hands: Hands, bench: Bench):
    agent = await registered(hands, b"date +%s.%N; exit 7")
    told = await asyncio.gather(*(told_by_failed_build(hands, bench, agent) for _ in range(3)))
    assert len(set(told)) == 1
    failed = built_path(hands.settings.state_dir, agent.revision_id).with_suffix(".failed")
    long_ago = time.time() - FAILURE_KEPT_SEC - 1
    os.utime(failed, (long_ago, long_ago))
    assert await told_by_failed_build(hands, bench, agent) not in told


async def test_what_another_host_built_is_taken_where_the_build_failed(hands: Hands, bench: Bench):
    agent = await registered(hands, b"exit 7")
    await told_by_failed_build(hands, bench, agent)
    await hands.blobs.put(built_key(agent.revision_id), b"built elsewhere")
    assert await build(hands, bench, agent) is False


async def test_a_box_that_could_not_be_made_says_nothing_of_the_agent(
    hands: Hands, bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    agent = await registered(hands, INSTALL.encode())

    async def refuse(spec: object) -> None:
        raise ProviderCreateFailure("no boxes today")

    with monkeypatch.context() as patched:
        patched.setattr(bench.provider, "create", refuse)
        with pytest.raises(ProviderCreateFailure):
            await build(hands, bench, agent)
    assert await build(hands, bench, agent) is False
