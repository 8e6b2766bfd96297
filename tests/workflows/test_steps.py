"""A multi-step trial: one box, one step after another, each with its own agent, verifier and key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from store.step_results import step_results
from tests.factories import STEPS_TOML, step_files
from tests.inprocess import Platform
from tests.waiting import eventually
from workflows import names


async def run(
    platform: Platform, files: Mapping[str, str], *, agent: str = "oracle", retries: int = 0
) -> Any:
    await platform.publish("demo", dict(files))
    body = {
        "datasets": [{"name": "demo"}], "agents": [{"name": agent}],
        "retry": {"max_retries": retries, "min_wait_sec": 0.01},
    }  # fmt: skip
    await asyncio.wait_for(
        platform.client.execute_workflow(
            names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
        ),
        60,
    )
    [trial] = await platform.rows("SELECT * FROM trials")
    return trial


def rewards(trial: Any) -> list[Any]:
    """Of each step that was begun, its rewards or the type of its exception."""
    return [
        step["verifier_result"]["rewards"] if step["verifier_result"]
        else step["exception_info"] and step["exception_info"]["exception_type"]
        for step in trial["result"]["step_results"]
    ]  # fmt: skip


async def kept(platform: Platform, trial: Any) -> dict[str, bytes]:
    rows = await platform.rows("SELECT path, blob_key FROM trial_files WHERE trial_id = $1", trial["id"])
    return {str(row["path"]): await platform.blobs.get(str(row["blob_key"])) for row in rows}


async def test_steps_run_in_one_box_one_after_another_and_score_together(platform: Platform) -> None:
    files = step_files(**{"steps__two__tests__test.sh": "reward 0.5\nprint second\n"})
    trial = await run(platform, files)
    assert (trial["status"], trial["reward"]) == ("SCORED", 0.75)
    assert trial["result"]["verifier_result"] == {"rewards": {"reward": 0.75}}
    assert rewards(trial) == [{"reward": 1.0}, {"reward": 0.5}]
    assert platform.provider.executions() == ["agent-1", "verifier-1", "agent-2", "verifier-2"]
    assert len(await platform.rows("SELECT FROM box_leases")) == 1


async def test_each_step_tells_its_agent_its_verifier_and_their_times(platform: Platform) -> None:
    trial = await run(platform, step_files())
    for step, name in zip(trial["result"]["step_results"], ("one", "two"), strict=True):
        assert step["step_name"] == name
        assert step["agent_result"]["metadata"]["exit_code"] == 0
        assert step["agent_execution"]["started_at"] <= step["verifier"]["started_at"]
        assert step["exception_info"] is None
    assert trial["result"]["agent_result"]["cost_usd"] == 0


async def test_outputs_of_a_step_are_kept_in_its_own_folder(platform: Platform) -> None:
    files = step_files(
        **{
            "steps__two__tests__test.sh": "reward 1\nprint second\n",
            "steps__two__solution__solve.sh": "print my own\nmake /logs/agent/a.log\n",
        }
    )
    found = await kept(platform, await run(platform, files))
    assert found["steps/one/verifier/test-stdout.txt"] == b"tested\n"
    assert found["steps/two/verifier/test-stdout.txt"] == b"second\n"
    assert found["steps/two/verifier/reward.txt"] == b"1"
    assert found["steps/two/agent/oracle.txt"] == b"my own\n"
    assert "steps/two/agent/a.log" in found
    assert "steps/one/agent/a.log" not in found
    assert not [path for path in found if path.startswith(("agent/", "verifier/"))]


async def test_the_next_agent_sees_no_tests_of_the_step_before(platform: Platform) -> None:
    look = "solve\nlook /tests/test.sh\nlook /logs/verifier/reward.txt\nlook /app/solved\n"
    files = step_files(**{"solution__solve.sh": look})
    found = await kept(platform, await run(platform, files))
    assert found["steps/two/agent/oracle.txt"].decode().splitlines() == [
        "/tests/test.sh is not there", "/logs/verifier/reward.txt is not there", "/app/solved is there",
    ]  # fmt: skip


async def test_tests_of_a_step_lie_over_the_shared_ones(platform: Platform) -> None:
    tests = {
        "steps__two__tests__test.sh": "reward-if /tests/shared.txt 0.25\n",
        "steps__one__tests__own.txt": "",
        "tests__test.sh": "reward 0\nreward-if /tests/own.txt 1\n",
    }
    assert rewards(await run(platform, step_files(**tests))) == [{"reward": 1.0}, {"reward": 0.25}]


async def test_a_steps_files_are_laid_and_its_setup_runs_first(platform: Platform) -> None:
    files = step_files(
        **{
            "steps__two__workdir__given.txt": "",
            "steps__two__workdir__setup.sh": "make /app/ready\nmake /app/solved\n",
            "steps__two__solution__solve.sh": "look /app/given.txt\nlook /app/ready\n",
            "solution__solve.sh": "look /app/given.txt\n",
        }
    )
    trial = await run(platform, files)
    found = await kept(platform, trial)
    assert found["steps/one/agent/oracle.txt"] == b"/app/given.txt is not there\n"
    assert found["steps/two/agent/oracle.txt"] == b"/app/given.txt is there\n/app/ready is there\n"
    assert rewards(trial) == [{"reward": 0.0}, {"reward": 1.0}]
    assert platform.provider.executions()[2:4] == ["setup-2", "agent-2"]


async def test_a_step_that_scores_too_little_ends_the_trial(platform: Platform) -> None:
    toml = STEPS_TOML.replace('"one"', '"one"\nmin_reward = 0.5', 1)
    trial = await run(platform, step_files(toml=toml, **{"solution__solve.sh": "print no\n"}))
    assert (trial["status"], trial["reward"]) == ("SCORED", 0.0)
    assert rewards(trial) == [{"reward": 0.0}]
    assert platform.provider.executions() == ["agent-1", "verifier-1"]


async def test_the_last_steps_result_can_be_the_trials(platform: Platform) -> None:
    # Before the first table, where the file's own keys stand.
    toml = f"[metadata]\na = 1\n{STEPS_TOML}"
    files = step_files(toml=toml, **{"steps__two__tests__test.sh": "reward 0.25\n"})
    files["alpha/task.toml"] = f'multi_step_reward_strategy = "final"\n{files["alpha/task.toml"]}'
    assert (await run(platform, files))["reward"] == 0.25


async def test_a_setup_that_fails_ends_the_trial_with_what_was_scored(platform: Platform) -> None:
    files = step_files(**{"steps__two__workdir__setup.sh": "print went wrong\nexit 3\n"})
    trial = await run(platform, files, retries=2)
    assert (trial["status"], trial["reward"], trial["n_retries"]) == ("SCORED", 1.0, 0)
    assert rewards(trial) == [{"reward": 1.0}, "InfrastructureError"]
    told = trial["result"]["step_results"][1]["exception_info"]["exception_message"]
    assert told == "step two: setup.sh ended with 3: went wrong"
    assert "agent-2" not in platform.provider.executions()


async def test_a_first_step_that_cannot_start_is_no_score(platform: Platform) -> None:
    check = '"one"\nhealthcheck = {command = "unhealthy 9", interval_sec = 0.01}'
    trial = await run(platform, step_files(toml=STEPS_TOML.replace('"one"', check, 1)))
    assert (trial["status"], trial["reward"]) == ("INFRASTRUCTURE_ERROR", None)
    assert (
        "step one: the healthcheck failed 3 times" in trial["result"]["exception_info"]["exception_message"]
    )
    assert platform.provider.executions() == []
    assert trial["result"]["agent_result"] is None


async def test_a_slow_step_is_waited_for(platform: Platform) -> None:
    check = '"two"\nhealthcheck = {command = "unhealthy 2", interval_sec = 0.01}'
    trial = await run(platform, step_files(toml=STEPS_TOML.replace('"two"', check, 1)))
    assert trial["reward"] == 1.0


async def test_a_verifier_that_crashes_ends_the_trial_without_a_score(platform: Platform) -> None:
    files = step_files(**{"steps__one__tests__test.sh": "print crashed\nexit 1\n"})
    trial = await run(platform, files)
    assert (trial["status"], trial["reward"]) == ("SCORING_ERROR", None)
    assert rewards(trial) == ["ScoringError"]
    assert "crashed" in trial["result"]["exception_info"]["exception_message"]


async def test_a_box_that_dies_in_the_second_step_starts_again_from_the_first(platform: Platform) -> None:
    platform.provider.faults.plan("agent-2", "death")
    trial = await run(platform, step_files(), retries=1)
    assert (trial["status"], trial["reward"], trial["n_retries"]) == ("SCORED", 1.0, 1)
    assert rewards(trial) == [{"reward": 1.0}, {"reward": 1.0}]
    assert platform.provider.executions().count("agent-1") == 2


async def test_a_box_that_dies_for_good_leaves_what_its_steps_came_to(platform: Platform) -> None:
    platform.provider.faults.plan("agent-2", "death")
    trial = await run(platform, step_files())
    assert (trial["status"], trial["reward"]) == ("INFRASTRUCTURE_ERROR", None)
    assert rewards(trial) == [{"reward": 1.0}, "InfrastructureError"]


async def test_prompts_of_all_steps_stand_in_one_trace(platform: Platform) -> None:
    trial = await run(platform, step_files(), agent="nop")
    events = await platform.rows("SELECT seq, type, data FROM trace_events ORDER BY seq")
    assert [(event["seq"], event["type"], event["data"]) for event in events] == [
        (1, "prompt", {"_prompt": {"text": "First.\n"}, "step": "one"}),
        (2, "prompt", {"_prompt": {"text": "Second.\n"}, "step": "two"}),
    ]
    assert rewards(trial) == [{"reward": 0.0}, {"reward": 0.0}]


async def test_a_stop_in_the_second_step_is_told_there(platform: Platform) -> None:
    platform.provider.barriers.hold("agent-2")
    await platform.publish("demo", step_files())
    job = await platform.client.start_workflow(
        names.JOB_WORKFLOW,
        {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]},
        id="stopped",
        task_queue=platform.queue,
    )
    await eventually(lambda: platform.provider.barriers.reached("agent-2"))
    [trial] = await platform.rows("SELECT id, status, phase FROM trials")
    assert (trial["status"], trial["phase"]) == ("RUNNING", "agent")
    assert [step["step_name"] for step in await step_results(platform.db, str(trial["id"]))] == ["one", "two"]
    await job.signal(names.SIGNAL_CANCEL)
    await job.result()
    [trial] = await platform.rows("SELECT * FROM trials")
    assert trial["status"] == "CANCELLED"
    assert rewards(trial) == [{"reward": 1.0}, "CancelledError"]
