"""Streams captured from the real harnesses, as the events that a reader of them would restate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.traces.base import StreamParser, TraceEvent
from activities.traces.failures import stream_error
from activities.traces.roster import PARSERS

STREAMS = Path(__file__).parents[1] / "fixtures" / "streams"
NAMES = sorted(path.stem for path in STREAMS.glob("*.jsonl"))
HELLO = 'echo "Hello, world!" > /workspace/out/hello.txt'
FAILING = "echo err >&2; exit 3"


def read(name: str, stderr_end: str = "") -> tuple[list[TraceEvent], StreamParser]:
    parser = PARSERS[name.split("-")[0]]()
    lines = (STREAMS / f"{name}.jsonl").read_bytes().splitlines()
    events = [event for line in lines for event in parser.feed(line)]
    return [*events, *parser.end(stderr_end)], parser


def told(event: TraceEvent) -> tuple[Any, ...]:
    """An event in short: what a person would note of it."""
    update = event.data.get("update", {})
    assert event.type == update.get("sessionUpdate", event.type)
    match event.type:
        case "agent_thought_chunk":
            return ("thought", update["content"]["text"])
        case "agent_message_chunk":
            return ("said", update["content"]["text"])
        case "tool_call":
            return ("called", update["title"], update["kind"], update["rawInput"], update["status"])
        case "tool_call_update":
            output = update["content"][0]["content"]["text"]
            return ("got", update["status"], output, update.get("rawOutput", {}).get("exitCode"))
        case "usage":
            usage = update["usage"]
            assert update["scope"] == "call"
            assert "source" not in update
            return ("used", usage["promptTokens"], usage["completionTokens"], usage.get("extra"))
        case "plan":
            return ("planned", [(entry["content"], entry["status"]) for entry in update["entries"]])
        case "error":
            data = event.data
            return ("failed", data["kind"], data.get("httpStatus"), data["message"], data.get("attempt"))
        case _:
            return (event.type, event.data)


def call_of(name: str) -> tuple[Any, ...]:
    """What each harness's tool call and its result must have become."""
    harness, _, case = name.partition("-")
    if case == "mcp":
        return {
            "claude": ("mcp__labhttp__lab_echo", "other", {"text": "hi"}, "completed", "ECHO:hi", None),
            "codex": ("mcp__labstdio__lab_echo", "other", {"text": "hi"}, "completed", "ECHO:hi", None),
            "gemini": ("mcp_labhttp_lab_echo", "other", {"text": "hi"}, "completed", "ECHO:hi", None),
            "qwen": ("mcp__labstdio__lab_echo", "other", {"text": "hi"}, "completed", "ECHO:hi", None),
            "kimi": ("mcp__labhttp__lab_echo", "other", {"text": "hi"}, "completed", "ECHO:hi", None),
            "opencode": ("labhttp_lab_echo", "other", {"text": "hi"}, "completed", "ECHO:hi", None),
            "droid": (
                "ToolSearch", "search", {"query": "lab echo"}, "completed",
                'Loaded 1 tool(s) matching "lab echo": labstdio___lab_echo. These are in your tool list'
                " now; call them directly.", None,
            ),
        }[harness]  # fmt: skip
    if case == "toolfail":
        return {
            "claude": ("Bash", "execute", {"command": FAILING}, "failed", "Exit code 3\nerr", None),
            "codex": (
                "command_execution", "execute", {"command": f"/bin/bash -lc '{FAILING}'"}, "failed",
                "err\n", 3,
            ),
            # Neither the status nor a code tells it: the stream says success.
            "gemini": ("run_shell_command", "execute", {"command": FAILING}, "completed", "err", None),
            "qwen": ("run_shell_command", "execute", {"command": FAILING}, "completed", "err", None),
            "kimi": (
                "Bash", "execute", {"command": FAILING}, "failed",
                "err\nCommand failed with exit code: 3.", 3,
            ),
            "opencode": ("bash", "execute", {"command": FAILING}, "failed", "err\n", 3),
            "droid": (
                "Execute", "execute", {"command": FAILING, "summary": "create hello file"}, "failed",
                "Error: Command failed (exit code: 3)\nerr\n\n\n[Process exited with code 3]", None,
            ),
        }[harness]  # fmt: skip
    form = f"Command: {HELLO}\nDirectory: (root)\nOutput: (empty)\nError: (none)\nExit Code: 0\nSignal: 0\n"
    group = {"qwen": "21672", "qwen-refused402-midrun": "5446"}.get(name, "")
    return {
        "claude": (
            "Bash", "execute", {"command": HELLO}, "completed", "(Bash completed with no output)", None,
        ),
        "codex": (
            "command_execution", "execute", {"command": f"/bin/bash -lc '{HELLO}'"}, "completed", "", 0,
        ),
        "gemini": ("run_shell_command", "execute", {"command": HELLO}, "completed", "", None),
        "qwen": (
            "run_shell_command", "execute", {"command": HELLO}, "completed",
            f"{form}Process Group PGID: {group}", 0,
        ),
        "kimi": ("Bash", "execute", {"command": HELLO}, "completed", "Command executed successfully.", None),
        "opencode": ("bash", "execute", {"command": HELLO}, "completed", "(no output)", 0),
        "droid": (
            "Execute", "execute", {"command": HELLO, "summary": "create hello file"}, "completed",
            "Command completed successfully\n\n[Process exited with code 0]", None,
        ),
    }[harness]  # fmt: skip


THOUGHTS = {
    "claude": "Let me think about it.",
    "codex": "**Thinking** about it",
    "qwen": "Let me think.",
    "opencode": "Let me think.",
    "droid": "Let me think.",
}
"""gemini and kimi print none."""
PER_CALL = ("qwen", "opencode")
TOTALS = {"claude": "run", "codex": "turn", "gemini": "run", "droid": "run"}


def first_turn(name: str) -> Iterator[tuple[Any, ...]]:
    harness = name.split("-")[0]
    tool, kind, arguments, status, output, exit_code = call_of(name)
    if harness in THOUGHTS:
        yield ("thought", THOUGHTS[harness])
    yield ("said", "I will create the file.")
    yield ("called", tool, kind, arguments, "in_progress")
    if harness == "qwen":
        yield ("used", 130, 15, None)
    yield ("got", status, output, exit_code)
    if harness == "opencode":
        yield ("used", 130, 15, None)


def last_turn(name: str) -> Iterator[tuple[Any, ...]]:
    harness = name.split("-")[0]
    if harness in THOUGHTS:
        yield ("thought", THOUGHTS[harness])
    yield ("said", "done")
    if harness in PER_CALL:
        yield ("used", 130, 15, None)
    if harness in TOTALS:
        yield ("used", 260, 30, {"covers": TOTALS[harness]})


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.split("-")[1:] in ([], ["mcp"], ["toolfail"])]
)
def test_a_run_of_two_turns(name: str) -> None:
    events, parser = read(name)
    assert [told(event) for event in events] == [*first_turn(name), *last_turn(name)]
    report = parser.report
    assert (report.final_text, report.error, report.has_ended) == ("done", None, True)
    assert report.session_id
    if not name.startswith("kimi"):
        assert report.usage is not None
        usage = (report.usage.prompt_tokens, report.usage.completion_tokens, report.usage.cached_tokens)
        assert usage == (260, 30, 40)


def test_the_call_and_its_result_bear_one_id() -> None:
    for name in NAMES:
        updates = [event.data.get("update", {}) for event in read(name)[0]]
        called = [u["toolCallId"] for u in updates if u.get("sessionUpdate") == "tool_call"]
        answered = [u["toolCallId"] for u in updates if u.get("sessionUpdate") == "tool_call_update"]
        assert sorted(called) == sorted(answered), name


REFUSED = {
    "claude": (
        "API Error: 402 spend limit reached for this run",
        [("used", 130, 15, {"covers": "run"})],
        True,
    ),
    "gemini": (
        '[API Error: {"error":{"code":402,"message":"spend limit reached for this run",'
        '"status":"FAILED_PRECONDITION"}}]',
        [("used", 130, 15, {"covers": "run"})],
        True,
    ),
    "qwen": ("402 spend limit reached for this run", [], True),
    "opencode": ("spend limit reached for this run", [], False),
    "droid": ("402 spend limit reached for this run", [], False),
}


@pytest.mark.parametrize("harness", sorted(REFUSED))
def test_a_refusal_in_mid_run_is_the_runs_end(harness: str) -> None:
    name = f"{harness}-refused402-midrun"
    message, after, has_ended = REFUSED[harness]
    events, parser = read(name)
    assert [told(event) for event in events] == [
        *first_turn(name),
        ("failed", "budget", 402, message, None),
        *after,
    ]
    report = parser.report
    assert report.error == stream_error(message, status=402, kind="budget")
    assert report.has_ended is has_ended
    assert report.final_text == "I will create the file."


def test_codex_says_a_refusal_once_after_its_retries() -> None:
    name = "codex-refused402-midrun"
    message = (
        "unexpected status 402 Payment Required: spend limit reached for this run,"
        " url: http://gateway.invalid/v1/responses"
    )
    events, parser = read(name)
    retries = [
        ("failed", "budget", 402, f"Reconnecting... {attempt}/5 ({message})", attempt)
        for attempt in range(1, 6)
    ]
    end = ("failed", "budget", 402, message, None)
    assert [told(event) for event in events] == [*first_turn(name), *retries, end]
    assert parser.report.error == stream_error(message)


@pytest.mark.parametrize(
    ("stderr", "kind", "status"),
    [
        (
            "error: failed to run prompt: provider.api_error: 402 spend limit reached for this run\n",
            "budget",
            402,
        ),
        ("error: failed to run prompt: provider.auth_error: 401 no such key\n", "auth", 401),
        ("warning: x\nerror: failed to run prompt: provider.rate_limit: slow down\n", "rate_limit", None),
    ],
)
def test_kimi_tells_its_end_on_stderr(stderr: str, kind: str, status: int | None) -> None:
    name = "kimi-refused402-midrun"
    events, parser = read(name, stderr)
    assert [told(event) for event in events[:-1]] == list(first_turn(name))
    assert told(events[-1])[:3] == ("failed", kind, status)
    assert parser.report.error is not None
    assert parser.report.error.kind == kind


def test_retries_are_errors_that_end_nothing_by_themselves() -> None:
    events, parser = read("claude-retry401")
    message = "Invalid API key · Fix external API key"
    assert [told(event) for event in events] == [
        *(("failed", "auth", 401, "authentication_failed", attempt) for attempt in range(1, 11)),
        ("failed", "auth", None, message, None),
        ("used", 0, 0, {"covers": "run"}),
    ]
    assert [event.data.get("willRetry") for event in events[:11]] == [True] * 10 + [None]
    assert parser.report.error == stream_error(message, status=401)

    events, parser = read("kimi-retry429")
    assert [told(event) for event in events] == [
        ("failed", "rate_limit", 429, "429 rate limited", attempt) for attempt in range(1, 10)
    ]
    assert (parser.report.error, parser.report.has_ended) == (None, False)

    demand = "We’re currently experiencing high demand, which may cause temporary errors."
    events, parser = read("codex-retry500")
    assert [told(event)[1:] for event in events] == [
        *(("other", None, f"Reconnecting... {attempt}/5 ({demand})", attempt) for attempt in range(1, 6)),
        ("other", None, demand, None),
    ]
    assert parser.report.error == stream_error(demand)


def test_droid_says_what_happened_before_what_its_command_says() -> None:
    events, parser = read("droid-500")
    assert [told(event) for event in events] == [
        ("failed", "other", 500, "500 internal upstream error", None)
    ]
    assert parser.report.error == stream_error("500 internal upstream error")


@pytest.mark.parametrize(
    ("harness", "tool", "plan"),
    [
        ("claude", "TaskCreate", ("step one", "pending")),
        ("gemini", "write_todos", ("a", "pending")),
        ("qwen", "todo_write", ("a", "pending")),
        ("kimi", "TodoList", ("a", "pending")),
        ("opencode", "todowrite", ("a", "pending")),
    ],
)
def test_a_to_do_list_is_a_call_and_a_plan(harness: str, tool: str, plan: tuple[str, str]) -> None:
    seen = [told(event) for event in read(f"{harness}-todo")[0]]
    assert [event[1] for event in seen if event[0] == "called"] == [tool]
    assert [event[1] for event in seen if event[0] == "planned"] == [[plan]]
    assert ("said", "done") in seen


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_line_holds_the_parser_goes_on(name: str) -> None:
    """Every member of every line as another kind of value, and every line cut."""
    harness = name.split("-")[0]
    for line in (STREAMS / f"{name}.jsonl").read_bytes().splitlines():
        for broken in broken_forms(json.loads(line)):
            parser = PARSERS[harness]()
            for event in [*parser.feed(json.dumps(broken).encode()), *parser.end("")]:
                json.dumps(event.data)
        assert [e.type for e in PARSERS[harness]().feed(line[:-1])] == ["trace_loss"]


def broken_forms(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced or left out, one at a time."""
    if isinstance(value, dict):
        for key, item in value.items():
            for form in (None, 5, "x", [], {}, [{}], True):
                yield {**value, key: form}
            yield {name: other for name, other in value.items() if name != key}
            for form in broken_forms(item):
                yield {**value, key: form}
    elif isinstance(value, list) and value:
        for form in broken_forms(value[0]):
            yield [form, *value[1:]]


@pytest.mark.parametrize("harness", sorted(PARSERS))
def test_what_is_no_object_is_kept_apart(harness: str) -> None:
    parser = PARSERS[harness]()
    assert parser.feed(b"Invalid API key") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"[1, 2]") == []
    assert parser.report.stray_text == "Invalid API key\n[1, 2]\n"
    assert parser.feed(b'{"type": "of a later version", "role": "nobody"}') == []
    lost = parser.feed(b'{"type": "system", "subtype')
    assert [(event.type, event.data["bytes"]) for event in lost] == [("trace_loss", 27)]
    for depth in (100_000, 500):
        deep = b'{"type": "user", "role": "tool", "content": ' + b"[" * depth + b"]" * depth + b"}"
        assert parser.feed(deep)[0].type == "trace_loss"


def test_what_postgres_cannot_hold_is_replaced() -> None:
    parser = PARSERS["kimi"]()
    line = rb'{"role": "assistant", "content": "a\u0000b\ud800c", "tool_calls": [{"id": "1", "function":'
    line += rb' {"name": "n", "arguments": "{\"x\": 1e999, \"y\": NaN, \"z\": \"\\u0000\"}"}}]}'
    said, called = parser.feed(line)
    assert told(said) == ("said", "a\ufffdb?c")
    assert told(called)[3] == {"x": None, "y": None, "z": "\ufffd"}


def test_parallel_calls_are_matched_by_their_ids() -> None:
    parser = PARSERS["claude"]()
    events = [
        event
        for line in (
            '{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"a","name":"Read",'
            '"input":{}},{"type":"tool_use","id":"b","name":"Grep","input":{}}]}}',
            '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"b","content":"two"},'
            '{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"one"},'
            '{"type":"image","source":{}}]}]}}',
        )
        for event in parser.feed(line.encode())
    ]
    ids = [event.data["update"]["toolCallId"] for event in events]
    assert ids == ["a", "b", "b", "a"]
    assert told(events[3]) == ("got", "completed", "one\n[image]", None)


def test_a_subagents_words_name_the_call_that_made_it() -> None:
    parser = PARSERS["claude"]()
    parser.feed(b'{"type":"assistant","message":{"content":[{"type":"text","text":"mine"}]}}')
    said = parser.feed(
        b'{"type":"assistant","parent_tool_use_id":"task1","message":{"content":[{"type":"text",'
        b'"text":"theirs"}]}}'
    )
    assert said[0].data["update"]["parentToolCallId"] == "task1"
    assert parser.report.final_text == "mine"


def test_a_subagents_calls_are_told_from_its_makers() -> None:
    """claude prints a subagent's prompt and calls in between its maker's."""
    events = read("claude-subagent")[0]
    parents = [event.data.get("update", {}).get("parentToolCallId") for event in events]
    own, subs = "toolu_1_1", [event for event, parent in zip(events, parents, strict=True) if parent]
    assert parents == [None, None, own, None, own, own, None, None, None, None]
    assert [event.type for event in subs] == ["user_message_chunk", "tool_call", "tool_call_update"]
    assert told(events[1])[1:4] == (
        "Agent", "think", {"description": "sub", "prompt": "SUBTASK one", "subagent_type": "general-purpose"},
    )  # fmt: skip


def test_a_failure_that_was_got_over_is_not_the_runs_end() -> None:
    parser = PARSERS["opencode"]()
    parser.feed(b'{"type":"error","error":{"name":"APIError","data":{"message":"busy","statusCode":529}}}')
    assert parser.report.error is not None
    parser.feed(b'{"type":"text","part":{"text":"on we go"}}')
    assert parser.report.error is None


@pytest.mark.parametrize(
    ("message", "kind", "status"),
    [
        ("API Error: 401 invalid x-api-key", "auth", 401),
        ("API Error: 400 prompt is too long: 210000 tokens > 200000 maximum", "context_length", 400),
        (
            "stream disconnected before completion: Your input exceeds the context window",
            "context_length",
            None,
        ),
        ('[API Error: {"error":{"code":429,"message":"Resource has been exhausted"}}]', "rate_limit", 429),
        ("exceeded retry limit, last status: 429 Too Many Requests", "rate_limit", 429),
        ("Quota exceeded. Check your plan and billing details.", "budget", None),
        ("429 You exceeded your current quota: insufficient_quota", "budget", 429),
        ("API Error: this request appears to violate our Usage Policy", "safety_refusal", None),
        ("500 rate limiter crashed", "other", 500),
        ("line 402 of the file", "other", None),
        ("", "other", None),
    ],
)
def test_a_failures_kind_is_read_from_its_words(message: str, kind: str, status: int | None) -> None:
    error = stream_error(message)
    assert (error.kind, error.http_status) == (kind, status)
