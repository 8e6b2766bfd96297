"""A request's JSON, read once and edited in place: only the edited members change, every other byte stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

# What a body may hold: far more than any model reads, and as much as is read within a moment, for all trials
# wait meanwhile. A comma is at most every value, and within text at most every character.
MAX_COMMAS = 4_000_000
MAX_OBJECTS = 200_000
MAX_MEMBERS = 1_000


class BadJson(ValueError):
    """Text that is no JSON object, or that two readers could read as two different ones."""


@dataclass(frozen=True)
class _Member:
    key: str
    start: int
    value_start: int
    end: int


class JsonObject:
    """The text of one JSON object with its members; raises `BadJson`.

    A repeated name is refused at any depth: a provider that takes the first where we read the last would
    be asked for something else than what was admitted.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._members: list[_Member] = []
        self._edits: dict[str, str | None] = {}
        self.objects: list[dict[str, Any]] = []
        """Every object within, at any depth, innermost first."""
        self.values: dict[str, Any] = {}
        self._read()

    @classmethod
    def of_bytes(cls, body: bytes) -> JsonObject:
        try:
            return cls(body.decode())
        except UnicodeDecodeError as error:
            raise BadJson(f"the body is not UTF-8: {error.reason}") from None

    @property
    def n_chars(self) -> int:
        """Of the text as it was read."""
        return len(self._text)

    def set(self, path: Sequence[str], value: Any) -> None:
        """Give the member at `path` a value, making it and the objects above it where they are absent."""
        name, *rest = path
        if rest:
            inner = JsonObject(self._object_text(name))
            inner.set(rest, value)
            self._edits[name] = inner.render()
        else:
            self._edits[name] = json.dumps(value)

    def drop(self, name: str) -> None:
        """Leave a member out."""
        self._edits[name] = None

    def encode(self) -> bytes:
        return self.render().encode()

    def render(self) -> str:
        """The text with the edits."""
        if not self._edits:
            return self._text
        new = [
            f"{json.dumps(name)}:{text}"
            for name, text in self._edits.items()
            if name not in self.values and text is not None
        ]
        kept = [index for index, member in enumerate(self._members) if self._is_kept(member)]
        if not kept:
            return "{" + ",".join(new) + "}"
        first, last = self._members[0], self._members[-1]
        parts = [self._text[: first.start]]
        for index in kept:
            member = self._members[index]
            if index != kept[0]:
                parts.append(self._text[self._members[index - 1].end : member.start])
            parts.append(self._member_text(member))
        parts += [f",{text}" for text in new]
        return "".join(parts) + self._text[last.end :]

    def _is_kept(self, member: _Member) -> bool:
        return self._edits.get(member.key, "") is not None

    def _member_text(self, member: _Member) -> str:
        edit = self._edits.get(member.key)
        if edit is None:
            return self._text[member.start : member.end]
        return self._text[member.start : member.value_start] + edit

    def _object_text(self, name: str) -> str:
        edit = self._edits.get(name)
        if edit is not None:
            return edit
        if not isinstance(self.values.get(name), dict):
            return "{}"
        member = next(member for member in self._members if member.key == name)
        return self._text[member.value_start : member.end]

    def _read(self) -> None:
        if self._text.count(",") > MAX_COMMAS:
            raise BadJson("the body has too many values")
        decoder = json.JSONDecoder(object_pairs_hook=self._unique, parse_constant=_refuse_constant)
        try:
            self._scan(decoder)
        except BadJson:
            raise
        except (ValueError, IndexError, RecursionError):
            raise BadJson("the body is not one JSON object") from None

    def _scan(self, decoder: json.JSONDecoder) -> None:
        text = self._text
        at = _expect(text, _skip(text, 0), "{")
        if text[at] == "}":
            at += 1
        else:
            at = self._scan_members(decoder, at)
        if _skip(text, at) != len(text):
            raise BadJson("the body is not one JSON object")

    def _scan_members(self, decoder: json.JSONDecoder, at: int) -> int:
        text = self._text
        while True:
            if text[at] != '"':
                raise BadJson("the body is not one JSON object")
            key, key_end = cast(tuple[str, int], decoder.raw_decode(text, at))
            value_start = _expect(text, _skip(text, key_end), ":")
            value, end = decoder.raw_decode(text, value_start)
            if len(self.values) >= MAX_MEMBERS:
                raise BadJson("the body has too many members")
            if key in self.values:
                raise BadJson(f"the member {key!r} occurs twice")
            self.values[key] = value
            self._members.append(_Member(key, at, value_start, end))
            at = _skip(text, end)
            if text[at] == "}":
                return at + 1
            at = _expect(text, at, ",")

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadJson("an object in the body has a member twice")
        if len(self.objects) >= MAX_OBJECTS:
            raise BadJson("the body has too many objects")
        self.objects.append(found)
        return found


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"{name} is not JSON")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\n\r":
        at += 1
    return at


def _expect(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise BadJson("the body is not one JSON object")
    return _skip(text, at + 1)
