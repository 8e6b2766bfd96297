"""Real task.toml files: what Harbor accepts is run, put off by name, or refused for a documented reason.

The fixture holds 60 files of public repositories, reduced to their keys (free text replaced, `metadata`
dropped), chosen so that every key, type and mode of 287 real files occurs. `harbor` is the verdict of
Harbor 0.26's TaskConfig on the reduced text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from domain.errors import TaskError
from domain.support import unsupported_keys
from domain.tasks import TaskFiles, parse_task

CORPUS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "corpus" / "task_tomls.json").read_text(encoding="utf-8")
)
DOCUMENTED_REFUSALS = (
    "[environment].docker_image:",  # contract 6.8: untagged or :latest
    "[verifier].network_mode:",  # contract 6.8: a shared verifier shares the agent's network
    "[verifier].environment_mode:",  # contract 6.8: multi-step tasks require shared verification
    "[[steps]] ",  # contract 6.8: a network or verifier environment of a step
    "task.toml: not TOML",
    "task.toml: artifacts:",  # a bare string, refused by Harbor too
)


def verdict(toml: str) -> tuple[str, list[str]]:
    """`runs`, `not yet` with the keys that this release does not honour, or `refused` with the message."""
    try:
        task = parse_task("task", toml, TaskFiles())
    except TaskError as refusal:
        return "refused", [refusal.message]
    keys = [told.split(": ")[0] for told in unsupported_keys(task)]
    return ("not yet" if keys else "runs"), keys


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case["repository"])
def test_a_real_task_toml_gets_its_recorded_verdict(case: dict[str, Any]) -> None:
    here, told = verdict(case["toml"])
    assert here == case["here"], told
    if here == "refused":
        assert told[0].startswith(case["told"][0])
        assert told[0].startswith(DOCUMENTED_REFUSALS)
    else:
        assert told == case.get("told", [])


def test_only_documented_reasons_refuse_what_harbor_accepts() -> None:
    stricter = [case for case in CORPUS if case["harbor"] == "accept" and case["here"] == "refused"]
    assert {case["told"][0].replace("':", "'").split(":")[0] for case in stricter} == {
        "[environment].docker_image",
        "[verifier].network_mode",
        "[verifier].environment_mode",
        "[[steps]] 'both-offline' agent.network_mode",
        "[[steps]] 'matching-verifier' verifier.environment",
    }
