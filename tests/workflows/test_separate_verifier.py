"""A separate verifier: a fresh box that sees what the agent's box handed on, and nothing else of it."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from typing import Any
from uuid import uuid4

import pytest

from store.verifier_inputs import verifier_inputs
from tests.factories import TASK_TOML, task_files
from tests.inprocess import Platform
from tests.waiting import eventually, until
from workflows import names, options

SEPARATE = TASK_TOML.replace("[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n')
JUDGE_ONLY_WHAT_ARRIVES = "reward 0\nreward-if-solved 1\nreward-if /app/private 0.25\nprint tested\n"


def separate_task(artifacts: str = '["/app/solved"]', **changes: str) -> dict[str, str]:
    words = {"solve": "solve\nmake /app/private\n", "test": JUDGE_ONLY_WHAT_ARRIVES, **changes}
    toml = words.pop("toml", SEPARATE)
    return task_files("alpha", toml=f"artifacts = {artifacts}\n{toml}", **words)


async def start(platform: Platform, files: dict[str, str]) -> Any:
    assert await platform.publish("demo", files) == "COMPLETED"
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "retry": {"max_retries": 0}}
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )


async def run(platform: Platform, files: dict[str, str]) -> Any:
    await asyncio.wait_for((await start(platform, files)).result(), 80)
    [trial] = await platform.rows("SELECT id, status, reward, result, sandbox_id FROM trials")
    return trial


async def boxes(platform: Platform) -> list[str]:
    """The roles of the boxes that there are."""
    [installation] = await platform.rows("SELECT id FROM installation")
    return [listing.tag.role for listing in await platform.provider.list(str(installation["id"]))]


async def test_it_judges_only_what_the_task_hands_on(platform: Platform) -> None:
    trial = await run(platform, separate_task())
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0)
    result = trial["result"]
    assert result["verifier_environment_mode"] == "separate"
    assert result["verifier_sandbox_id"] not in (None, trial["sandbox_id"])
    assert {"environment_setup", "agent_execution", "verifier", "x_verifier_boot"} <= set(result)
    assert await boxes(platform) == []
    leases = await platform.rows("SELECT DISTINCT state FROM box_leases")
    assert leases == [{"state": "gone"}]


async def test_without_artifacts_even_the_reference_solution_scores_zero(platform: Platform) -> None:
    trial = await run(platform, separate_task("[]"))
    assert (trial["status"], trial["reward"]) == ("SCORED", 0.0)


async def test_what_it_judged_is_kept_with_the_trial_and_for_a_regrade(platform: Platform) -> None:
    trial = await run(platform, separate_task('[{source = "/app", exclude = ["private"]}]'))
    kept = await platform.rows("SELECT path, blob_key FROM trial_files ORDER BY path")
    paths = [row["path"] for row in kept]
    assert "artifacts/app/solved" in paths
    assert "artifacts/app/private" not in paths
    assert {"verifier/reward.txt", "verifier/test-stdout.txt"} <= set(paths)
    manifest = next(row["blob_key"] for row in kept if row["path"] == "artifacts/manifest.json")
    entries = json.loads(await platform.blobs.get(str(manifest)))
    assert [(entry["source"], entry["status"]) for entry in entries] == [
        ("/logs/artifacts", "empty"),
        ("/app", "ok"),
    ]
    inputs = await verifier_inputs(platform.db, trial["id"], 1)
    assert inputs is not None
    assert (inputs.network.mode, inputs.folders) == ("no-network", ("/app",))
    [package] = await platform.rows("SELECT package_key, package_sha256 FROM dataset_tasks")
    assert (inputs.package_key, inputs.package_sha256) == tuple(package.values())
    with tarfile.open(fileobj=io.BytesIO(await platform.blobs.get(inputs.artifacts_key))) as tar:
        assert tar.getnames() == ["app", "app/solved"]


async def test_pre_artifacts_and_hooks_run_in_the_agents_box_before_it_goes(platform: Platform) -> None:
    files = separate_task(
        "[]",
        toml=f'{SEPARATE}\n[[verifier.collect]]\ncommand = "make /logs/artifacts/collected"\n',
        test="reward 0\nreward-if /logs/artifacts/patch 0.5\nreward-if /logs/artifacts/collected 1\n",
    )
    trial = await run(platform, {**files, "alpha/pre_artifacts.sh": "make /logs/artifacts/patch\n"})
    assert trial["reward"] == 1.0
    paths = {row["path"] for row in await platform.rows("SELECT path FROM trial_files")}
    assert {"artifacts/logs/artifacts/patch", "artifacts/logs/artifacts/collected"} <= paths


async def test_a_script_that_fails_is_told_and_what_is_there_is_judged(platform: Platform) -> None:
    files = {**separate_task(), "alpha/pre_artifacts.sh": "print no repository\nexit 128\n"}
    trial = await run(platform, files)
    assert trial["reward"] == 1.0
    assert trial["result"]["x_handover"]["problems"] == [
        "pre_artifacts.sh ended with exit code 128: no repository"
    ]


async def test_in_shared_mode_they_run_before_the_tests_come(platform: Platform) -> None:
    test = "reward 0\nreward-if /logs/artifacts/patch 0.5\nreward-if-solved 1\n"
    files = {
        **task_files("alpha", test=test),
        "alpha/pre_artifacts.sh": "delete /app/solved\nmake /logs/artifacts/patch",
    }
    assert (await run(platform, files))["reward"] == 0.5


async def test_the_agents_box_gives_its_room_to_the_verifiers(platform: Platform) -> None:
    platform.provider.barriers.hold("verifier")
    handle = await start(platform, separate_task())
    await eventually(lambda: platform.provider.barriers.reached("verifier"))
    assert await boxes(platform) == ["verifier"]
    leases = await platform.rows("SELECT name, state FROM box_leases ORDER BY name")
    assert [(str(row["name"]).rsplit("-", 1)[1], row["state"]) for row in leases] == [
        ("agent", "gone"),
        ("verifier", "live"),
    ]
    platform.provider.barriers.release("verifier")
    await asyncio.wait_for(handle.result(), 80)


async def test_a_cancel_while_it_runs_leaves_no_box(platform: Platform) -> None:
    platform.provider.barriers.hold("verifier")
    handle = await start(platform, separate_task())
    await eventually(lambda: platform.provider.barriers.reached("verifier"))
    await handle.signal(names.SIGNAL_CANCEL)
    end = await asyncio.wait_for(handle.result(), 80)
    assert end["by_status"]["CANCELLED"] == 1
    assert await boxes(platform) == []


async def test_a_verifiers_box_that_dies_is_no_zero(platform: Platform) -> None:
    platform.provider.barriers.hold("verifier")
    handle = await start(platform, separate_task())
    await eventually(lambda: platform.provider.barriers.reached("verifier"))
    [lease] = await platform.rows("SELECT box_id FROM box_leases WHERE state = 'live'")
    await platform.provider.destroy(str(lease["box_id"]))
    await asyncio.wait_for(handle.result(), 80)
    [trial] = await platform.rows("SELECT status, reward FROM trials")
    assert trial == {"status": "INFRASTRUCTURE_ERROR", "reward": None}


async def test_an_environment_of_its_own_gives_it_other_variables(platform: Platform) -> None:
    toml = f'{SEPARATE}\n[verifier.environment]\nenv = {{MODE = "grade"}}\nnetwork_mode = "no-network"\n'
    trial = await run(platform, separate_task(toml=toml))
    assert trial["reward"] == 1.0
    env = platform.provider.environment(trial["result"]["verifier_sandbox_id"], "verifier")
    assert env == {"MODE": "grade"}


async def test_a_script_that_would_need_an_index_fails_its_import_by_name(platform: Platform) -> None:
    header = '# /// script\n# dependencies = ["pandas"]\n# ///\n'
    files = {**task_files("alpha", test="uv run /tests/check.py\n"), "alpha/tests/check.py": header}
    assert await platform.publish("demo", files) == "FAILED"
    [task] = await platform.rows("SELECT failure FROM dataset_tasks")
    failure: Any = task["failure"]
    assert "tests/check.py: needs pandas" in failure["message"]


async def test_a_verifier_that_needs_more_room_waits_for_it_and_says_so(platform: Platform) -> None:
    large = f"{SEPARATE}\n[verifier.environment]\nmemory_mb = 999_999\n"
    files = {**separate_task(toml=large), **task_files("beta"), "beta/environment/barrier": "beta"}
    platform.provider.barriers.hold("agent.beta")
    handle = await start(platform, files)
    query = "SELECT result -> 'x_capacity_wait' AS wait, phase FROM trials WHERE task_name = 'alpha'"

    async def waits() -> bool:
        return any(row["wait"] for row in await platform.rows(query))

    await until(waits)
    [row] = await platform.rows(query)
    wait: Any = row["wait"]
    assert (row["phase"], wait["until"]) == ("verify", None)
    assert "999999 MB" in wait["waiting_for"]
    platform.provider.barriers.release("agent.beta")
    end = await asyncio.wait_for(handle.result(), 80)
    assert (end["by_status"]["SCORED"], end["mean_reward"]) == (2, 1.0)
    [row] = await platform.rows(query)
    wait = row["wait"]
    assert wait["until"] is not None


async def test_it_is_asked_for_its_health_only_before_its_tests_begin(platform: Platform) -> None:
    checked = f'{SEPARATE}\n[environment.healthcheck]\ncommand = "unhealthy 0"\ninterval_sec = 0.01\n'
    platform.provider.faults.plan("verifier-launched", "reply-lost")
    trial = await run(platform, separate_task(toml=checked))
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0)
    assert platform.provider.faults.left("verifier-launched") == 0
    probed = (platform.provider.boxes.parent / "probes").read_text().split()
    assert probed.count(trial["result"]["verifier_sandbox_id"]) == 1


async def test_it_holds_no_room_while_its_provider_has_no_capacity(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_CAPACITY", options.Pace(2, 2))
    platform.provider.barriers.hold("create-verifier")
    handle = await start(platform, separate_task())
    await eventually(lambda: platform.provider.barriers.reached("create-verifier"))
    platform.provider.faults.plan("create", "429")
    platform.provider.barriers.release("create-verifier")
    leases: list[Any] = []

    async def waits() -> bool:
        leases[:] = await platform.rows(
            "SELECT b.state FROM box_leases b JOIN trials t ON t.id = b.trial_id"
            " WHERE t.phase = 'prepare' AND t.result #>> '{x_capacity_wait,until}' IS NULL"
        )
        return len(leases) == 2 and {lease["state"] for lease in leases} == {"gone"}

    await asyncio.wait_for(until(waits), 20)
    end = await asyncio.wait_for(handle.result(), 80)
    assert end["by_status"]["SCORED"] == 1
