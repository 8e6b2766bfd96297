"""The agent's HOME in a box, and what a harness writes there before the agent starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from activities.harnesses.base import HarnessContext
from activities.sandboxes.base import Box, RunResult
from domain.causes import AGENT_INSTALL_FAILED
from domain.errors import InfrastructureFailure

FRESH_HOME = "/var/tmp/evolve-home"
"""Made where the user's own home cannot be written. Not below /tmp: codex keeps no helpers there."""

# `/` is no home: everything in it would be taken for the agent's.
_OWN_HOME = 'cd "$HOME" && [ "$(pwd -P)" != / ] && [ -w . ] && printf %s "$HOME"'
_MAKE_HOME = 'mkdir -p "$1" && chown "$2" "$1" && chmod 700 "$1"'
_COPY_SKILLS = '[ ! -d "$1" ] || { cp -R "$1"/. "$2" && chown -R "$3" "$2"; }'


async def resolve_home(box: Box, user: str | None) -> str:
    """The user's HOME where the user can write it, else a fresh folder of the user's own.

    Raises `InfrastructureFailure` when neither is to be had.
    """
    own = await box.run(["/bin/sh", "-c", _OWN_HOME], user=user, cwd="/")
    if own.exit_code == 0 and own.stdout:
        return own.stdout.decode()
    ids = await box.run(["/bin/sh", "-c", 'echo "$(id -u):$(id -g)"'], user=user, cwd="/")
    made = await box.run(
        ["/bin/sh", "-c", _MAKE_HOME, "home", FRESH_HOME, ids.stdout.decode().strip()], cwd="/"
    )
    _require(made, f"a home for the user {user!r}")
    return FRESH_HOME


async def write_private(box: Box, path: str, data: str | bytes, user: str | None) -> None:
    """A file of mode 0600 that is the user's, its folders too where they are new. Replaces an earlier one."""
    await make_folder(box, str(PurePosixPath(path).parent), user)
    await box.write(path, data.encode() if isinstance(data, str) else data, mode=0o600, user=user)


async def put_settings(box: Box, context: HarnessContext, folder: str, files: Mapping[str, Any]) -> None:
    """The JSON files of the harness's own folder below HOME, by name, and the task's skills beside them."""
    path = f"{context.home}/{folder}"
    for name, document in files.items():
        await write_private(box, f"{path}/{name}", json.dumps(document, indent=1), context.user)
    await copy_skills(box, context.task.skills_dir, f"{path}/skills", context.user)


async def write_session(box: Box, path: str, data: bytes, user: str | None) -> None:
    """As `write_private`, and new: a file put from outside is from 1970, and claude removes old sessions."""
    await write_private(box, path, data, user)
    touched = await box.run(["touch", path], user=user, cwd="/")
    _require(touched, f"the session {path}")


async def real_path(box: Box, path: str) -> str:
    """`path` of a folder without links, as a program there knows it."""
    found = await box.run(["/bin/sh", "-c", "pwd -P"], cwd=path)
    _require(found, f"the real path of {path}")
    return found.stdout.decode().removesuffix("\n")


async def make_folder(box: Box, path: str, user: str | None) -> None:
    """A folder with its parents, the user's where they are new."""
    made = await box.run(["mkdir", "-p", path], user=user, cwd="/")
    _require(made, f"the folder {path}")


async def copy_skills(box: Box, source: str | None, target: str, user: str | None) -> None:
    """The skills that a task keeps in its image at `source`, into the harness's own folder of skills.

    A source that is None or not there is no error: Harbor's rule.
    """
    if source is not None:
        await make_folder(box, target, user)
        argv = ["/bin/sh", "-c", _COPY_SKILLS, "skills", source, target, user or "0"]
        _require(await box.run(argv), f"the skills of {source}")


def _require(result: RunResult, what: str) -> None:
    if result.exit_code != 0:
        told = result.stderr.decode(errors="replace").strip()
        message = f"{what} could not be made in the box: {told}"
        raise InfrastructureFailure(message, code=AGENT_INSTALL_FAILED)
