"""How a Dockerfile is read for `local`: what docker would make of it, or a refusal by line."""

from __future__ import annotations

import re

import pytest

from activities.sandboxes.dockerfile import (
    DEFAULT_PATH,
    CopyFiles,
    Dockerfile,
    MakeDirectory,
    RunCommand,
    parse_dockerfile,
)
from domain.errors import TaskError


def parse(*lines: str) -> Dockerfile:
    return parse_dockerfile("\n".join(["FROM base", *lines]))


def test_a_base_may_be_an_argument_with_a_default() -> None:
    found = parse_dockerfile(
        "# syntax=docker/dockerfile:1\n\nARG TAG=3.12\nFROM --platform=linux/amd64 py:${TAG}-slim AS x\n"
    )
    assert found.base == "py:3.12-slim"


def test_an_argument_before_from_holds_after_it_only_when_asked_for() -> None:
    text = "ARG A=1\nARG B=2\nFROM x\nARG A\nENV E=$A-$B\n"
    assert parse_dockerfile(text).env["E"] == "1-"


def test_values_of_one_env_are_those_from_before_it() -> None:
    found = parse('ENV A=1 B=\'$A b\' C="$A c\\"" D=d\\ d', "ENV A=2 E=$A", "ENV F old style $A")
    assert found.env == {
        "PATH": DEFAULT_PATH,
        "A": "2",
        "B": "$A b",
        "C": ' c"',
        "D": "d d",
        "E": "1",
        "F": "old style 2",
    }


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("${SET:-x}", "s"),
        ("${EMPTY:-x}", "x"),
        ("${EMPTY-x}", ""),
        ("${NONE:-${SET}/y}", "s/y"),
        ("${SET:+x}", "x"),
        ("${NONE:+x}", ""),
        (r"\$SET", "$SET"),
        ("$SET$SET", "ss"),
        ("a$", "a$"),
    ],
)
def test_variables_are_put_in_as_docker_does(word: str, value: str) -> None:
    assert parse("ENV SET=s EMPTY=", f"ENV OUT={word}").env["OUT"] == value


def test_a_path_is_taken_to_be_the_usual_one() -> None:
    assert parse("ENV PATH=/x:$PATH").env["PATH"] == f"/x:{DEFAULT_PATH}"


def test_lines_go_on_and_comments_between_them_do_not_count() -> None:
    found = parse("RUN a && \\", "# no", "", "    b \\  ", "  c")
    assert found.steps == [
        RunCommand(2, ("/bin/sh", "-c", "a &&     b   c"), {"PATH": DEFAULT_PATH}, None, "/")
    ]


def test_a_run_knows_all_that_it_depends_on() -> None:
    found = parse(
        "ARG V=1",
        "ENV E=2",
        "WORKDIR /a",
        "WORKDIR b/$E",
        "USER agent",
        'SHELL ["/bin/bash", "-c"]',
        "RUN x $V",
    )
    assert found.steps == [
        MakeDirectory(4, "/a"),
        MakeDirectory(5, "/a/b/2"),
        RunCommand(
            8, ("/bin/bash", "-c", "x $V"), {"V": "1", "PATH": DEFAULT_PATH, "E": "2"}, "agent", "/a/b/2"
        ),
    ]
    assert (found.workdir, found.user) == ("/a/b/2", "agent")


def test_a_run_in_json_has_no_shell() -> None:
    [run] = parse('RUN ["a", "b c"]').steps
    assert isinstance(run, RunCommand)
    assert run.argv == ("a", "b c")


def test_a_copy_knows_whether_its_target_is_a_folder() -> None:
    found = parse(
        "WORKDIR /w", "COPY a b c/", "COPY --chown=u:g --chmod=0755 --link a /b", 'COPY ["a b", "."]'
    )
    assert found.steps[1:] == [
        CopyFiles(3, ("a", "b"), "/w/c/"),
        CopyFiles(4, ("a",), "/b", "u:g", 0o755),
        CopyFiles(5, ("a b",), "/w/"),
    ]


def test_an_entrypoint_is_told_in_both_forms_and_a_cmd_is_not() -> None:
    assert parse('ENTRYPOINT ["a", "b"]', "CMD c").entrypoint == ["a", "b"]
    assert parse("ENTRYPOINT a b").entrypoint == ["/bin/sh", "-c", "a b"]


def test_what_says_something_of_an_image_alone_has_no_effect() -> None:
    found = parse("LABEL a=b", "EXPOSE 80", "VOLUME /v", "HEALTHCHECK NONE", "STOPSIGNAL 9", "MAINTAINER me")
    assert found.steps == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: there is no FROM"),
        ("RUN x\nFROM y", "line 1: RUN before FROM"),
        ("FROM a AS b\nRUN x\nFROM c", "line 3: a second FROM"),
        ("FROM a\nCOPY --from=b /x /y", "line 2: COPY --from is not honoured"),
        ("FROM a\nCOPY --parents x /y", "line 2: COPY --parents"),
        ("FROM a\nRUN --mount=type=cache,target=/x y", "line 2: RUN --mount"),
        ("FROM a\nRUN <<EOF\nx\nEOF", "line 2: a here-document in RUN"),
        ("FROM a\nCOPY <<EOF /x\ny\nEOF", "line 2: a here-document in COPY"),
        ("FROM a\nADD https://h/x /y", "line 2: ADD https://h/x: only files of the task"),
        ("FROM a\nADD x.tar.gz /y", "line 2: ADD x.tar.gz: an archive"),
        ("FROM a\nCOPY --chmod=u+x a /b", "line 2: COPY --chmod=u+x: only octal"),
        ("FROM a\nUSER a:b", "line 2: USER a:b"),
        ("FROM a\nENV A=${B#c}", "line 2: ENV: ${B#c} is a form of a variable"),
        ("FROM a\nENV A='b", "line 2: ENV: a quote is not closed"),
        ("FROM a\nSHELL bash", "line 2: SHELL bash: not a JSON array"),
        ("FROM a\nCOPY x", "line 2: COPY needs a source and a target"),
        ("FROM a\nFETCH x", "line 2: FETCH is no instruction"),
        ("# escape=`\nFROM a", "line 1: an escape character"),
    ],
)
def test_what_is_not_honoured_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=re.escape(message)):
        parse_dockerfile(text)


def test_a_here_string_of_bash_is_no_here_document() -> None:
    assert len(parse("RUN cat <<<word").steps) == 1
