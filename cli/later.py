"""Commands of later releases: they are known, and refuse by name instead of being half done."""

from __future__ import annotations

from collections.abc import Callable

import typer

from cli.errors import NotInThisRelease

_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--help"]}


def refuse(app: typer.Typer, group: str, *names: str) -> None:
    """Add each of `names` to `app`, called by `group`, as a command that refuses, hidden from its help."""
    for name in names:
        app.command(name, hidden=True, context_settings=dict(_ANYTHING))(refusal(f"{group} {name}"))


def refusal(command: str) -> Callable[[typer.Context], None]:
    """A command that takes anything and refuses."""

    def refuse_by_name(context: typer.Context) -> None:
        """Not in this release."""
        raise NotInThisRelease(command)

    return refuse_by_name
