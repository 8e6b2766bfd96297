"""A peer judges our trajectories: Harbor's own validator reads one of each captured stream."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from activities.traces.atif import RunFacts, trajectory
from activities.traces.roster import PARSERS
from domain.trajectory import FinalMetrics, Trajectory, TrajectoryAgent
from tests.client.harbor_peer import ask_harbor

STREAMS = Path(__file__).parents[1] / "fixtures" / "streams"
NAMES = sorted(path.stem for path in STREAMS.glob("*.jsonl"))
PROMPT: tuple[str, dict[str, Any]] = ("prompt", {"_prompt": {"text": "create hello.txt"}})
MEASURED = FinalMetrics(
    total_prompt_tokens=260, total_completion_tokens=30, total_cached_tokens=40, total_cost_usd=0.0012
)


def run_of(lines: list[bytes], harness: str, **facts: Any) -> Trajectory:
    parser = PARSERS[harness]()
    events = [(event.type, event.data) for line in lines for event in parser.feed(line)]
    agent = TrajectoryAgent(name=harness, version="1.2.3", model_name="fake-model")
    built = trajectory([PROMPT, *events], RunFacts(agent, session_id=parser.report.session_id, **facts))
    assert built is not None
    return built


def captured(name: str, **facts: Any) -> Trajectory:
    return run_of((STREAMS / f"{name}.jsonl").read_bytes().splitlines(), name.split("-")[0], **facts)


def subagents_stream() -> list[bytes]:
    """claude with two subagents, one of which has one of its own."""

    turns = count()

    def line(kind: str, parent: str | None, *content: dict[str, Any]) -> bytes:
        message = {"id": f"msg-{next(turns)}", "content": content}
        return json.dumps({"type": kind, "parent_tool_use_id": parent, "message": message}).encode()

    def call(call_id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "Task", "input": {"prompt": call_id}}

    def text(words: str) -> dict[str, Any]:
        return {"type": "text", "text": words}

    def result(call_id: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": f"{call_id} is done"}

    return [
        line("assistant", None, call("a"), call("b")),
        line("user", "a", text("do a")),
        line("user", "b", text("do b")),
        line("assistant", "a", text("a works"), call("c")),
        line("assistant", "c", text("c works")),
        line("user", "a", result("c")),
        line("assistant", "b", text("b works")),
        line("user", None, result("b")),
        line("assistant", None, text("a was cut off")),
    ]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Harbor says of every trajectory."""
    folder = tmp_path_factory.mktemp("trajectories")
    runs = {name: captured(name, measured=MEASURED) for name in NAMES}
    runs["subagents"] = run_of(subagents_stream(), "claude", system_prompt="Be brief.")
    agent = TrajectoryAgent(name="codex")
    only_prompt = trajectory([PROMPT], RunFacts(agent))
    assert only_prompt is not None
    runs["prompt"] = only_prompt
    for name, run in runs.items():
        (folder / f"{name}.json").write_text(json.dumps(run.document()))
    return ask_harbor("harbor_reads_trajectories.py", folder)


def test_harbor_finds_nothing_wrong(judged: dict[str, Any]) -> None:
    assert {name: seen["errors"] for name, seen in judged.items()} == {name: [] for name in judged}
    assert {seen["version"] for seen in judged.values()} == {"ATIF-v1.7"}
    assert set(NAMES) < set(judged)


@pytest.mark.parametrize("harness", sorted(PARSERS))
def test_harbor_sees_the_turns(judged: dict[str, Any], harness: str) -> None:
    assert judged[harness]["sources"] == ["user", "agent", "agent"]
    assert len(judged[harness]["tools"]) == 1
    if harness != "kimi":  # it tells its end on stderr only
        assert judged[f"{harness}-refused402-midrun"]["sources"] == ["user", "agent", "system"]


def test_a_step_holds_what_was_said_called_and_given_back() -> None:
    first, second = captured("claude-toolfail").steps[1:]
    assert (first.message, first.reasoning_content) == ("I will create the file.", "Let me think about it.")
    assert first.tool_calls is not None
    call = first.tool_calls[0]
    assert (call.function_name, call.arguments) == ("Bash", {"command": "echo err >&2; exit 3"})
    assert first.observation is not None
    result = first.observation.results[0]
    assert (result.source_call_id, result.content) == (call.tool_call_id, "Exit code 3\nerr")
    assert result.extra == {"status": "failed"}
    assert (second.message, second.observation) == ("done", None)
    assert captured("opencode").steps[1].metrics is not None
    assert captured("gemini").steps[1].timestamp == "2026-11-30T17:33:01.487Z"


def test_metrics_are_the_gateways_or_null() -> None:
    assert captured("claude", measured=MEASURED).document()["final_metrics"] == {
        "total_prompt_tokens": 260, "total_completion_tokens": 30, "total_cached_tokens": 40,
        "total_cost_usd": 0.0012, "total_steps": 3,
    }  # fmt: skip
    assert captured("claude").document()["final_metrics"] == {"total_steps": 3}


def test_subagents_are_trajectories_of_their_calls(judged: dict[str, Any]) -> None:
    assert judged["subagents"]["subagents"] == 2
    run = run_of(subagents_stream(), "claude", system_prompt="Be brief.")
    assert [step.source for step in run.steps] == ["system", "user", "agent", "agent"]
    turn = run.steps[2]
    assert turn.observation is not None
    cut_off, done = turn.observation.results
    assert (cut_off.source_call_id, cut_off.content) == ("a", None)
    assert (done.source_call_id, done.content) == ("b", "b is done")
    assert run.subagent_trajectories is not None
    a, b = run.subagent_trajectories
    refs = [result.subagent_trajectory_ref or () for result in (cut_off, done)]
    assert [ref.trajectory_id for (ref,) in refs] == [a.trajectory_id, b.trajectory_id]
    assert [step.message for step in a.steps] == ["do a", "a works"]
    assert a.subagent_trajectories is not None
    assert [step.message for step in a.subagent_trajectories[0].steps] == ["c works"]
    assert [step.message for step in b.steps] == ["do b", "b works"]


def test_deltas_are_one_message_and_ids_may_be_used_again() -> None:
    def call(text: str) -> bytes:
        function = {"name": "Bash", "arguments": json.dumps({"command": text})}
        return json.dumps(
            {"role": "assistant", "tool_calls": [{"id": "call_1", "function": function}]}
        ).encode()

    def result(text: str) -> bytes:
        return json.dumps({"role": "tool", "tool_call_id": "call_1", "content": text}).encode()

    steps = run_of([call("one"), result("1"), call("two"), result("2")], "kimi").steps[1:]
    told = [(step.tool_calls or ())[0].arguments["command"] for step in steps]
    gave = [step.observation and step.observation.results[0].content for step in steps]
    assert (told, gave) == (["one", "two"], ["1", "2"])

    said = [
        b'{"type":"message","role":"assistant","content":"%s","delta":true}' % part for part in (b"a", b"b")
    ]
    assert [step.message for step in run_of(said, "gemini").steps[1:]] == ["ab"]


def test_what_was_lost_is_noted() -> None:
    assert "lost" in str(run_of([b'{"type": "assis'], "claude").notes)
    assert captured("claude").notes is None
