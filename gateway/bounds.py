"""The most that a request can cost: how many tokens go in at most, and how many may come out.

In: a token of any tokenizer is at least one byte of text, and JSON never writes text in fewer bytes than it
has, so a body has at most as many tokens as bytes; what the provider adds around it is allowed for. It is
about four times too much for English or code, and capped by the model's context window; what a call does
not use is released when it ends. An inline image's bytes are no text: it counts as a fixed number of
tokens. Documents, audio and video have no figure, so they count as the whole window.

Out: the limit that the request carries, which is set where it has none and lowered to the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gateway.denials import Denial
from gateway.json_text import JsonObject
from gateway.members import mapping, mappings
from gateway.protocols import Dialect

# Around every request: role marks, and the prompt that providers add when tools are offered (Anthropic 346
# to 804 tokens).
OVERHEAD_TOKENS = 2_000
# Where neither the request nor the price says how much may come out.
DEFAULT_MAX_OUTPUT_TOKENS = 16_384
# A limit that we set leaves room for the prompt, at the fewest bytes a token that code and prose have.
_BYTES_PER_TOKEN = 3
_LEAST_SET_TOKENS = 4_096

_LIMIT_NAMES: Mapping[Dialect, tuple[tuple[str, ...], ...]] = {
    "chat": (("max_completion_tokens",), ("max_tokens",)),
    "responses": (("max_output_tokens",),),
    "messages": (("max_tokens",),),
    "gemini": (("generationConfig", "maxOutputTokens"),),
}
_UNMEASURED_TYPES = frozenset(
    ("document", "file", "input_file", "input_audio", "audio_url", "video_url", "input_video", "video")
)
_IMAGE_TYPES = frozenset(("image", "image_url", "input_image", "computer_screenshot"))


@dataclass(frozen=True)
class ModelLimits:
    """What the price book says of a model; None where it says nothing. `is_window_wider`: the request asks
    for a longer context than the book's."""

    window: int | None
    max_output: int | None
    image_tokens: int
    is_window_wider: bool = False


def estimate_tokens(text_bytes: int) -> int:
    """A prompt's tokens, told to whoever asks to count them where no provider does; the same each time."""
    return math.ceil(text_bytes / _BYTES_PER_TOKEN)


def prompt_bound(dialect: Dialect, body: JsonObject, n_bytes: int, limits: ModelLimits) -> int:
    """The most tokens that can go in. Raises `Denial` when nothing bounds them."""
    window = None if limits.is_window_wider else limits.window
    if any(_is_unmeasured(found) for found in body.objects):
        if window is None:
            raise Denial("invalid", "documents, audio and video have no bound with this model")
        return window
    inline = sum(len(data) for data in _inline_images(dialect, body.values))
    images = sum(1 for found in body.objects if _is_image(found))
    bound = n_bytes - inline + OVERHEAD_TOKENS + images * limits.image_tokens
    return bound if window is None else min(bound, window)


def limit_output(
    dialect: Dialect, body: JsonObject, limits: ModelLimits, name_if_absent: str
) -> tuple[int, list[str]]:
    """The output tokens that the forwarded body allows, and what was changed to bound them."""
    asked = {path: value for path in _LIMIT_NAMES[dialect] if (value := _at(body.values, path)) is not None}
    if not asked:
        path = (name_if_absent,) if dialect == "chat" else _LIMIT_NAMES[dialect][0]
        limit = _limit_to_set(limits, body)
        body.set(path, limit)
        return limit, [f"set {path[-1]} {limit}"]
    changes: list[str] = []
    for path, value in asked.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Denial("invalid", f"{'.'.join(path)} must be a positive integer")
        if limits.max_output is not None and value > limits.max_output:
            body.set(path, limits.max_output)
            changes.append(f"clamped {path[-1]} {value} to {limits.max_output}")
    most = max(asked.values())
    return most if limits.max_output is None else min(most, limits.max_output), changes


def _limit_to_set(limits: ModelLimits, body: JsonObject) -> int:
    most = limits.max_output or DEFAULT_MAX_OUTPUT_TOKENS
    if limits.window is None:
        return most
    room = limits.window - estimate_tokens(body.n_chars)
    return min(most, max(_LEAST_SET_TOKENS, room))


def _at(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = values
    for name in path:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise Denial("invalid", f"{path[0]} must be an object")
        value = cast(Mapping[str, Any], value).get(name)
    return value


def _is_unmeasured(found: dict[str, Any]) -> bool:
    kind = found.get("type")
    if isinstance(kind, str) and kind in _UNMEASURED_TYPES:
        # A document may be text in the request; it is counted by its bytes. So is a schema that says "file".
        source = mapping(found.get("source"))
        return source.get("type") not in ("text", "content") and found.keys() != {"type"}
    inlines = (mapping(found.get("inlineData")), mapping(found.get("inline_data")))
    return any(bool(inline) and not _is_inline_image(inline) for inline in inlines)


def _is_image(found: dict[str, Any]) -> bool:
    kind = found.get("type")
    if isinstance(kind, str) and kind in _IMAGE_TYPES:
        return True
    return "inlineData" in found or "inline_data" in found


def _inline_images(dialect: Dialect, values: Mapping[str, Any]) -> Iterator[str]:
    """The data of images where a provider reads images; elsewhere the same shape is only text."""
    for block in _blocks(dialect, values):
        data = _image_data(dialect, block)
        if data:
            yield data


def _image_data(dialect: Dialect, block: dict[str, Any]) -> str:
    kind = block.get("type")
    if dialect == "messages" and kind == "image":
        source = mapping(block.get("source"))
        return _text(source.get("data")) if source.get("type") == "base64" else ""
    if dialect == "chat" and kind == "image_url":
        return _data_url(mapping(block.get("image_url")).get("url"))
    if dialect == "responses" and kind == "input_image":
        return _data_url(block.get("image_url"))
    if dialect == "gemini":
        inline = mapping(block.get("inlineData"))
        return _text(inline.get("data")) if _is_inline_image(inline) else ""
    return ""


def _blocks(dialect: Dialect, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of each message, and those within a tool's result."""
    turns = {"messages": "messages", "chat": "messages", "responses": "input", "gemini": "contents"}
    for turn in mappings(values.get(turns.get(dialect, ""))):
        if dialect == "gemini":
            for part in mappings(turn.get("parts")):
                yield part
                yield from mappings(mapping(part.get("functionResponse")).get("parts"))
            continue
        for block in mappings(turn.get("content")):
            yield block
            if dialect == "messages" and block.get("type") == "tool_result":
                yield from mappings(block.get("content"))
        if dialect == "responses":
            yield from mappings(turn.get("output"))


def _data_url(value: Any) -> str:
    text = _text(value)
    return text if text.startswith("data:image/") else ""


def _is_inline_image(inline: Mapping[str, Any]) -> bool:
    """Whether every spelling of its type that a server may read says so."""
    kinds = [inline[name] for name in ("mimeType", "mime_type") if name in inline]
    return bool(kinds) and all(_text(kind).startswith("image/") for kind in kinds)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
