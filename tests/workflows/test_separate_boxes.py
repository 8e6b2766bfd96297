"""A separate verifier on real boxes: what is carried, what is not, and what the box is made of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from activities import judge_packages
from activities.sandboxes.base import SandboxProvider
from activities.sandboxes.local import LocalProvider
from store.database import Database
from store.installation import installation_id
from tests.activities import docker_bench, local_bench
from tests.inprocess import Platform, inprocess_platform
from workflows import names

BASE = "FROM evolve-test/debian:bookworm\n"
HEAD = """
[agent]
timeout_sec = 60
{agent}
[environment]
network_mode = "no-network"
"""
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
# The verifier says each thing that is not as it must be, and scores what is left.
CHECKS = 'fail() { echo "wrong: $1"; wrong=1; }\n'
SCORE = '[ -z "$wrong" ] && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n'


@dataclass(frozen=True)
class RealTask:
    """`toml` comes before the tables that every task here has, the last two members go into those."""

    name: str
    toml: str
    solve: str
    checks: str
    dockerfile: str = "WORKDIR /app\n"
    extra: tuple[tuple[str, str], ...] = ()
    environment: str = ""
    agent: str = ""

    def files(self) -> dict[str, str]:
        files = {
            "task.toml": self.toml + HEAD.format(agent=self.agent) + self.environment,
            "instruction.md": "Do it.\n",
            "environment/Dockerfile": BASE + self.dockerfile,
            "solution/solve.sh": self.solve,
            "tests/test.sh": CHECKS + self.checks + SCORE,
            **dict(self.extra),
        }
        return {f"{self.name}/{path}": content for path, content in files.items()}


CARRIED = RealTask(
    name="carried",
    toml=f'artifacts = [{{source = "out", exclude = ["*.tmp", "cache"]}}, "/work/one.txt"]\n{SEPARATE}',
    solve="""
mkdir -p out/empty out/cache out/deep /work && chmod 700 out/empty
printf data >out/deep/real.txt && ln -s real.txt out/deep/link
ln out/deep/real.txt out/further
printf '#!/bin/sh\\necho ran\\n' >out/run.sh && chmod 755 out/run.sh
touch out/x.tmp out/cache/y /app/private
ln -s /tests/secret out/cheat && ln -s deep/../../../tests/secret out/cheat2
printf 1 >/work/one.txt && printf 2 >/work/two.txt
mkdir -p /logs/artifacts && printf note >/logs/artifacts/note
""",
    checks="""
cd /app
[ "$(cat out/deep/link)" = data ] && [ -L out/deep/link ] || fail link
[ "$(cat out/further)" = data ] || fail 'hard link'
[ "$(./out/run.sh)" = ran ] || fail mode
[ "$(stat -c %a out/empty)" = 700 ] || fail 'empty folder'
for gone in out/x.tmp out/cache out/cheat out/cheat2 private /work/two.txt; do
  [ -e "$gone" ] || [ -L "$gone" ] && fail "$gone was carried"
done
[ "$(cat /work/one.txt)" = 1 ] || fail file
[ "$(cat /logs/artifacts/note)" = note ] || fail convention
[ "$(cat /tests/secret)" = 42 ] || fail tests
""",
    extra=(("tests/secret", "42"),),
)
DELETED = RealTask(
    name="deleted",
    toml=f'artifacts = ["/app"]\n{SEPARATE}',
    solve="rm /app/seed; printf new >/app/new; printf spoiled >/usr/local/bin/judge",
    checks="""
[ -e /app/seed ] && fail 'what the agent deleted is back'
[ "$(cat /app/new)" = new ] || fail 'what it made is missing'
[ "$(cat /usr/local/bin/judge)" = honest ] || fail 'the environment is not fresh'
[ "$PWD" = /app ] || fail 'the working directory'
""",
    dockerfile="RUN mkdir /app && touch /app/seed && printf honest >/usr/local/bin/judge\nWORKDIR /app\n",
)
OWN_IMAGE = RealTask(
    name="own-image",
    toml=f'artifacts = ["/app/answer"]\n{SEPARATE}',
    solve="printf 42 >/app/answer",
    checks="""
[ "$(cat /tests/built)" = judge ] || fail 'what the image holds of the tests'
[ "$(cat /app/answer)" = 42 ] || fail answer
[ -e /only-environment ] && fail 'the image of the environment'
""",
    dockerfile="RUN touch /only-environment\nWORKDIR /app\n",
    extra=(("tests/Dockerfile", f"{BASE}RUN mkdir /tests && printf judge >/tests/built\n"),),
)
HANDED = RealTask(
    name="handed",
    toml=f'{SEPARATE}[[verifier.collect]]\ncommand = "cat /app/a >/logs/artifacts/hooked"\n',
    agent='user = "dev"',
    solve="printf two >a",
    checks="""
[ "$(cat /logs/artifacts/hooked)" = two ] || fail hook
grep -q '+two' /logs/artifacts/model.patch || fail 'pending work'
""",
    dockerfile="""\
RUN mkdir /app && cd /app && git init -q && printf one >a && git add -A && \
git -c user.name=x -c user.email=x@y commit -qm base && useradd -m dev && chown -R dev /app
WORKDIR /app
""",
    extra=(
        (
            "pre_artifacts.sh",
            'git diff "$(git rev-list --max-parents=0 HEAD)" HEAD >/logs/artifacts/model.patch\n',
        ),
    ),
)
CHECKED = RealTask(
    name="checked",
    toml="",
    environment='env = {MODE = "x"}\n'
    "healthcheck = {command = 'test -e /tmp/ready && test -z \"$MODE\"', interval_sec = 0.2}\n",
    solve='[ -e /tmp/ready ] && [ "$MODE" = x ] && touch /tmp/met',
    checks="[ -e /tmp/met ] || fail 'the agent came too early'\n",
    dockerfile='WORKDIR /app\nENTRYPOINT ["sh", "-c", "sleep 0.3; touch /tmp/ready; exec sleep 99999"]\n',
)
# It would install litellm; that the wheels are there and named is enough.
JUDGE_ENV = 'env = {ANTHROPIC_API_KEY = "${ANTHROPIC_API_KEY}"}\n'
JUDGE_CHECKS = """
if false; then uv run --with litellm judge.py; fi
[ -e "$PIP_FIND_LINKS/six-1.17.0-py2.py3-none-any.whl" ] && [ "$UV_NO_INDEX" = 1 ] || fail wheels
touch "$PIP_FIND_LINKS/x" 2>/dev/null && fail 'they can be changed'
case $ANTHROPIC_API_KEY in evk-*) ;; *) fail key ;; esac
[ "$ANTHROPIC_BASE_URL" = http://127.0.0.1:8801 ] || fail url
"""
JUDGED_SHARED = RealTask(
    name="judged-shared", toml=f"[verifier]\n{JUDGE_ENV}", solve="ls /opt/evolve-judge", checks=JUDGE_CHECKS
)
JUDGED_ALONE = RealTask(
    name="judged-alone",
    toml=f"{SEPARATE}{JUDGE_ENV}",
    solve="",
    checks=JUDGE_CHECKS,
)
REFUSED = RealTask(
    name="service",
    toml=SEPARATE,
    solve="",
    checks="",
    dockerfile='WORKDIR /app\nENTRYPOINT ["sh", "-c", "touch /ready; exec sleep 99999"]\n',
)


@asynccontextmanager
async def real_provider(kind: str, installation: str, folder: Path) -> AsyncIterator[SandboxProvider]:
    if kind == "docker":
        docker = await docker_bench.open_provider(installation, folder)
        yield docker
        await docker_bench.close_provider(docker)
        return
    local_bench.make_gateway_folder(folder)
    yield LocalProvider(folder, folder / "gw" / "gateway.sock", sys.executable)


@pytest.fixture(
    params=[pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root)]
)
async def real(
    request: pytest.FixtureRequest, db: Database, temporal: str, tmp_path: Path
) -> AsyncIterator[tuple[Platform, str]]:
    """A platform whose boxes are real, and their provider's name."""
    kind: str = request.param
    installation = await installation_id(db)
    async with (
        real_provider(kind, installation, tmp_path) as provider,
        inprocess_platform(db, temporal, tmp_path, provider) as platform,
    ):
        yield platform, kind
        assert await provider.list(installation) == []


async def run(platform: Platform, kind: str, *tasks: RealTask) -> dict[str, Any]:
    """Each task's trial by name."""
    files = {path: content for task in tasks for path, content in task.files().items()}
    await platform.publish("demo", files)
    body = {
        "datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "sandbox_provider": kind,
        "retry": {"max_retries": 0},
    }  # fmt: skip
    await asyncio.wait_for(
        platform.client.execute_workflow(
            names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
        ),
        200,
    )
    rows = await platform.rows("SELECT id, task_name, status, reward, result FROM trials")
    return {str(row["task_name"]): row for row in rows}


async def said(platform: Platform, trial: Any) -> str:
    """The verifier's log, with what else tells how the trial ended."""
    found = await platform.rows(
        "SELECT blob_key FROM trial_files WHERE trial_id = $1 AND path = 'verifier/test-stdout.txt'",
        trial["id"],
    )
    log = (await platform.blobs.get(str(found[0]["blob_key"]))).decode() if found else ""
    return (
        f"{log} {trial['status']} {trial['result'].get('exception_info')} {trial['result'].get('x_handover')}"
    )


@pytest.mark.timeout(300)
async def test_each_task_is_judged_on_what_it_hands_on(
    real: tuple[Platform, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, kind = real
    small = (judge_packages.WheelSet("3.11", ("six==1.17.0",)),)
    monkeypatch.setattr(judge_packages, "WHEEL_SETS", small)
    tasks = (CARRIED, DELETED, OWN_IMAGE, HANDED, CHECKED, JUDGED_SHARED, JUDGED_ALONE)
    trials = await run(platform, kind, *tasks, REFUSED)
    assert {name: trial["reward"] for name, trial in trials.items()} == {task.name: 1.0 for task in tasks}, [
        await said(platform, trial) for trial in trials.values()
    ]
    assert len(trials["carried"]["result"]["x_handover"]["not_carried"]) == 2
    [failed] = await platform.rows("SELECT task_name, failure FROM dataset_tasks WHERE state = 'FAILED'")
    assert failed["task_name"] == REFUSED.name
    failure: Any = failed["failure"]
    assert "starts a service" in failure["message"]
