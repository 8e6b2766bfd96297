"""Worker and gateway are killed while a real harness works: its run is one run all the same, and one bill.

The provider is the test's own, so that what it was asked is counted apart from the ledger. The same run
shows where its secrets are: nowhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stack_harness import temporary_stack, wait_until
from tests.e2e.harness_runs import BUNDLES
from tests.e2e.own_provider import OwnProvider, own_provider
from tests.factories import tar_gz
from tests.running_platform import OWN_SOURCE, RunningPlatform

pytestmark = [pytest.mark.stack, pytest.mark.root, pytest.mark.timeout(400)]

STEPS = 6
# The second call is under way when something is killed, however busy this machine is.
LONG_CALL_SEC = 8.0
PROVIDER_KEY = "sk-canary-of-the-operator-0123456789"
# 2000 tokens in and 30 out a turn, at the price book's rate for the model.
SCRIPT = {
    "models": {
        "claude-opus-5-5": {
            "turns": [
                *(
                    {
                        "text": f"Step {step}.",
                        "shell": f"echo step-{step} >> /app/steps.txt",
                        "delay_sec": LONG_CALL_SEC if step == 2 else 1.0,
                        "usage": {"input_tokens": 2000, "output_tokens": 30},
                    }
                    for step in range(1, STEPS + 1)
                ),
                {"text": "All steps are made.", "usage": {"input_tokens": 2000, "output_tokens": 30}},
            ]
        }
    }
}
EXPECTED = "".join(f"step-{step}\\n" for step in range(1, STEPS + 1))
IS_EXPECTED = f'[ "$(cat /app/steps.txt; echo x)" = "$(printf \'{EXPECTED}\'; echo x)" ]'
TASK = {
    "steps/task.toml": (
        'schema_version = "1.3"\n[environment]\nnetwork_mode = "no-network"\nmemory_mb = 2048\n'
        "[agent]\ntimeout_sec = 240.0\n"
    ),
    "steps/instruction.md": "Make the steps.\n",
    "steps/environment/Dockerfile": "FROM evolve-test/debian:bookworm\nWORKDIR /app\n",
    "steps/tests/test.sh": (
        "mkdir -p /logs/verifier\n"
        f"if {IS_EXPECTED}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
        "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'\n"
    ),
}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnProvider]:
    scripts = tmp_path_factory.mktemp("scripts")
    (scripts / "steps.yaml").write_text(json.dumps(SCRIPT))  # JSON is YAML
    with own_provider(scripts) as running:
        yield running


@pytest.fixture(scope="module")
def platform(provider: OwnProvider) -> Iterator[RunningPlatform]:
    environment = {
        "EVOLVE_SANDBOX_PROVIDER": "local",
        "EVOLVE_UPSTREAMS": json.dumps({"anthropic": provider.url}),
        "EVOLVE_BUNDLES_DIR": os.environ.get("EVOLVE_TEST_BUNDLES", str(BUNDLES)),
        **OWN_SOURCE,
    }
    with temporary_stack(environment=environment) as stack:
        stack.up()
        set_key = stack.run("admin", "provider-key", "set", "anthropic", stdin=PROVIDER_KEY)
        assert set_key.returncode == 0, set_key.stderr
        running = RunningPlatform(stack)
        ended = running.send_archive("steps", tar_gz(TASK))
        assert ended["status"] == "COMPLETED", ended
        yield running
        running.close()


def run_claude(
    platform: RunningPlatform, provider: OwnProvider, key: str, disturb: Callable[[], object]
) -> dict[str, Any]:
    """One trial, disturbed when the agent has made two calls; with its pids before and after."""
    provider.calls.clear()
    body = {
        "datasets": [{"name": "steps"}],
        "agents": [{"name": "claude", "model_name": "opus"}],
        "retry": {"max_retries": 0},
    }
    job_id = platform.start_job(body, key)
    wait_until(lambda: len(provider.calls) >= 2, "the agent has called its model twice", 120)
    before = harness_pids()
    disturb()
    calls = len(provider.calls)
    wait_until(lambda: len(provider.calls) > calls, "the agent goes on", 120)
    after = harness_pids()
    platform.await_job(job_id, 240)
    [trial] = platform.trials(job_id)
    return {"trial": trial, "pids": (before, after)}


def harness_pids() -> set[str]:
    """Processes of this machine that run the harness's program out of its bundle."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program = os.readlink(process / "exe")
        except OSError:
            continue
        if "claude" in program and "node_modules" in program:
            found.add(process.name)
    return found


def ledger(platform: RunningPlatform, trial_id: str) -> list[dict[str, Any]]:
    return platform.rows(
        "SELECT c.* FROM gateway_calls c JOIN gateway_keys k ON k.id = c.key_id"
        " WHERE k.trial_id = $1 ORDER BY c.started_at",
        trial_id,
    )


def check_one_run(
    platform: RunningPlatform, provider: OwnProvider, run: dict[str, Any]
) -> list[dict[str, Any]]:
    """One process, each step once, each upstream call once in the ledger, no gap or double in the trace."""
    trial, (before, after) = run["trial"], run["pids"]
    assert before
    assert before == after
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0), trial["exception_info"]
    rows = ledger(platform, trial["id"])
    assert len(rows) == len(provider.calls)
    events = platform.ask("GET", f"/api/trials/{trial['id']}/trace", params={"limit": "1000"}).json()["items"]
    own = [event for event in events if event["seq"] < 1_000_000_000]
    assert [event["seq"] for event in own] == list(range(1, len(own) + 1))
    calls = [json.dumps(event["data"]) for event in own if event["type"] == "tool_call"]
    assert [f"step-{step}" in call for step, call in enumerate(calls, 1)] == [True] * STEPS
    assert "trace_loss" not in [event["type"] for event in own]
    assert len(events) - len(own) == len(rows)
    return rows


def test_a_killed_worker_changes_nothing_of_a_harness_run(
    platform: RunningPlatform, provider: OwnProvider
) -> None:
    run = run_claude(platform, provider, "worker", lambda: platform.stack.kill("worker"))
    rows = check_one_run(platform, provider, run)
    assert [row["status"] for row in rows] == ["measured"] * (STEPS + 1)
    assert run["trial"]["spend_source"] == "measured"


def test_a_call_that_a_killed_gateway_cut_is_booked_at_its_hold_and_asked_again(
    platform: RunningPlatform, provider: OwnProvider
) -> None:
    run = run_claude(platform, provider, "gateway", lambda: platform.stack.kill("gateway"))
    rows = check_one_run(platform, provider, run)
    assert sorted({row["status"] for row in rows}) == ["held", "measured"]
    [cut] = [row for row in rows if row["status"] == "held"]
    assert (cut["cost_nanos"], cut["is_upstream_cut"]) == (cut["hold_nanos"], True)
    measured = sum(row["cost_nanos"] for row in rows if row["status"] == "measured")
    trial = run["trial"]
    assert trial["spend_source"] == "measured_provisional"
    assert round(trial["agent_result"]["cost_usd"] * 1e9) == measured


def test_no_secret_is_where_it_should_not_be(platform: RunningPlatform, provider: OwnProvider) -> None:
    [trial_id, *_] = [row["id"] for row in platform.rows("SELECT id FROM trials")]
    assert PROVIDER_KEY in "".join(provider.keys), "the provider is given its key, and nobody else"
    home = platform.stack.home
    secrets = {"provider key": PROVIDER_KEY.encode(), "virtual key": b"evk-"}
    folders = ("blobs", "logs", "temporal", "pg")
    assert all(any((home / folder).iterdir()) for folder in folders)
    places = [path for folder in folders for path in (home / folder).rglob("*")]
    found = [
        f"the {name} is in {path}"
        for path in places
        if path.is_file()
        for name, secret in secrets.items()
        if secret in path.read_bytes()
    ]
    assert found == []
    files = platform.trial_files(trial_id)
    sealed = files["verifier/test-stdout.txt"]
    assert b"evk-" not in sealed, "the agent's key is in the box's environment after the agent is over"
