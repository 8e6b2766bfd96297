"""What a coding agent's harness is to us: a bundle built once, installed into a box, launched.

The agent phase goes through them in this order: the exact version is known from the moment the trial is
prepared; `bundle` says what that version is made of and `activities.bundles` has it on this host; the
box is made with the bundle's folder mounted read-only at `BUNDLE_ROOT`; `activities.bundles` finds which
build of it runs on the box's image; `resolve_home` finds the agent's HOME; `install` writes the settings;
`launch` gives the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from activities.sandboxes.base import Box
from domain.arms import AgentArm
from domain.tasks import Task

BUNDLE_ROOT = "/opt/evolve"
"""Where a bundle is in a box: no image has it, and only we write there."""


@dataclass(frozen=True)
class ModelAccess:
    """How the agent reaches its model. `base_url` is the gateway's origin as the box sees it: no path."""

    base_url: str
    api_key: str = field(repr=False)
    model: str
    """The exact id that the key is good for."""
    effort: str | None = None


@dataclass(frozen=True)
class HarnessContext:
    """What a harness may know: the task, its directory on this host, the arm, and its place in the box.

    `access` is None for agents that call no model, `bundle` (the folder that `bin/<name>` is in) and
    `version` for those that have none. `user` None is the box's root. `home` is what `resolve_home`
    found, `workdir` the box's own.
    """

    task: Task
    task_dir: Path
    arm: AgentArm
    access: ModelAccess | None = None
    version: str | None = None
    user: str | None = None
    home: str = "/root"
    bundle: str | None = None
    workdir: str = "/app"

    @property
    def instruction(self) -> str:
        """What the agent is asked, as the task says it."""
        return self.task.instruction or ""

    @property
    def model_access(self) -> ModelAccess:
        """`access` of an agent that needs it; raises `ValueError` when there is none."""
        if self.access is None:
            raise ValueError(f"{self.arm.name} was given no access to a model")
        return self.access


@dataclass(frozen=True)
class Launch:
    """The agent's command. `env` comes on top of the task's own and holds HOME.

    Secrets are in `env` or in files of mode 0600, never in `argv`, which every process of a box can read.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: bytes | None = None


@dataclass(frozen=True)
class Bundle:
    """One exact version of a harness for x86-64 Linux, as packages of the npm registry.

    Each package `name@version` is unpacked at `node_modules/<name>`, and no script of it is run; so a
    package finds the others by name. `entry` is the program, relative to the bundle's root. `node` is the
    exact version of the Node that runs it, None for a program that runs by itself. `omit` are `fnmatch`
    patterns of paths that are not needed. What is started is `bundle_program`. glibc images and others
    (musl, an old glibc) get the same packages: `activities.bundles` sees to that.
    """

    harness: str
    version: str
    packages: tuple[str, ...]
    entry: str
    node: str | None = None
    omit: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionCopy:
    """A folder of the home that is kept a second time where Harbor looks for it, below `agent/`."""

    source: str
    target: str


@dataclass(frozen=True)
class HomeRules:
    """What of the agent's home is kept (contract 8.2). All paths are relative to HOME.

    `captured` are files and folders kept at their real names. `excluded` are `fnmatch` patterns over
    paths, of what is dropped all the same and told as excluded in `agent-home.json`: credentials,
    caches, what the vendor unpacks there.
    """

    captured: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    session_copies: tuple[SessionCopy, ...] = ()


NO_HOME = HomeRules()


class Harness(Protocol):
    """One coding agent."""

    @property
    def name(self) -> str: ...

    @property
    def stdout_file(self) -> str:
        """The name its stdout is kept under in `agent/` (contract 8.2)."""
        ...

    @property
    def package(self) -> str | None:
        """The npm package whose versions are the harness's; None for what is no package."""
        ...

    @property
    def tested_version(self) -> str | None:
        """The version that an arm without a pin runs: the one our settings and parsers were tested on."""
        ...

    @property
    def parser_name(self) -> str | None:
        """The stream parser of `activities.traces` for its stdout; None for plain text."""
        ...

    @property
    def home_rules(self) -> HomeRules: ...

    def bundle(self, version: str) -> Bundle | None:
        """What `version` is made of; None when nothing is to be installed."""
        ...

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Put what it needs into the box; may be called again after a crash."""
        ...

    def launch(self, context: HarnessContext) -> Launch | None:
        """The command; None when there is nothing to run."""
        ...


class UnbundledHarness:
    """The part of `Harness` that agents without a package, model or home share."""

    package: str | None = None
    tested_version: str | None = None
    parser_name: str | None = None
    home_rules: HomeRules = NO_HOME

    def bundle(self, version: str) -> Bundle | None:
        """Nothing is installed."""
        return None


def bundle_program(context: HarnessContext) -> str:
    """The harness's program in the box; raises `ValueError` for one that has no bundle."""
    if context.bundle is None:
        raise ValueError(f"{context.arm.name} was given no bundle")
    return f"{context.bundle}/bin/{context.arm.name}"
