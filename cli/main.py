"""`evolve`: the root command. A command's module is imported when it is called, so that help is quick."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer

from cli import later
from cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, error_line
from domain.errors import EvolveError

ABOUT = "Evaluate coding agents: durable jobs, honest scores, honest money."
# What a shell's completion, once `--install-completion` has set it up, calls us with: bash, and the others.
TYPED_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")

SDK = "temporalio.bridge.temporal_sdk_bridge"


@dataclass(frozen=True)
class Mount:
    """A command of the root. `target` is `module:attribute`: a Typer app (a noun) or a function (a verb)."""

    name: str
    target: str
    help: str
    panel: str

    def load(self) -> Any:
        """Import the target."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


WORK, STACK = "Work", "This machine's stack"
MOUNTS = (
    Mount("run", "cli.run:start_job", "Start a job, and follow it with --watch.", WORK),
    Mount("job", "cli.jobs:app", "Show, follow, cancel, download and delete jobs.", WORK),
    Mount("trial", "cli.trials:app", "One trial's record, trace and files.", WORK),
    Mount("dataset", "cli.datasets:app", "The catalog, and publishing to it.", WORK),
    Mount("agent", "cli.agents:app", "Agents of your own, run like the built-in ones.", WORK),
    Mount("auth", "cli.auth:app", "Who the server takes you for.", WORK),
    Mount("quickstart", "cli.quickstart:quickstart", "Start it, and run the example tasks.", STACK),
    Mount("up", "cli.stack_commands:up", "Start the whole platform on this machine.", STACK),
    Mount("down", "cli.stack_commands:down", "Stop it; running boxes go on and are followed again.", STACK),
    Mount("backup", "cli.backups:backup", "Save the whole installation as one file.", STACK),
    Mount("restore", "cli.backups:restore", "Put a saved installation in its place.", STACK),
    Mount("status", "cli.stack_commands:status", "List its processes, their health and logs.", STACK),
    Mount("doctor", "cli.stack_commands:doctor", "Say what this machine can do, and what is amiss.", STACK),
    Mount("admin", "cli.admin:app", "Users, keys, budgets and prices, in the database.", STACK),
    Mount("migrate", "cli.serve:migrate", "Bring the database to this release's schema.", STACK),
    Mount("serve", "cli.serve:app", "Run one process alone: api, gateway or worker.", STACK),
)
# Known, and refused by name.
LATER = ("skill", "skills", "secrets", "secret", "analyze", "analysis", "check", "upload")


def build(called: str | None = None) -> typer.Typer:
    """The root app. With `called`, only that command is imported and the others are names with a help
    line; without, all are."""
    root = typer.Typer(name="evolve", help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False)
    root.callback()(_root)
    for mount in MOUNTS:
        target = mount.load() if called in (None, mount.name) else _not_loaded
        if isinstance(target, typer.Typer):
            root.add_typer(target, name=mount.name, help=mount.help, rich_help_panel=mount.panel)
        else:
            command: Callable[..., Any] = target
            # Of a loaded verb the docstring is the help: it may be longer than the line in the root's list.
            line = mount.help if target is _not_loaded else None
            root.command(mount.name, help=line, rich_help_panel=mount.panel)(command)
    later.refuse(root, "evolve", *LATER)
    return root


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: one line on stderr and an exit code for what fails (`cli/errors.py`)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = next((word for word in _typed(words) if not word.startswith("-")), "")
    try:
        build(called)(words, prog_name="evolve")
    except EvolveError as error:
        typer.echo(error_line(error), err=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (`| head`) has left: nothing more can be said to it.
        sys.stderr.close()
        sys.exit(EXIT_FAILED)


def _typed(words: list[str]) -> list[str]:
    """The words that a person has typed: for a completion the environment holds them."""
    if "_EVOLVE_COMPLETE" not in os.environ:
        return words
    return next((os.environ[name] for name in TYPED_WORDS if name in os.environ), "").split()[1:]


def _say_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"evolve {version('evolve-evals')}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """A callback makes Typer treat the root as a group even with one command."""


def _not_loaded() -> None:
    """Stands for a command that was not called."""


def console() -> NoReturn:
    """`evolve`, as a process: `main`, and an end that no library can spoil."""
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    leave(code)


def leave(code: object) -> NoReturn:
    """End the process with the code that `sys.exit` was given.

    Threads of Temporal's SDK were seen to crash a Python that is taking itself down (SIGABRT, SIGSEGV),
    after all was done and said: where the SDK was used nothing is taken down.
    """
    if SDK not in sys.modules:
        sys.exit(code if code is None or isinstance(code, int | str) else 1)
    if isinstance(code, str):
        typer.echo(code, err=True)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has left, or it is closed
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else EXIT_FAILED)


if __name__ == "__main__":
    console()
