"""Real harnesses through a task of two steps: a conversation, a key and a verdict of its own for each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.harness_runs import (
    CALL_NANOS,
    INSTRUCTION,
    MODEL,
    NAMES_OF_STDOUT,
    PATIENCE_SEC,
    TOKENS,
    Place,
    harness_platform,
)
from tests.running_platform import RunningPlatform

pytestmark = [pytest.mark.stack, pytest.mark.root, pytest.mark.timeout(900)]

STEPS_TOML = """
[[steps]]
name = "write"
min_reward = 1.0
[[steps]]
name = "write again"
[steps.verifier]
env = {EXPECTED = "Hello, world!"}
[steps.healthcheck]
command = "test -e /app/ready"
interval_sec = 1
"""
# As the agent's user, who may not be root; what the step before hid is gone.
SETUP = """
if [ -e /tests ] || [ -e /logs/verifier ]; then echo "hidden tests are left"; exit 5; fi
mv hello.txt before.txt && : > ready
"""
SHARED_CHECK = 'check() { [ "$(cat "$1")" = "$2" ]; }\n'
FIRST_TEST = """
. /tests/check.sh
check /app/hello.txt "Hello, world!" && echo 1 > /logs/verifier/reward.txt
"""
SECOND_TEST = """
. /tests/check.sh
check /app/hello.txt "$EXPECTED" && check /app/before.txt "$EXPECTED"
printf '{"reward": 1, "kept": %s}' "$((1 - $?))" > /logs/verifier/reward.json
"""


def tree(place: Place) -> dict[str, str]:
    single = {path.partition("/")[2]: text for path, text in place.tree().items()}
    task = {
        "task.toml": single["task.toml"] + STEPS_TOML,
        "environment/Dockerfile": single["environment/Dockerfile"],
        "tests/check.sh": SHARED_CHECK,
        "steps/write/instruction.md": INSTRUCTION,
        "steps/write/tests/test.sh": FIRST_TEST,
        "steps/write again/instruction.md": f"Once more. {INSTRUCTION}",
        "steps/write again/tests/test.sh": SECOND_TEST,
        "steps/write again/workdir/setup.sh": SETUP,
    }
    return {f"steps/{path}": text for path, text in task.items()}


@pytest.mark.parametrize(
    ("place", "harness"),
    [
        (Place("local"), "claude"),
        pytest.param(Place("docker", is_root=False), "codex", marks=pytest.mark.docker),
    ],
    ids=["local-claude", "docker-codex"],
)
def test_a_harness_goes_through_two_steps(place: Place, harness: str) -> None:
    with harness_platform(place.provider) as platform:
        trial = run(platform, place, harness)
        assert (trial["status"], trial["reward"]) == ("SCORED", 1.0), (
            trial["exception_info"],
            trial["step_results"],
        )
        assert trial["verifier_result"]["rewards"] == {"reward": 1.0, "kept": 0.5}
        check_steps(trial)
        check_money(platform, trial)
        check_trace(platform, trial)
        check_files(platform.trial_files(trial["id"]), harness)
        assert platform.left_in_the_store() == {}


def run(platform: RunningPlatform, place: Place, harness: str) -> dict[str, Any]:
    platform.publish("steps", tree(place))
    body = {
        "datasets": [{"name": "steps"}],
        "agents": [{"name": harness, "model_name": MODEL}],
        "sandbox_provider": place.provider,
        "retry": {"max_retries": 0},
    }
    job = platform.await_job(platform.start_job(body, "steps"), PATIENCE_SEC)
    [trial] = platform.trials(job["id"])
    return trial


def check_steps(trial: dict[str, Any]) -> None:
    first, second = trial["step_results"]
    assert [step["step_name"] for step in (first, second)] == ["write", "write again"]
    for step in (first, second):
        assert {name: step["agent_result"][name] for name in TOKENS} == TOKENS
        assert step["agent_result"]["cost_usd"] == sum(CALL_NANOS) / 1e9
    assert first["verifier"]["finished_at"] <= second["agent_execution"]["started_at"]


def check_money(platform: RunningPlatform, trial: dict[str, Any]) -> None:
    """Each conversation starts anew, so the model's script does; the second key's cap is what is left."""
    keys = platform.rows(
        "SELECT step, spent_nanos, cap_nanos, revoked_at FROM gateway_keys WHERE trial_id = $1"
        " ORDER BY created_at",
        trial["id"],
    )
    spent = sum(CALL_NANOS)
    assert [(key["step"], key["spent_nanos"]) for key in keys] == [("write", spent), ("write again", spent)]
    assert keys[0]["cap_nanos"] - keys[1]["cap_nanos"] == spent
    assert all(key["revoked_at"] is not None for key in keys)
    assert trial["agent_result"]["cost_usd"] == 2 * spent / 1e9


def check_trace(platform: RunningPlatform, trial: dict[str, Any]) -> None:
    events = platform.ask("GET", f"/api/trials/{trial['id']}/trace", params={"limit": "1000"}).json()["items"]
    own = [event for event in events if event["seq"] < 1_000_000_000]
    assert [event["seq"] for event in own] == list(range(1, len(own) + 1))
    prompts = [event["data"]["step"] for event in own if event["type"] == "prompt"]
    assert prompts == ["write", "write again"]
    assert len([event for event in own if event["type"] == "tool_call"]) == 2
    assert len(events) - len(own) == 2 * len(CALL_NANOS)


def check_files(files: dict[str, bytes], harness: str) -> None:
    for step in ("write", "write again"):
        assert files[f"steps/{step}/agent/{NAMES_OF_STDOUT[harness]}"]
    assert json.loads(files["steps/write/verifier/reward.json"]) == {"reward": 1.0}
    assert json.loads(files["steps/write again/verifier/reward.json"]) == {"reward": 1, "kept": 1}
    trajectory = json.loads(files["agent/trajectory.json"])
    asked = [step["message"] for step in trajectory["steps"] if step["source"] == "user"]
    assert asked == [INSTRUCTION, f"Once more. {INSTRUCTION}"]
    sessions = [path for path in files if path.startswith("agent/sessions/") and path.endswith(".jsonl")]
    assert len(sessions) == 2
    leaking = [path for path, content in files.items() if b"evk-" in content]
    assert not leaking, f"a virtual key is in {leaking}"
