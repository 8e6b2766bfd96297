"""The agent's home after its run: kept at its real names, with a record of every file (contract 8.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from pydantic_core import to_json

from activities.capture import Capture, Entry
from activities.harnesses.base import SessionCopy
from activities.sandboxes.base import Box
from domain.errors import SandboxDeath
from store.trials import TrialFile

RECORD = "agent/agent-home.json"


@dataclass
class _Home:
    """What was found of a home. Paths are relative to it."""

    excluded_patterns: Sequence[str]
    files: list[tuple[str, int, TrialFile]] = field(default_factory=list[tuple[str, int, TrialFile]])
    excluded: set[str] = field(default_factory=set[str])
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def is_wanted(self, path: str) -> bool:
        """Whether a path is kept; an excluded one is noted by the highest folder that is excluded."""
        pure = PurePosixPath(path)
        for above in (*reversed(pure.parents), pure):
            if any(fnmatchcase(str(above), pattern) for pattern in self.excluded_patterns):
                self.excluded.add(str(above))
                return False
        return True

    def add(self, path: str, entry: Entry) -> None:
        """Note an entry of a captured tree."""
        if entry.file is not None:
            self.files.append((path, entry.member.mode, entry.file))
        else:
            self.skipped.append((path, entry.reason or entry.member.kind))

    def document(self, home: str) -> dict[str, Any]:
        """`agent-home.json`. Sizes and digests are those of what is kept: secrets are masked in it."""
        files = [
            {"path": path, "size": file.size_bytes, "sha256": file.sha256, "mode": f"{mode:04o}"}
            for path, mode, file in sorted(self.files, key=lambda kept: kept[0])
        ]
        skipped = [{"path": path, "reason": reason} for path, reason in sorted(self.skipped)]
        return {"home": home, "files": files, "excluded": sorted(self.excluded), "skipped": skipped}


async def keep_home(capture: Capture, box: Box, home: str) -> None:
    """Keep what the harness's rules name below `home`, Harbor's copies of its sessions, and the record.

    Nothing is kept of an agent without rules. A box that is gone is told among what was left out.
    """
    rules = capture.context.harness.home_rules
    if not rules.captured:
        return
    # A pattern of all that a folder holds means the folder.
    found = _Home([pattern.removesuffix("/*").removesuffix("/**") for pattern in rules.excluded])
    try:
        for path in rules.captured:
            await _keep_path(capture, box, home, path, found)
    except SandboxDeath as death:
        capture.left_out.append(f"the agent's home: the box is gone: {death}")
    for copy in rules.session_copies:
        _copy_sessions(capture, found, copy)
    await capture.keep(RECORD, to_json(found.document(home), indent=2) + b"\n")


async def _keep_path(capture: Capture, box: Box, home: str, path: str, found: _Home) -> None:
    def at(name: str) -> str:
        return f"{path}/{name}" if name else path

    entries = capture.tree(box, f"{home}/{path}", f"agent/{path}", lambda name: found.is_wanted(at(name)))
    async for entry in entries:
        found.add(at(entry.member.name), entry)


def _copy_sessions(capture: Capture, found: _Home, copy: SessionCopy) -> None:
    for path, _, file in found.files:
        if path.startswith(f"{copy.source}/"):
            target = copy.target.removeprefix("agent/")
            capture.keep_again(file, f"agent/{target}/{path.removeprefix(f'{copy.source}/')}")
