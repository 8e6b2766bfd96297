"""A failed attempt number is retired and another follows, as the job's policy says: contract 6.3."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from activities import close
from store.trial_reads import find_file, retired_output
from tests.factories import task_files
from tests.inprocess import Platform
from workflows import names, options
from workflows.options import Pace

QUICK = {"min_wait_sec": 0.01}
SLOW = {"min_wait_sec": 3600, "max_wait_sec": 3600}


async def start(platform: Platform, retry: dict[str, Any], **changes: Any) -> Any:
    await platform.publish("demo", task_files("alpha", solve="solve\nprint solving\n"))
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "retry": retry, **changes}
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )


async def run(platform: Platform, retry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    handle = await start(platform, retry, **changes)
    end: dict[str, Any] = await asyncio.wait_for(handle.result(), 240)
    return end


async def the_trial(platform: Platform) -> dict[str, Any]:
    [trial] = await platform.rows("SELECT * FROM trials")
    return trial


async def events(platform: Platform) -> list[tuple[str, dict[str, Any]]]:
    """Those of trials: type and data, in order."""
    rows = await platform.rows("SELECT type, payload FROM job_events WHERE type LIKE 'trial.%' ORDER BY seq")
    return [(str(row["type"]).removeprefix("trial."), row["payload"]) for row in rows]  # pyright: ignore


async def until(platform: Platform, condition: str) -> dict[str, Any]:
    """The trial's row once it fulfils the condition."""
    while True:
        rows = await platform.rows(f"SELECT * FROM trials WHERE {condition}")
        if rows:
            return rows[0]
        await asyncio.sleep(0.02)


async def left_behind(platform: Platform) -> list[Any]:
    boxes: list[Any] = [p.name for p in platform.provider.boxes.iterdir()]
    return boxes + await platform.rows("SELECT * FROM box_leases WHERE state <> 'gone'")


async def test_a_trial_whose_box_died_is_scored_by_its_next_attempt(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    end = await run(platform, QUICK)
    assert (end["status"], end["by_status"]["SCORED"], end["mean_reward"]) == ("COMPLETED", 1, 1.0)
    trial = await the_trial(platform)
    assert (trial["attempt_number"], trial["n_retries"], trial["status"]) == (2, 1, "SCORED")
    [retired] = trial["retries"]
    assert retired["attempt_number"] == 1
    assert retired["exception_info"]["exception_type"] == "InfrastructureError"
    assert retired["x_signature"] == "sandbox_death"
    assert retired["started_at"] < retired["settled_at"]
    assert [kind for kind, _ in await events(platform)] == [
        "running", "settled", "retrying", "running", "scoring", "settled",
    ]  # fmt: skip
    assert await left_behind(platform) == []


async def test_the_events_of_a_retry_say_what_the_contract_says(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    await run(platform, {**QUICK, "max_retries": 3})
    trial = await the_trial(platform)
    settled, retrying = (await events(platform))[1:3]
    assert settled[1]["status"] == "INFRASTRUCTURE_ERROR"
    assert settled[1]["attempt_phase"] == "agent"
    assert retrying[1] == {
        "trial_id": trial["id"], "task_name": "demo", "retry": 1, "max_retries": 3, "delay_sec": 0.01,
        "exception_type": "InfrastructureError",
    }  # fmt: skip


async def test_job_statistics_are_those_of_the_last_attempts(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    await run(platform, QUICK)
    [job] = await platform.rows("SELECT by_status, totals FROM jobs")
    totals: Any = job["totals"]
    assert (totals["n_retries"], totals["n_errored_trials"]) == (1, 0)
    [group] = await platform.rows("SELECT n_settled, n_rewarded, n_errors, reward_sum FROM job_groups")
    assert group == {"n_settled": 1, "n_rewarded": 1, "n_errors": 0, "reward_sum": 1.0}


async def test_a_trial_whose_retries_are_used_up_is_an_infrastructure_error(platform: Platform) -> None:
    platform.provider.faults.plan("create", "create-failure")
    platform.provider.faults.plan("agent", "death", "disconnect")
    end = await run(platform, QUICK)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    trial = await the_trial(platform)
    assert (trial["attempt_number"], len(trial["retries"])) == (3, 2)
    assert [kind for kind, _ in await events(platform)].count("settled") == 3


async def test_without_retries_the_first_failure_is_the_end(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    end = await run(platform, {"max_retries": 0})
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    assert (await the_trial(platform))["retries"] == []


async def test_an_excluded_failure_is_not_retried(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    end = await run(platform, {**QUICK, "exclude_exceptions": ["InfrastructureError"]})
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1


async def test_the_same_failure_twice_breaks_the_circuit(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death", "death")
    end = await run(platform, {**QUICK, "max_retries": 5})
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    trial = await the_trial(platform)
    told = await events(platform)
    assert [kind for kind, _ in told] == [
        "running", "settled", "retrying", "running", "settled", "retry_circuit_broken",
    ]  # fmt: skip
    assert told[-1][1] == {
        "trial_id": trial["id"], "task_name": "demo", "signature": "sandbox_death", "consecutive": 2,
        "failure_phase": "agent", "max_retries": 5, "retries_unused": 4,
        "exception_message": "death at agent",
    }  # fmt: skip
    message = trial["result"]["exception_info"]["exception_message"]
    assert "4 of 5 retries unused" in message


async def test_output_of_a_retired_attempt_is_withheld(platform: Platform) -> None:
    platform.provider.faults.plan("verifier", "death")
    await run(platform, QUICK)
    trial = await the_trial(platform)
    rows = await platform.rows("SELECT path FROM trial_files WHERE attempt_number = 1")
    assert "agent/oracle.txt" in {row["path"] for row in rows}
    newest = trial | {"attempt_number": 3}
    assert await find_file(platform.db, newest, "agent/oracle.txt") is None
    reason = await retired_output(platform.db, newest, "agent/oracle.txt")
    assert reason == "attempt number 2 was retried, and its output is not the trial's"
    assert await platform.rows("SELECT FROM stream_chunks") == []


async def test_a_cancel_ends_a_back_off_at_once(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    handle = await start(platform, SLOW)
    await until(platform, "n_retries = 1")
    await handle.signal(names.SIGNAL_CANCEL)
    end = await asyncio.wait_for(handle.result(), 60)
    assert (end["status"], end["by_status"]["CANCELLED"]) == ("CANCELLED", 1)
    trial = await the_trial(platform)
    assert (trial["status"], trial["attempt_number"], len(trial["retries"])) == ("CANCELLED", 2, 1)


async def test_a_stop_ends_a_back_off_at_once(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    handle = await start(platform, SLOW)
    await until(platform, "n_retries = 1")
    await handle.signal(names.SIGNAL_STOP_TRIALS, [0])
    end = await asyncio.wait_for(handle.result(), 60)
    assert (end["status"], end["by_status"]["CANCELLED"]) == ("COMPLETED", 1)
    assert [kind for kind, _ in await events(platform)] == ["running", "settled", "retrying", "settled"]


async def test_a_failure_while_the_job_is_being_cancelled_is_not_retried(platform: Platform) -> None:
    platform.provider.barriers.hold("persist")
    platform.provider.faults.plan("agent", "death")
    handle = await start(platform, QUICK)
    await until(platform, "phase = 'persist'")
    await handle.signal(names.SIGNAL_CANCEL)
    await until(platform, "EXISTS (SELECT FROM jobs WHERE status = 'CANCELLING')")
    platform.provider.barriers.release("persist")
    end = await asyncio.wait_for(handle.result(), 60)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    assert (await the_trial(platform))["retries"] == []


async def test_a_trial_that_an_operator_ends_in_its_back_off_is_closed(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "RECONCILE_AFTER", options.timedelta(seconds=1))
    platform.provider.faults.plan("agent", "death")
    handle = await start(platform, SLOW)
    trial = await until(platform, "n_retries = 1")
    await platform.client.get_workflow_handle(f"trial/{trial['id']}").terminate("an operator")
    end = await asyncio.wait_for(handle.result(), 60)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    trial = await the_trial(platform)
    assert (trial["attempt_number"], len(trial["retries"])) == (2, 1)


async def test_a_close_whose_answer_got_lost_retires_its_attempt_once(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_streams, n_calls = close.drop_streams, 0

    async def drop_and_lose_the_first_answer(*arguments: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        await drop_streams(*arguments)
        if n_calls == 1:
            raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(close, "drop_streams", drop_and_lose_the_first_answer)
    platform.provider.faults.plan("agent", "death")
    end = await run(platform, QUICK)
    assert end["by_status"]["SCORED"] == 1
    assert [kind for kind, _ in await events(platform)] == [
        "running", "settled", "retrying", "running", "scoring", "settled",
    ]  # fmt: skip
    assert n_calls == 3


async def test_a_command_whose_answer_got_lost_runs_once(platform: Platform) -> None:
    platform.provider.faults.plan("agent-launched", "reply-lost")
    platform.provider.faults.plan("verifier-launched", "reply-lost")
    end = await run(platform, {"max_retries": 0})
    assert end["by_status"]["SCORED"] == 1
    assert platform.provider.executions() == ["agent", "verifier"]


async def test_a_provider_without_capacity_is_waited_for_and_that_is_no_retry(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_CAPACITY", Pace(0.02, 0.05))
    platform.provider.faults.plan("create", *["429"] * 5)
    end = await run(platform, {"max_retries": 0})
    assert end["by_status"]["SCORED"] == 1
    trial = await the_trial(platform)
    assert (trial["n_retries"], trial["attempt_number"]) == (0, 1)
    wait = trial["result"]["x_capacity_wait"]
    assert (wait["n_refusals"], wait["waiting_for"]) == (5, "429 at create")
    assert wait["waited_sec"] > 0
    assert wait["until"] is not None
    told = await events(platform)
    assert [kind for kind, _ in told] == ["running", *["waiting"] * 5, "scoring", "settled"]
    assert told[1][1]["waiting_for"] == "429 at create"
    assert len({data["since"] for kind, data in told if kind == "waiting"}) == 5
    assert await left_behind(platform) == []


async def test_the_wait_for_a_provider_has_an_end_of_its_own(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_CAPACITY", Pace(0.02, 0.05))
    monkeypatch.setattr(options, "CAPACITY_BUDGET", options.timedelta(seconds=0.1))
    platform.provider.faults.plan("create", *["429"] * 50)
    end = await run(platform, QUICK)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    trial = await the_trial(platform)
    assert (trial["n_retries"], trial["retries"]) == (0, [])
    assert "no capacity" in trial["result"]["exception_info"]["exception_message"]


async def test_while_it_waits_for_its_provider_a_trial_says_so_and_holds_no_room(platform: Platform) -> None:
    platform.provider.faults.plan("create", "429")
    handle = await start(platform, QUICK)
    trial = await until(platform, "phase = 'prepare' AND result ? 'x_capacity_wait'")
    wait = trial["result"]["x_capacity_wait"]
    assert (trial["status"], wait["waiting_for"], wait["until"]) == ("RUNNING", "429 at create", None)
    await until(platform, "NOT EXISTS (SELECT FROM box_leases WHERE state <> 'gone')")
    await handle.signal(names.SIGNAL_CANCEL)
    end = await asyncio.wait_for(handle.result(), 60)
    assert end["by_status"]["CANCELLED"] == 1


async def test_a_trial_waits_for_room_on_a_full_host_and_then_runs(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_ROOM", Pace(0.02, 0.05))
    pool = await platform.db.pool()
    await platform.publish("other", task_files("beta"))
    [host] = await platform.rows("SELECT id, memory_mb FROM hosts")
    await pool.execute(
        "INSERT INTO box_leases (name, host_id, provider, trial_id, attempt_number, cpus, memory_mb, state,"
        " reserved_at) VALUES ('other', $1, 'local', '-', 1, 1, $2, 'live', now())",
        host["id"],
        host["memory_mb"],
    )
    handle = await start(platform, QUICK)
    trial = await until(platform, "result ? 'x_capacity_wait'")
    assert (trial["status"], trial["result"]["x_capacity_wait"]["until"]) == ("QUEUED", None)
    await pool.execute("UPDATE box_leases SET state = 'gone' WHERE name = 'other'")
    end = await asyncio.wait_for(handle.result(), 60)
    assert end["by_status"]["SCORED"] == 1
