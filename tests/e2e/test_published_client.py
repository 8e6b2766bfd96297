"""The published client, unmodified, from publish to delete over a whole stack with real local boxes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from evolve import HostedClientConfig, HostedEvolve
from evolve.hosted import JobEvent, Trial
from temporalio.client import Client

from tests.cli.stack_harness import Stack, temporary_stack
from tests.cut_proxy import cut_proxy

pytestmark = pytest.mark.stack
EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
SLEEPER = {
    "task.toml": 'schema_version = "1.3"\n[environment]\nnetwork_mode = "no-network"\n',
    "instruction.md": "Wait.\n",
    "environment/Dockerfile": "FROM python:3.12-bookworm\nWORKDIR /app\n",
    "solution/solve.sh": "echo waiting; sleep 600\n",
    "tests/test.sh": "echo 1 >/logs/verifier/reward.txt\n",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with temporary_stack(environment={"EVOLVE_SANDBOX_PROVIDER": "local"}) as running:
        running.up()
        yield running


@pytest.fixture
def client(stack: Stack) -> HostedEvolve:
    return HostedEvolve(HostedClientConfig(base_url=stack.api_url, api_key=_key(stack)))


def _key(stack: Stack) -> str:
    return str(json.loads((stack.home / "credentials.json").read_text())["api_key"])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def arm(name: str) -> dict[str, str | None]:
    return {"name": name, "model_name": None}


async def publish(client: HostedEvolve, directory: Path, name: str) -> None:
    accepted = await client.datasets.publish(directory=str(directory), name=name, version="1")
    settled = await client.datasets.watch_import(accepted.id, poll_interval_s=0.2)
    assert settled.status == "COMPLETED"


async def test_a_job_from_publish_to_delete(stack: Stack, client: HostedEvolve, tmp_path: Path) -> None:
    await publish(client, EXAMPLES, "examples")
    job = await client.jobs.start(datasets=[{"name": "examples"}], agents=[arm("oracle"), arm("nop")])
    seen, cuts = await _watch_through_cuts(stack, job.id)
    assert cuts >= 2
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type == "job.completed"

    done = await client.jobs.get(job.id)
    assert (done.status, done.trials.by_status["SCORED"]) == ("COMPLETED", 16)
    assert job.id in [row.id for row in (await client.jobs.list()).items]
    trials = [trial async for trial in client.jobs.trials(job.id, limit=5)]
    assert {(t.agent_info.name, t.reward) for t in trials} == {("oracle", 1.0), ("nop", 0.0)}
    tasks = [task async for task in client.jobs.tasks(job.id)]
    assert {task.mean_reward for task in tasks} == {0.5}

    solved = next(t for t in trials if t.reward == 1.0 and t.task_name == "hello-file")
    assert (await client.trials.trace(solved.id)).items[0].type == "prompt"
    assert {file.path for file in (await client.trials.files(solved.id)).items} >= {"verifier/reward.txt"}
    assert (await client.trials.file(solved.id, "verifier/reward.txt")).strip() == b"1"
    archive = Path(await client.jobs.download(job.id, to=str(tmp_path)))
    again = Path(await client.jobs.download(job.id, to=str(tmp_path / "again")))
    assert _digest(archive) == _digest(again)

    assert (await client.jobs.delete(job.id)).trials_deleted == 16
    assert job.id not in [row.id for row in (await client.jobs.list()).items]


async def test_stop_and_cancel_reach_what_runs(client: HostedEvolve, tmp_path: Path) -> None:
    for path, text in SLEEPER.items():
        file = tmp_path / "wait" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    await publish(client, tmp_path, "sleepers")
    job = await client.jobs.start(
        datasets=[{"name": "sleepers"}], agents=[arm("oracle")], n_attempts=3, n_concurrent_trials=2
    )
    await _until_agents_run(client, job.id, 2)
    first, *_ = [trial async for trial in client.jobs.trials(job.id)]
    await client.trials.stop([first.id])
    stopped = await _settled(client, first.id)
    await _until_agents_run(client, job.id, 2)
    assert (stopped.status, stopped.exception_info.exception_type) == ("CANCELLED", "CancelledError")
    assert await client.trials.artifact(first.id, "trace-stdout") == "waiting\n"

    assert (await client.jobs.cancel(job.id)).status == "CANCELLING"
    async for _ in client.jobs.watch(job.id):
        pass
    assert (await client.jobs.get(job.id)).trials.by_status["CANCELLED"] == 3
    assert (await client.jobs.cancel(job.id)).status == "CANCELLED"


async def _watch_through_cuts(stack: Stack, job_id: str) -> tuple[list[JobEvent], int]:
    """All events as the client sees them on a network that cuts its stream; and the number of cuts."""
    seen: list[JobEvent] = []
    cuts = 0
    async with cut_proxy(int(stack.environment["EVOLVE_API_PORT"])) as proxy:
        config = HostedClientConfig(base_url=f"http://127.0.0.1:{proxy.port}", api_key=_key(stack))
        async for event in HostedEvolve(config).jobs.watch(job_id, reconnect_delay_s=0.1):
            seen.append(event)
            if len(seen) in (5, 12, 20):
                cuts += proxy.cut()
    return seen, cuts


async def _settled(client: HostedEvolve, trial_id: str) -> Trial:
    while True:
        trial = await client.trials.get(trial_id)
        if trial.finished_at is not None:
            return trial
        await asyncio.sleep(0.2)


async def _until_agents_run(client: HostedEvolve, job_id: str, count: int) -> None:
    while True:
        phases = [trial.attempt_phase async for trial in client.jobs.trials(job_id, status=["RUNNING"])]
        if phases.count("agent") == count:
            return
        await asyncio.sleep(0.2)


async def test_a_temporal_client_starts_asks_and_reads(stack: Stack, client: HostedEvolve) -> None:
    await publish(client, EXAMPLES, "examples")
    address = f"127.0.0.1:{stack.environment['EVOLVE_TEMPORAL_PORT']}"
    temporal = await Client.connect(address, namespace="evolve")
    body = {"datasets": [{"name": "examples", "task_names": ["hello-*"]}], "agents": [arm("oracle")]}
    handle = await temporal.start_workflow("JobWorkflow", body, id="from-temporal", task_queue="evolve")
    result = await handle.result()
    assert (result["status"], result["mean_reward"]) == ("COMPLETED", 1.0)
    assert (await handle.query("progress"))["n_settled"] == 1
    assert (await client.jobs.get(result["job_id"])).status == "COMPLETED"
    this = f"JobId = '{result['job_id']}'"
    trial = f"{this} AND Agent = 'oracle' AND TaskName = 'hello-file' AND Outcome = 'SCORED'"
    assert [run.workflow_type async for run in temporal.list_workflows(trial)] == ["TrialWorkflow"]
    job = f"{this} AND Outcome = 'COMPLETED'"
    assert [run.workflow_type async for run in temporal.list_workflows(job)] == ["JobWorkflow"]
