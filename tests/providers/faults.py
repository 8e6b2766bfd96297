"""What is to go wrong in the fast provider, written beforehand on disk: each fault is met once.

The places are `create` (a box is asked for), `destroy`, `agent-launched` and `verifier-launched` (the
command has started, and its answer is lost on the way), `agent` and `verifier` (the process is looked at).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from domain.errors import (
    CapacityWait,
    DeleteRefused,
    EvolveError,
    ExecChdirFailure,
    ProviderCreateFailure,
    ProviderUnreachable,
    SandboxDeath,
    StreamDisconnect,
)

FAULTS: dict[str, Callable[[str], EvolveError]] = {
    "429": CapacityWait,
    "create-failure": ProviderCreateFailure,
    "death": SandboxDeath,
    "delete-refused": DeleteRefused,
    "disconnect": StreamDisconnect,
    "no-directory": ExecChdirFailure,
    "reply-lost": ProviderUnreachable,
    "unnamed": EvolveError,
}


class Faults:
    """A queue of faults for each place."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._n_planned = 0

    def plan(self, place: str, *kinds: str) -> None:
        """The next ones to come to the place meet these, one after another."""
        for kind in kinds:
            self._n_planned += 1
            (self._root / f"{place}.{self._n_planned:06}").write_text(kind)

    def left(self, place: str) -> int:
        """How many nobody has met yet."""
        return len(self._of(place))

    def meet(self, place: str) -> None:
        """Raise the next fault of the place; return when none is left."""
        for path in self._of(place):
            try:
                kind = path.read_text()
                path.unlink()
            except FileNotFoundError:
                continue  # another met it
            raise FAULTS[kind](f"{kind} at {place}")

    def _of(self, place: str) -> list[Path]:
        return sorted(self._root.glob(f"{place}.*"))
