"""`nop` does nothing: what a task scores when nobody works on it."""

from __future__ import annotations

from activities.harnesses.base import HarnessContext, Launch, UnbundledHarness
from activities.sandboxes.base import Box


class NopHarness(UnbundledHarness):
    """The empty agent."""

    name = "nop"
    stdout_file = "nop.txt"

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Nothing to install."""

    def launch(self, context: HarnessContext) -> Launch | None:
        """Nothing to run."""
        return None
