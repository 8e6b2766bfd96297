"""What a request tells: how far its conversation is, what was asked, and which tools it offers.

A script is played by what the request itself holds, so that a gateway that starts anew goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from gateway.members import mapping, mappings
from gateway.protocols import Dialect

Schema = Mapping[str, Any]

# The tools with which harnesses run a command (facts/harnesses.md).
_SHELLS = ("Bash", "exec_command", "shell_command", "run_shell_command", "bash", "Execute", "shell")
_COMMANDS = ("command", "cmd")
# What a harness puts into the model's mouth before the first question (seen of qwen 0.15).
_OPENINGS = ("Got it. Thanks for the context!",)
_OURS = {"function_call", "custom_tool_call", "reasoning", "local_shell_call"}


@dataclass(frozen=True)
class Conversation:
    """`n_turns` that the model has had, all words of the user, and the offered tools by name with their
    arguments' JSON schema."""

    n_turns: int
    said: str
    tools: Mapping[str, Schema]

    def shell_call(self, command: str) -> tuple[str, dict[str, Any]] | None:
        """The offered shell tool, and its arguments for a command; None when there is none."""
        name = next((name for name in _SHELLS if name in self.tools), None)
        if name is None:
            return None
        return name, _shell_arguments(self.tools[name], command)


def read_conversation(dialect: Dialect, body: Mapping[str, Any]) -> Conversation:
    """Of any request of the dialect."""
    roles = list(_roles(dialect, body))
    begins = [role == "model" and before != "model" for before, role in pairwise(["other", *roles])]
    return Conversation(sum(begins), "\n".join(_said(dialect, body)), dict(_tools(dialect, body)))


def _roles(dialect: Dialect, body: Mapping[str, Any]) -> Iterator[str]:
    """`model` or another, of each entry; what the system adds in between ends nobody's turn."""
    for entry in mappings(body.get(_list_of(dialect))):
        role = entry.get("role")
        if entry.get("content") in _OPENINGS:
            continue
        if entry.get("type") in _OURS or role in ("assistant", "model"):
            yield "model"
        elif role not in ("system", "developer"):
            yield "other"


def _said(dialect: Dialect, body: Mapping[str, Any]) -> Iterator[str]:
    if dialect == "responses" and isinstance(body.get("input"), str):
        yield body["input"]
    for entry in mappings(body.get(_list_of(dialect))):
        if entry.get("role") != "user":
            continue
        content = entry.get("parts") if dialect == "gemini" else entry.get("content")
        if isinstance(content, str):
            yield content
        for part in mappings(content):
            if isinstance(part.get("text"), str):
                yield part["text"]


def _list_of(dialect: Dialect) -> str:
    return {"responses": "input", "gemini": "contents"}.get(dialect, "messages")


def _tools(dialect: Dialect, body: Mapping[str, Any]) -> Iterator[tuple[str, Schema]]:
    for tool in mappings(body.get("tools")):
        if dialect == "gemini":
            for declared in mappings(tool.get("functionDeclarations")):
                schema = declared.get("parametersJsonSchema") or declared.get("parameters")
                yield str(declared.get("name")), mapping(schema)
        elif dialect == "chat":
            function = mapping(tool.get("function"))
            yield str(function.get("name")), mapping(function.get("parameters"))
        elif dialect == "messages":
            yield str(tool.get("name")), mapping(tool.get("input_schema"))
        else:
            yield str(tool.get("name")), mapping(tool.get("parameters"))
            for nested in mappings(tool.get("tools")):
                yield str(nested.get("name")), mapping(nested.get("parameters"))


def _shell_arguments(schema: Schema, command: str) -> dict[str, Any]:
    """The command under the name that the tool has for it, and something for whatever else it requires."""
    properties = mapping(schema.get("properties"))
    name = next((name for name in _COMMANDS if name in properties), _COMMANDS[0])
    is_list = _type(mapping(properties.get(name))) == "array"
    arguments: dict[str, Any] = {name: ["bash", "-lc", command] if is_list else command}
    required = schema.get("required")
    for other in cast(list[Any], required) if isinstance(required, list) else []:
        if other not in arguments:
            arguments[str(other)] = _filler(mapping(properties.get(other)))
    return arguments


def _filler(schema: Schema) -> Any:
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return cast(list[Any], choices)[0]
    kind = _type(schema)
    if kind in ("integer", "number"):
        return schema.get("minimum", 60)
    fillers: dict[str, Any] = {"boolean": False, "array": [], "object": {}}
    return fillers.get(kind, "run a command")


def _type(schema: Schema) -> str:
    """Gemini writes types in capitals; some schemas list several."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return str(next(iter(cast(list[Any], kind)), "")).lower()
    return str(kind).lower()
