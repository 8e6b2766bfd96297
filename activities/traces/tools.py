"""Tool calls as events: which kind a tool is of, a call, its result, and the plan that some calls write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from activities.traces.base import TraceEvent, members, plan_event, update_event, word

_KINDS: dict[str, str] = {
    name: kind
    for kind, names in {
        "execute": "bash bashoutput killshell run_shell_command execute command_execution shell exec_command"
        " write_stdin script",
        "read": "read read_file read_many_files readfile view_image readmediafile",
        "edit": "edit multiedit write write_file replace create applypatch apply_patch patch file_change"
        " notebookedit strreplacefile writefile",
        "search": "grep glob ls list list_directory grep_search search_file_content codesearch toolsearch"
        " tool_search",
        "fetch": "webfetch web_fetch fetchurl websearch web_search google_web_search searchweb",
        "think": "task agent sendmessage collab_tool_call todowrite todo_write write_todos todolist"
        " settodolist todo_list taskcreate taskupdate taskget tasklist",
    }.items()
    for name in names.split()
}
_PLAN_TOOLS = frozenset({"todowrite", "todo_write", "write_todos", "todolist", "settodolist"})


def kind_of_tool(name: str) -> str:
    """ACP's kind of a tool by the name a harness gives it; `other` for one we do not know."""
    return _KINDS.get(name.lower(), "other")


def tool_call(call_id: str, name: str, arguments: Any, **also: Any) -> TraceEvent:
    """A call under way. `title` is the tool's name, `rawInput` its arguments as the model gave them."""
    return update_event(
        "tool_call",
        {
            "toolCallId": call_id,
            "title": name,
            "kind": kind_of_tool(name),
            "status": "in_progress",
            "rawInput": arguments,
        },
        **also,
    )


def call_events(call_id: str, name: str, arguments: Any, **also: Any) -> Iterator[TraceEvent]:
    """A call under way, and the plan that it writes, if it is a tool for that."""
    yield tool_call(call_id, name, arguments, **also)
    plan = plan_of(name, arguments)
    if plan is not None:
        yield plan_event(plan, **also)


def tool_result(
    call_id: str, output: str, *, is_failed: bool, exit_code: int | None = None, **also: Any
) -> TraceEvent:
    """A call's end with what it gave back as text, and the exit code where the stream tells it."""
    shown: dict[str, Any] = {
        "toolCallId": call_id,
        "status": "failed" if is_failed else "completed",
        "content": [{"type": "content", "content": {"type": "text", "text": output}}],
    }
    if exit_code is not None:
        shown["rawOutput"] = {"exitCode": exit_code}
    return update_event("tool_call_update", shown, **also)


def plan_of(name: str, arguments: Any) -> list[tuple[str, str]] | None:
    """The to-do list that a call writes, as (what, status); None when the tool writes none."""
    if name.lower() not in _PLAN_TOOLS or not isinstance(arguments, Mapping):
        return None
    return list(plan_entries(members(arguments, "todos")))


def plan_entries(todos: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    """(what, status) of to-do items, whichever of the harnesses' names their text goes by."""
    for todo in todos:
        texts = (word(todo, name) for name in ("content", "description", "title", "text", "subject"))
        yield next(filter(None, texts), ""), word(todo, "status")
