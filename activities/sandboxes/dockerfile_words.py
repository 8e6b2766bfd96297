"""Words of a Dockerfile line: quotes, escapes and variables, as docker's own small shell reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#]")


class UnknownSyntax(Exception):
    """What is not understood, in words for people."""


def expand(text: str, variables: Mapping[str, str], *, is_quoted: bool = False) -> str:
    """One word: quotes taken off (unless it was quoted already, as in JSON) and variables put in."""
    return _Lexer(text, variables, is_quoted).word(splits=False)


def split_words(text: str, variables: Mapping[str, str]) -> list[str]:
    """The words of a line; white space that a variable brings in does not split."""
    lexer = _Lexer(text, variables, is_quoted=False)
    words: list[str] = []
    while lexer.skip_space():
        words.append(lexer.word(splits=True))
    return words


class _Lexer:
    def __init__(self, text: str, variables: Mapping[str, str], is_quoted: bool) -> None:
        self._text = text
        self._at = 0
        self._variables = variables
        self._is_quoted = is_quoted

    def skip_space(self) -> bool:
        """Whether anything is left."""
        while self._peek().isspace():
            self._at += 1
        return self._at < len(self._text)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def word(self, *, splits: bool) -> str:
        parts: list[str] = []
        while (char := self._peek()) and not (splits and char.isspace()):
            if char == "'" and not self._is_quoted:
                parts.append(self._single_quoted())
            elif char == '"' and not self._is_quoted:
                parts.append(self._double_quoted())
            elif char == "\\":
                self._at += 1
                parts.append(self._next())
            elif char == "$":
                parts.append(self._variable())
            else:
                parts.append(self._next())
        return "".join(parts)

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise UnknownSyntax("a quote is not closed")
        inside = self._text[self._at + 1 : end]
        self._at = end + 1
        return inside

    def _double_quoted(self) -> str:
        parts: list[str] = []
        self._at += 1
        while char := self._peek():
            if char == '"':
                self._at += 1
                return "".join(parts)
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "$", "\\"):
                self._at += 1
                parts.append(self._next())
            elif char == "$":
                parts.append(self._variable())
            else:
                parts.append(self._next())
        raise UnknownSyntax("a quote is not closed")

    def _variable(self) -> str:
        self._at += 1
        if self._peek() == "{":
            return self._braced()
        name = _NAME.match(self._text, self._at)
        if name is None:
            return "$"
        self._at = name.end()
        return self._variables.get(name[0], "")

    def _braced(self) -> str:
        end = self._closing_brace()
        inside = self._text[self._at + 1 : end]
        self._at = end + 1
        name = _NAME.match(inside)
        if name is None:
            raise UnknownSyntax(f"${{{inside}}} is no variable")
        value, rest = self._variables.get(name[0]), inside[name.end() :]
        if not rest:
            return value or ""
        form = re.fullmatch(r"(:?)([-+?])(.*)", rest, re.DOTALL)
        if form is None:
            raise UnknownSyntax(f"${{{inside}}} is a form of a variable that local does not know")
        return self._modified(name[0], value, form)

    def _modified(self, name: str, value: str | None, form: re.Match[str]) -> str:
        is_set = bool(value) if form[1] else value is not None
        other = expand(form[3], self._variables)
        if form[2] == "?" and not is_set:
            raise UnknownSyntax(f"{name} is not set: {other}")
        if form[2] == "+":
            return other if is_set else ""
        return (value or "") if is_set else other

    def _closing_brace(self) -> int:
        depth = 0
        for at in range(self._at, len(self._text)):
            depth += {"{": 1, "}": -1}.get(self._text[at], 0)
            if depth == 0:
                return at
        raise UnknownSyntax("a brace is not closed")
