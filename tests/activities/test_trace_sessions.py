"""What a harness does not print, out of its session file: lines shaped as the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from activities.traces.atif import RunFacts, trajectory
from activities.traces.base import chunk
from activities.traces.roster import PARSERS
from activities.traces.sessions import SESSION_FILES, records, subagents_of
from activities.traces.tools import tool_call, tool_result
from domain.trajectory import TrajectoryAgent

FIXTURES = Path(__file__).parents[1] / "fixtures"


def loop(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": "context.append_loop_event", "event": {"type": kind, **members}, "time": 1796077499506}


def lines(*items: dict[str, Any]) -> bytes:
    return b"\n".join([*(json.dumps(item).encode() for item in items), b'{"cut', b"[]", b""])


KIMI = lines(
    {"type": "metadata", "protocol_version": "1.5"},
    {"type": "profile.bind", "systemPrompt": "You are Kimi."},
    {"type": "turn.prompt", "input": [{"type": "text", "text": "do it"}]},
    loop("step.begin", step=1),
    loop("content.part", part={"type": "think", "think": "of a call that broke off"}),
    loop("step.begin", step=1),
    loop("content.part", part={"type": "think", "think": "first"}),
    loop("content.part", part={"type": "think", "think": "second"}),
    loop("tool.call", toolCallId="call_1", name="Bash", args={}),
    loop("tool.result", toolCallId="call_1", result={"output": "ok"}),
    loop("step.end", step=1),
    loop("step.begin", step=2),
    loop("content.part", part={"type": "text", "text": "done"}),
    loop("step.end", step=2),
    loop("step.begin", step=3),
)
GEMINI = lines(
    {"sessionId": "f11bd6f5", "kind": "main"},
    {"id": "u", "type": "user", "content": [{"text": "do it"}]},
    {"id": "a", "type": "gemini", "content": "", "thoughts": []},
    {"$set": {"lastUpdated": "2026-11-30T22:20:23.815Z"}},
    {"id": "a", "type": "gemini", "content": "", "toolCalls": [{"id": "1"}],
     "thoughts": [{"subject": "Plan", "description": "look"}, {"description": "then write"}]},
    {"id": "b", "type": "gemini", "content": "", "thoughts": [{"subject": "lost"}]},
    {"id": "c", "type": "gemini", "content": "done", "thoughts": []},
)  # fmt: skip


def test_kimis_loop_tells_thoughts_and_the_system_prompt() -> None:
    facts = SESSION_FILES["kimi"].read(records(KIMI))
    assert facts.thoughts == ("first\nsecond", "")
    assert facts.system_prompt == "You are Kimi."


def test_geminis_chat_tells_thoughts() -> None:
    facts = SESSION_FILES["gemini"].read(records(GEMINI))
    assert facts.thoughts == ("Plan: look\nthen write", "")
    assert facts.system_prompt is None


def test_a_sessions_file_is_found_by_its_id() -> None:
    kimi, gemini = SESSION_FILES["kimi"], SESSION_FILES["gemini"]
    home = "agent/.kimi-code/sessions/wd_work_54fa/session_a31e/agents"
    assert kimi.is_at(f"{home}/main/wire.jsonl", "session_a31e")
    assert not kimi.is_at(f"{home}/sub/wire.jsonl", "session_a31e")
    assert not kimi.is_at(f"{home}/main/wire.jsonl", "session_b")
    chat = "agent/.gemini/tmp/work/chats/session-2026-11-30T22-20-f11bd6f5.jsonl"
    assert gemini.is_at(chat, "f11bd6f5-8d37-484f-937b-5d3a66f20a17")


def test_thoughts_go_to_their_turns_when_the_turns_agree() -> None:
    events = [
        tool_call("call_1", "Bash", {}),
        tool_result("call_1", "ok", is_failed=False),
        chunk("agent_message_chunk", "done"),
    ]
    told = [(event.type, event.data) for event in events]

    def reasoning(*thoughts: str) -> list[str | None]:
        built = trajectory(told, RunFacts(TrajectoryAgent(name="kimi"), thoughts=thoughts))
        assert built is not None
        return [step.reasoning_content for step in built.steps]

    assert reasoning("why", "") == ["why", None]
    assert reasoning("why") == [None, None]


def test_qwens_broken_call_is_an_error_behind_its_text() -> None:
    parser = PARSERS["qwen"]()
    text = "half a sen[API Error: terminated (cause: other side closed)]"
    usage = {"input_tokens": 0, "output_tokens": 0}
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": text}], "usage": usage}}
    result = {"type": "result", "subtype": "success", "is_error": False, "result": text}
    events = [event for line in (said, result) for event in parser.feed(json.dumps(line).encode())]
    assert [event.type for event in events] == ["agent_message_chunk", "error"]
    assert parser.report.error is not None
    assert parser.report.error.message == "terminated (cause: other side closed)"
    # An agent that only speaks of one: its message was metered.
    said["message"]["usage"] = {"input_tokens": 9, "output_tokens": 1}
    parser = PARSERS["qwen"]()
    for line in (said, result):
        parser.feed(json.dumps(line).encode())
    assert parser.report.error is None


def test_a_subagents_run_is_whole_out_of_its_transcript() -> None:
    parser = PARSERS["claude"]()
    stream = (FIXTURES / "streams" / "claude-subagent.jsonl").read_bytes()
    printed = [(event.type, event.data) for line in stream.splitlines() for event in parser.feed(line)]
    subagents = subagents_of(
        {path.name: path.read_bytes() for path in (FIXTURES / "sessions" / "claude-subagent").iterdir()}
    )
    assert list(subagents) == ["toolu_1_1"]
    run = trajectory(printed, RunFacts(TrajectoryAgent(name="claude"), subagents=subagents))
    assert run is not None
    assert run.subagent_trajectories is not None
    (sub,) = run.subagent_trajectories
    assert [(step.source, step.message) for step in sub.steps] == [
        ("user", "SUBTASK one"),
        ("agent", "sub starts"),
        ("agent", "sub is done"),
    ]
    assert sub.steps[1].observation is not None
    assert [step.message for step in run.steps] == ["I delegate.", "done"]
    assert subagents_of({"agent-x.meta.json": b'{"toolUseId": "a"}', "agent-y.jsonl": b"{}"}) == {}
