"""`docs/cli.md`, written from the commands themselves: `python -m cli.reference > docs/cli.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from cli.main import LATER, build

INTRODUCTION = """\
# Command reference

Written by `python -m cli.reference` from the commands themselves; a test compares.

**Which server.** `EVOLVE_DASHBOARD_URL` and `EVOLVE_API_KEY`, else `$EVOLVE_HOME/credentials.json`
(`EVOLVE_HOME` is `~/.evolve` by default), which `evolve up` writes. A key from the file is sent to the
file's server only.

**Output.** Lists are tables on a terminal and tab-separated values in a pipe; `--json` prints the full
objects: one document for a single object or a list, one object a line for a stream of events. Money is a
plain amount when final, `at least $X` while it is a lower bound, `-` when nobody has measured it. Unknown
values are `-`, never 0.

**Which job or trial.** Wherever JOB or TRIAL is taken, the first four or more characters of an id do, if only
one of your jobs (or of the trials of your last 20 jobs) begins so; `last` is your newest job, and of its
trials the one that began last.

**Completion.** `evolve --install-completion` sets up your shell's; nothing is installed unasked.

**Exit codes.** 0 done, 1 refused or failed (one line on stderr ends with the error's code), 2 wrong usage,
130 ended by Ctrl-C. A watched job exits 0 when it COMPLETED, whatever its rewards, and 1 when it was
cancelled or failed.
"""


def reference() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(build())
    sections = [INTRODUCTION, *_sections(root, "evolve"), _later(root)]
    return "\n".join(sections).rstrip() + "\n"


def _sections(command: Any, name: str) -> Iterator[str]:
    """A command's own section, or its subcommands'."""
    children: dict[str, Any] = getattr(command, "commands", {})
    if not children:
        yield _section(command, name)
    for child_name, child in children.items():
        if not child.hidden:
            yield from _sections(child, f"{name} {child_name}")


def _section(command: Any, name: str) -> str:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
    options = [parameter for parameter in shown if parameter.param_type_name == "option"]
    usage = " ".join(
        [name, *(_argument(argument) for argument in arguments), *(["[options]"] if options else [])]
    )
    lines = [f"## {name}", "", "```", usage, "```", "", _text(command.help), ""]
    if options:
        lines += ["| option | meaning |", "| --- | --- |", *map(_option_row, options), ""]
    return "\n".join(lines)


def _argument(argument: Any) -> str:
    metavar = str(argument.metavar or argument.name.upper())
    return metavar if argument.required else f"[{metavar}]"


def _option_row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
    value = f" `{option.metavar}`".replace("|", "\\|") if option.metavar else ""
    text = _text(option.help).replace("|", "\\|")
    default = option.default
    is_told = option.required or default in (None, False) or "(default" in text
    return f"| {names}{value} | {text}{'' if is_told else f' (default: {default})'} |"


def _text(help_text: str | None) -> str:
    """Help as prose: lines of one paragraph joined."""
    paragraphs = (help_text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).strip()


def _later(root: Any) -> str:
    """Commands that are known and refused."""
    hidden = [
        f"`evolve {group} {name}`"
        for group, command in root.commands.items()
        for name, child in getattr(command, "commands", {}).items()
        if child.hidden
    ]
    names = [*(f"`evolve {name}`" for name in LATER), *hidden]
    return f"## Not in this release\n\nKnown, and refused by name: {', '.join(names)}.\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
