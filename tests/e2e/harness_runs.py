"""Real harnesses, from the package registry, against the scripted model: what each run must come to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.cli.stack_harness import SOURCE, temporary_stack
from tests.client.harbor_peer import ask_harbor
from tests.running_platform import OWN_SOURCE, RunningPlatform

HARNESSES = ("claude", "codex", "gemini", "qwen", "kimi", "opencode", "droid")
MODEL = "scripted/hello"
EXAMPLE = SOURCE / "examples" / "tasks" / "hello-file"
INSTRUCTION = (EXAMPLE / "instruction.md").read_text()
COMMAND = r"printf 'Hello, world!\n' > /app/hello.txt"
# What examples/scripted/hello.yaml bills for its two turns: 1200 × 3 + 300 × 0.3 + 40 × 15 dollars a million,
# and 100 × 3 + 1500 × 0.3 + 12 × 15.
CALL_NANOS = [4_290_000, 930_000]
TOKENS = {"n_input_tokens": 3100, "n_cache_tokens": 1800, "n_output_tokens": 52}
# Bundles are large and never change: they are kept from run to run.
BUNDLES = Path.home() / ".cache" / "evolve-test" / "bundles"
PATIENCE_SEC = 420

TEST_SCRIPT = """#!/bin/sh
mkdir -p /logs/verifier
if [ "$(cat /app/hello.txt)" = "Hello, world!" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
# The example's own Dockerfile is for machines that can fetch its image; `local` needs none.
DOCKERFILES = {
    "glibc": "FROM evolve-test/debian:bookworm\nWORKDIR /app\n",
    "musl": "FROM evolve-test/busybox:1\nWORKDIR /app\n",
}
ADD_USER = {
    "glibc": "RUN useradd --create-home dev && chown dev /app\nUSER dev\n",
    "musl": (
        "RUN echo dev:x:1000:1000::/home/dev:/bin/sh >> /etc/passwd && mkdir -p /home/dev"
        " && chown 1000:1000 /home/dev /app\nUSER dev\n"
    ),
}
NAMES_OF_STDOUT = {
    "claude": "claude-code.txt",
    "codex": "codex.txt",
    "gemini": "gemini-cli.txt",
    "qwen": "qwen-code.txt",
    "kimi": "kimi-code.txt",
    "opencode": "opencode.txt",
    "droid": "droid.txt",
}
# Where each keeps the session of its run, below HOME, with what the model said in it.
SESSIONS = {
    "claude": ".claude/projects/-app/*.jsonl",
    "codex": ".codex/sessions/*/*/*/rollout-*.jsonl",
    "gemini": ".gemini/tmp/*/chats/session-*.jsonl",
    "qwen": ".qwen/projects/-app/chats/*.jsonl",
    "kimi": ".kimi-code/sessions/*/*/agents/main/wire.jsonl",
    "opencode": ".local/share/opencode/opencode.db*",
    "droid": ".factory/sessions/-app/*.jsonl",
}
LAST_WORDS = "The file is written."


@dataclass(frozen=True)
class Place:
    """Where a harness runs: the provider, the image's C library, and whether the agent is root."""

    provider: str
    libc: str = "glibc"
    is_root: bool = True

    @property
    def task(self) -> str:
        return f"hello-{self.libc}-{'root' if self.is_root else 'user'}"

    def tree(self) -> dict[str, str]:
        """The example task's files: as they are on `local`, else on an image of this machine.

        Its tests are run by bash, which the image with musl has not: there they are our own.
        """
        files = {
            str(path.relative_to(EXAMPLE)): path.read_text() for path in EXAMPLE.rglob("*") if path.is_file()
        }
        if self.provider != "local" or not self.is_root:
            files["environment/Dockerfile"] = DOCKERFILES[self.libc] + (
                "" if self.is_root else ADD_USER[self.libc]
            )
        if self.libc == "musl":
            files["tests/test.sh"] = TEST_SCRIPT
        return {f"{self.task}/{name}": text for name, text in files.items()}


@contextmanager
def harness_platform(provider: str) -> Iterator[RunningPlatform]:
    """A stack whose gateway has the scripted models."""
    environment = {
        "EVOLVE_SANDBOX_PROVIDER": provider,
        "EVOLVE_SCRIPTED_UPSTREAM": str(SOURCE / "examples" / "scripted"),
        "EVOLVE_BUNDLES_DIR": os.environ.get("EVOLVE_TEST_BUNDLES", str(BUNDLES)),
        **OWN_SOURCE,
    }
    with temporary_stack(environment=environment) as stack:
        stack.up()
        platform = RunningPlatform(stack)
        try:
            yield platform
        finally:
            platform.close()


def run_harnesses(platform: RunningPlatform, place: Place, harnesses: tuple[str, ...]) -> dict[str, Any]:
    """One trial of each on the place's task, one after the other; the trials by harness, the job as `job`."""
    platform.publish(place.task, place.tree())
    body = {
        "datasets": [{"name": place.task}],
        "agents": [{"name": name, "model_name": MODEL} for name in harnesses],
        "n_concurrent_trials": 1,
        "sandbox_provider": place.provider,
        "agent_timeout_multiplier": 2.0,
        "retry": {"max_retries": 0},
    }
    job = platform.await_job(platform.start_job(body, place.task), PATIENCE_SEC)
    return {"job": job} | {t["agent_info"]["name"]: t for t in platform.trials(job["id"])}


def check_run(platform: RunningPlatform, harness: str, trial: dict[str, Any]) -> None:
    """Score, money, trace, transcript and home of one run are what the script makes them."""
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0), trial["exception_info"]
    check_money(platform, trial)
    check_trace(platform, trial)
    check_files(platform.trial_files(trial["id"]), harness)


def check_money(platform: RunningPlatform, trial: dict[str, Any]) -> None:
    calls = platform.rows(
        "SELECT c.status, c.cost_nanos, k.revoked_at FROM gateway_calls c"
        " JOIN gateway_keys k ON k.id = c.key_id WHERE k.trial_id = $1 ORDER BY c.started_at",
        trial["id"],
    )
    assert [(call["status"], call["cost_nanos"]) for call in calls] == [
        ("measured", nanos) for nanos in CALL_NANOS
    ]
    assert all(call["revoked_at"] is not None for call in calls)
    result = trial["agent_result"]
    assert {name: result[name] for name in TOKENS} == TOKENS
    assert (result["cost_usd"], trial["spend_source"]) == (sum(CALL_NANOS) / 1e9, "measured")
    assert (trial["usage"]["spent_usd"], trial["usage"]["provisional"]) == (sum(CALL_NANOS) / 1e9, False)


def check_trace(platform: RunningPlatform, trial: dict[str, Any]) -> None:
    events = platform.ask("GET", f"/api/trials/{trial['id']}/trace", params={"limit": "1000"}).json()["items"]
    types = [event["type"] for event in events]
    assert (events[0]["seq"], types[0]) == (1, "prompt")
    assert "trace_loss" not in types
    assert "error" not in types
    [call] = [event for event in events if event["type"] == "tool_call"]
    assert "hello.txt" in json.dumps(call["data"])
    said = "".join(
        event["data"]["update"]["content"]["text"]
        for event in events
        if event["type"] == "agent_message_chunk"
    )
    assert "I will write the file." in said
    assert said.endswith(LAST_WORDS)
    gateway = [event["data"]["update"] for event in events if event["seq"] >= 1_000_000_000]
    assert [round(line["usage"]["costUsd"] * 1e9) for line in gateway] == CALL_NANOS


def check_files(files: dict[str, bytes], harness: str) -> None:
    assert files[f"agent/{NAMES_OF_STDOUT[harness]}"]
    trajectory = json.loads(files["agent/trajectory.json"])
    assert trajectory["schema_version"] == "ATIF-v1.7"
    assert trajectory["final_metrics"]["total_cost_usd"] == sum(CALL_NANOS) / 1e9
    check_home(files, harness)
    leaking = [path for path, content in files.items() if b"evk-" in content]
    assert not leaking, f"the virtual key is in {leaking}"


def check_home(files: dict[str, bytes], harness: str) -> None:
    """What the record of the home says was kept is what was downloaded, and its session is among it."""
    kept = json.loads(files["agent/agent-home.json"])["files"]
    told = {file["path"]: (file["size"], file["sha256"]) for file in kept}
    held = {path: _size_and_digest(files[f"agent/{path}"]) for path in told}
    assert held == told
    sessions = [path for path in told if fnmatchcase(path, SESSIONS[harness])]
    assert any(LAST_WORDS.encode() in files[f"agent/{path}"] for path in sessions), sorted(told)


def _size_and_digest(content: bytes) -> tuple[int, str]:
    return len(content), hashlib.sha256(content).hexdigest()


def check_trajectories(platform: RunningPlatform, runs: dict[str, Any], folder: Path) -> None:
    """Harbor's own validator finds nothing wrong, and counts a prompt, two turns and a call."""
    for harness, trial in runs.items():
        content = platform.trial_files(trial["id"])["agent/trajectory.json"]
        (folder / f"{harness}.json").write_bytes(content)
    judged = ask_harbor("harbor_reads_trajectories.py", folder)
    assert set(judged) == set(runs)
    for harness, seen in judged.items():
        assert (harness, seen["errors"]) == (harness, [])
        assert seen["version"] == "ATIF-v1.7"
        assert (harness, seen["sources"][-3:]) == (harness, ["user", "agent", "agent"])
        assert (harness, len(seen["tools"])) == (harness, 1)
