"""Reads a Dockerfile into the steps that `local` carries out; refuses by name and line what it does not.

Variables are resolved here, so each step stands for itself. The base image is not used: its PATH is
taken to be the usual one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from activities.sandboxes.dockerfile_words import UnknownSyntax, expand, split_words
from domain.errors import TaskError

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FILE = "environment/Dockerfile"
# Said of an image, and without meaning for a box: its CMD is never run (contract 6.8).
WITHOUT_EFFECT = frozenset(
    ("CMD", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "STOPSIGNAL", "VOLUME")
)
_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?[A-Za-z_]")


@dataclass(frozen=True)
class MakeDirectory:
    """WORKDIR: a directory, owned by root when it is new."""

    line: int
    path: str


@dataclass(frozen=True)
class CopyFiles:
    """COPY or ADD. `sources` are patterns in the context; `owner` is "user[:group]", `mode` octal."""

    line: int
    sources: tuple[str, ...]
    target: str
    owner: str | None = None
    mode: int | None = None


@dataclass(frozen=True)
class RunCommand:
    """RUN, with all that it depends on."""

    line: int
    argv: tuple[str, ...]
    env: dict[str, str]
    user: str | None
    cwd: str


Step = MakeDirectory | CopyFiles | RunCommand


@dataclass
class Dockerfile:
    """The steps in order, and what holds for the boxes of the image."""

    base: str = ""
    steps: list[Step] = field(default_factory=list[Step])
    env: dict[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    user: str | None = None
    entrypoint: list[str] | None = None


def parse_dockerfile(text: str) -> Dockerfile:
    """Raises `TaskError` that names the line and the instruction."""
    reader = _Reader()
    for line, keyword, rest in _instructions(text):
        try:
            reader.take(line, keyword, rest)
        except UnknownSyntax as error:
            raise _refusal(line, f"{keyword}: {error}") from error
    if not reader.result.base:
        raise _refusal(1, "there is no FROM")
    return reader.result


def _refusal(line: int, what: str) -> TaskError:
    return TaskError(f"{FILE} line {line}: {what}", param=FILE)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """(first line, keyword, the rest with continued lines joined)."""
    pending, first, may_direct = "", 0, True
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        stripped = raw.strip()
        directive = re.fullmatch(r"#\s*(\w+)\s*=\s*(\S.*)", stripped) if may_direct else None
        may_direct = directive is not None
        if directive and directive[1].lower() == "escape" and directive[2] != "\\":
            raise _refusal(number, "an escape character of its own is not honoured on local")
        if not stripped or stripped.startswith("#"):
            continue
        first = first or number
        if raw.rstrip().endswith("\\"):
            pending += raw.rstrip()[:-1]
            continue
        yield first, *_keyword(pending + raw, first)
        pending, first = "", 0
    if pending.strip():
        yield first, *_keyword(pending, first)


def _keyword(instruction: str, line: int) -> tuple[str, str]:
    keyword, *rest = instruction.strip().split(maxsplit=1)
    if not keyword.isalpha():
        raise _refusal(line, f"{keyword!r} is no instruction")
    return keyword.upper(), rest[0] if rest else ""


class _Reader:
    """Takes one instruction after the other."""

    def __init__(self) -> None:
        self.result = Dockerfile(env={"PATH": DEFAULT_PATH})
        self._arguments: dict[str, str] = {}
        self._global_arguments: dict[str, str] = {}
        self._shell = ["/bin/sh", "-c"]

    def take(self, line: int, keyword: str, rest: str) -> None:
        if keyword not in ("FROM", "ARG") and not self.result.base:
            raise _refusal(line, f"{keyword} before FROM")
        if keyword in WITHOUT_EFFECT:
            return
        handler = getattr(self, f"_take_{keyword.lower()}", None)
        if handler is None:
            raise _refusal(line, f"{keyword} is no instruction that local honours")
        handler(line, rest)

    @property
    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self.result.env}

    @property
    def _cwd(self) -> str:
        return self.result.workdir or "/"

    def _take_from(self, line: int, rest: str) -> None:
        if self.result.base:
            raise _refusal(line, "a second FROM (a build of several stages) is not honoured on local")
        words = [word for word in split_words(rest, self._arguments) if not word.startswith("--platform=")]
        if len(words) not in (1, 3) or words[0].startswith("-") or not words[0]:
            raise _refusal(line, f"FROM {rest}: not one image")
        self.result.base = words[0]
        self._global_arguments, self._arguments = self._arguments, {}

    def _take_arg(self, line: int, rest: str) -> None:
        for word in split_words(rest, self._variables):
            name, has_default, value = word.partition("=")
            if has_default:
                self._arguments[name] = value
            elif name in self._global_arguments:
                self._arguments[name] = self._global_arguments[name]

    def _take_env(self, line: int, rest: str) -> None:
        name, *value = rest.split(maxsplit=1)
        if "=" not in name:
            self.result.env[name] = expand(value[0] if value else "", self._variables)
            return
        before = self._variables  # all values of one ENV are seen from before it
        for word in split_words(rest, before):
            name, has_value, word_value = word.partition("=")
            if not has_value:
                raise _refusal(line, f"ENV: {word!r} has no value")
            self.result.env[name] = word_value

    def _take_workdir(self, line: int, rest: str) -> None:
        path = expand(rest, self._variables)
        self.result.workdir = str(PurePosixPath(self._cwd) / path)
        self.result.steps.append(MakeDirectory(line, self.result.workdir))

    def _take_user(self, line: int, rest: str) -> None:
        user = expand(rest, self._variables)
        if ":" in user:
            raise _refusal(line, f"USER {user}: a user with a group is not honoured")
        self.result.user = None if user in ("root", "0") else user

    def _take_shell(self, line: int, rest: str) -> None:
        self._shell = _json_array(rest) or self._refuse_form(line, "SHELL", rest)

    def _refuse_form(self, line: int, keyword: str, rest: str) -> list[str]:
        raise _refusal(line, f"{keyword} {rest}: not a JSON array of strings")

    def _take_entrypoint(self, line: int, rest: str) -> None:
        array = _json_array(rest)
        self.result.entrypoint = [*self._shell, rest] if array is None else array

    def _take_run(self, line: int, rest: str) -> None:
        if rest.startswith("--"):
            raise _refusal(line, f"RUN {rest.split()[0]} is not honoured on local")
        if _HEREDOC.search(rest):
            raise _refusal(line, "a here-document in RUN is not honoured on local")
        array = _json_array(rest)
        argv = [*self._shell, rest] if array is None else array
        user, env = self.result.user, dict(self._variables)
        self.result.steps.append(RunCommand(line, tuple(argv), env, user, self._cwd))

    def _take_copy(self, line: int, rest: str) -> None:
        self._copy(line, "COPY", rest)

    def _take_add(self, line: int, rest: str) -> None:
        copied = self._copy(line, "ADD", rest)
        for source in copied.sources:
            if re.match(r"[a-z]+://|git@", source):
                raise _refusal(line, f"ADD {source}: only files of the task are added on local")
            if re.search(r"\.(tar|tgz|tbz2?|txz|tzst|gz|bz2|xz|zst)$", source):
                raise _refusal(line, f"ADD {source}: an archive, which would be unpacked, is not honoured")

    def _copy(self, line: int, keyword: str, rest: str) -> CopyFiles:
        if _HEREDOC.search(rest):
            raise _refusal(line, f"a here-document in {keyword} is not honoured on local")
        options: dict[str, str] = {}
        while flag := re.match(r"--([a-z-]+)(?:=(\S+))?\s+", rest):
            options[flag[1]] = expand(flag[2] or "", self._variables)
            rest = rest[flag.end() :]
        for name in options.keys() - {"chown", "chmod", "link"}:
            raise _refusal(line, f"{keyword} --{name} is not honoured on local")
        array = _json_array(rest)
        words = (
            split_words(rest, self._variables)
            if array is None
            else [expand(each, self._variables, is_quoted=True) for each in array]
        )
        if len(words) < 2:
            raise _refusal(line, f"{keyword} needs a source and a target")
        *sources, target = words
        absolute = str(PurePosixPath(self._cwd) / target)
        is_folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
        step = CopyFiles(
            line,
            tuple(sources),
            f"{absolute.rstrip('/')}/" if is_folder else absolute,
            options.get("chown"),
            _octal(line, keyword, options.get("chmod")),
        )
        self.result.steps.append(step)
        return step


def _octal(line: int, keyword: str, mode: str | None) -> int | None:
    if mode is None:
        return None
    if not re.fullmatch(r"[0-7]{3,4}", mode):
        raise _refusal(line, f"{keyword} --chmod={mode}: only octal modes are honoured on local")
    return int(mode, 8)


def _json_array(text: str) -> list[str] | None:
    """The exec form; anything else is the shell form, as docker takes it."""
    if not text.startswith("["):
        return None
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError:
        return None
    is_strings = isinstance(found, list) and all(isinstance(each, str) for each in found)
    return found if is_strings else None
