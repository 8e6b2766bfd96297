"""What of a request is not let through, by explicit tables (facts/gateway.md 5 and 8.2).

Refused: what names another model or account state that trials share, what bills beyond the tokens that are
held, and what lets the provider ask itself again. Stripped: hosted tools that harnesses offer by the way;
the agent goes without, and the call's row says so. Tools that run in the box pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from gateway.denials import Denial
from gateway.json_text import JsonObject
from gateway.members import items, mapping, mappings
from gateway.protocols import Dialect

_OTHER_MODEL = "it could be answered by another model"
_SHARED = "it refers to what an account stores, which trials share"
_UNBOUNDED = "its cost has no bound"
_BILLED_OTHERWISE = "is billed at other rates than are held"

# Member → why. A member that is absent, null, false or empty says nothing.
_ROUTING: dict[str, str] = dict.fromkeys(
    ("fallbacks", "models", "route", "provider", "plugins"), _OTHER_MODEL
)
_REFUSED: Mapping[Dialect, Mapping[str, str]] = {
    "chat": {
        **_ROUTING,
        "web_search_options": _UNBOUNDED,
        "best_of": _UNBOUNDED,
        "audio": _UNBOUNDED,
        "prediction": _UNBOUNDED,
        "enable_search": _UNBOUNDED,
    },
    "responses": {
        **_ROUTING,
        "prompt": _OTHER_MODEL,
        "previous_response_id": _SHARED,
        "conversation": _SHARED,
        "background": _UNBOUNDED,
    },
    "messages": {
        **_ROUTING,
        "container": _SHARED,
        "mcp_servers": _UNBOUNDED,
        "speed": _UNBOUNDED,
    },
    "gemini": {**_ROUTING, "cachedContent": _SHARED},
    "embeddings": _ROUTING,
}
# Member → the values that cost what the price book says.
_ALLOWED_VALUES: Mapping[Dialect, Mapping[str, tuple[Any, ...]]] = {
    "chat": {"n": (1,), "modalities": (["text"],)},
    "responses": {},
    "messages": {"inference_geo": ("global",)},
    "gemini": {"serviceTier": ("standard",), "service_tier": ("standard",)},
    "embeddings": {},
}
_ALLOWED_GENERATION = {"candidateCount": (1,), "responseModalities": (["TEXT"],)}
_GUARDED_GENERATION = ("maxOutputTokens", *_ALLOWED_GENERATION)
# Members that rule what a call may cost: a spelling that some server takes for one of them is refused.
_GUARDED: Mapping[Dialect, tuple[str, ...]] = {
    "chat": ("model", "max_tokens", "max_completion_tokens", "stream", "stream_options", "service_tier"),
    "responses": ("model", "max_output_tokens", "stream", "service_tier"),
    "messages": ("model", "max_tokens", "stream", "service_tier"),
    "gemini": ("model", "generationConfig", "tools"),
    "embeddings": ("model",),
}

_CLIENT_TOOLS: Mapping[Dialect, re.Pattern[str]] = {
    "chat": re.compile(r"function|custom"),
    "responses": re.compile(
        r"function|custom|namespace|local_shell|shell|apply_patch|computer|computer_use_preview"
    ),
    "messages": re.compile(r"custom|(?:bash|text_editor|memory|computer)_\d{8}"),
    "gemini": re.compile(r"functionDeclarations|function_declarations|computerUse"),
    "embeddings": re.compile(r"(?!)"),
}
_STRIPPED_TOOLS: Mapping[Dialect, re.Pattern[str]] = {
    "chat": re.compile(r"web_search\w*"),
    "responses": re.compile(r"web_search\w*|image_generation"),
    "messages": re.compile(r"web_search_\d{8}|web_fetch_\d{8}"),
    "gemini": re.compile(r"googleSearch|google_search|googleSearchRetrieval|urlContext|url_context"),
    "embeddings": re.compile(r"(?!)"),
}


def apply_policy(dialect: Dialect, body: JsonObject) -> list[str]:
    """Strip what is stripped, and say what it was; raises `Denial` for what is refused."""
    _refuse_spellings((*_GUARDED[dialect], *_REFUSED[dialect], *_ALLOWED_VALUES[dialect]), body.values)
    _refuse_members(_REFUSED[dialect], body.values)
    _refuse_values(_ALLOWED_VALUES[dialect], body.values)
    if dialect == "gemini":
        generation = mapping(body.values.get("generationConfig"))
        _refuse_spellings(_GUARDED_GENERATION, generation)
        _refuse_values(_ALLOWED_GENERATION, generation)
    if dialect in ("messages", "responses"):
        _refuse_compaction(body.values)
    if dialect == "responses":
        _refuse_stored_items(body.values)
    _refuse_stored_files(body)
    return _strip_tools(dialect, body)


def _refuse_spellings(names: tuple[str, ...], values: Mapping[str, Any]) -> None:
    """Some servers match names without regard to case, and Gemini's takes snake_case as well."""
    known = {_plain(name): name for name in names}
    for name in values:
        meant = known.get(_plain(name), name)
        if meant != name and name not in names:
            raise Denial("invalid", f"{name}: write it {meant}")


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _refuse_members(refused: Mapping[str, str], values: Mapping[str, Any]) -> None:
    for name, reason in refused.items():
        if values.get(name):
            raise Denial("invalid", f"{name} is not allowed here: {reason}")


def _refuse_values(allowed: Mapping[str, tuple[Any, ...]], values: Mapping[str, Any]) -> None:
    for name, choices in allowed.items():
        value = values.get(name)
        if value is not None and not any(_is_same(value, choice) for choice in choices):
            told = " or ".join(json.dumps(choice) for choice in choices)
            raise Denial("invalid", f"{name} must be {told} here: anything else {_BILLED_OTHERWISE}")


def _is_same(value: Any, choice: Any) -> bool:
    return type(value) is type(choice) and value == choice


def _refuse_compaction(values: Mapping[str, Any]) -> None:
    """Anthropic lists edits in an object, OpenAI at once."""
    management = values.get("context_management")
    for edit in mappings(mapping(management).get("edits") or management):
        if str(edit.get("type", "")).startswith("compact"):
            raise Denial("invalid", f"context_management: {edit['type']} asks the model again on its own")


def _refuse_stored_items(values: Mapping[str, Any]) -> None:
    """An item of an earlier answer by its id alone, which is what one without a type is taken for."""
    for item in map(mapping, items(values.get("input"))):
        if item.get("type") == "item_reference" or (item.get("type") is None and "role" not in item):
            raise Denial("invalid", f"input: an item_reference is not allowed here: {_SHARED}")


def _refuse_stored_files(body: JsonObject) -> None:
    for found in body.objects:
        if "file_id" in found and (found.get("type") in _FILE_TYPES or found.keys() <= _FILE_MEMBERS):
            raise Denial("invalid", f"file_id is not allowed here: {_SHARED}")
        if ("fileUri" in found or "file_uri" in found) and found.keys() <= _GEMINI_FILE_MEMBERS:
            raise Denial("invalid", f"fileData is not allowed here: {_SHARED}")


_FILE_TYPES = ("file", "input_file", "input_image", "container_upload")
_FILE_MEMBERS = {"file_id", "detail", "filename"}
_GEMINI_FILE_MEMBERS = {"fileUri", "file_uri", "mimeType", "mime_type", "displayName"}


def _strip_tools(dialect: Dialect, body: JsonObject) -> list[str]:
    tools = body.values.get("tools")
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise Denial("invalid", "tools must be a list")
    kept: list[Any] = []
    stripped: list[str] = []
    for tool in cast(list[Any], tools):
        names = list(_tool_names(dialect, tool))
        away = [name for name in names if _STRIPPED_TOOLS[dialect].fullmatch(name)]
        for name in names:
            if name not in away and _CLIENT_TOOLS[dialect].fullmatch(name) is None:
                raise Denial("invalid", f"tools: {name} runs at the provider, and {_UNBOUNDED}")
        stripped += away
        if not away:
            kept.append(tool)
        elif dialect == "gemini" and len(away) < len(names):
            kept.append({name: value for name, value in mapping(tool).items() if name not in away})
    if stripped:
        body.set(("tools",), kept) if kept else body.drop("tools")
    return [f"stripped tool {name}" for name in stripped]


def _tool_names(dialect: Dialect, tool: Any) -> Iterator[str]:
    """What a tool is: Gemini's members, elsewhere its type and the types of what is nested in it."""
    members = mapping(tool)
    if dialect == "gemini":
        yield from members
        return
    yield str(members.get("type") or ("custom" if dialect == "messages" else "function"))
    for nested in mappings(members.get("tools")):
        yield from _tool_names(dialect, nested)
