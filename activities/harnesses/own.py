"""An agent that a user registered: its built files, its command, and the run contract of contract 6.10."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from activities.harnesses.base import BUNDLE_ROOT, HarnessContext, Launch, UnbundledHarness
from activities.sandboxes.base import Box
from domain.agents import (
    GATEWAY_API_KEY,
    GATEWAY_BASE_URL,
    INSTRUCTION_FILE,
    MODEL,
    OPENAI_API_KEY,
    OPENAI_BASE_URL,
)
from domain.errors import EvolveError
from domain.rosters import REGISTERED_STDOUT_FILE
from store.agents import read_revision
from store.database import Database

PREFIX = BUNDLE_ROOT
"""The same path where it is built and where it runs: what a build wrote down of it stays true."""
INSTRUCTION_PATH = f"{PREFIX}/instruction.md"
# PATH is the box's own, which only a shell in the box knows.
_WITH_PREFIX = 'PATH="$PREFIX/bin:$PATH"; export PATH; exec /bin/sh -c "$1"'


def built_path(state_dir: Path, revision_id: str) -> Path:
    """Where a revision's built files are on a host, as a tar."""
    return state_dir / "agents" / f"{revision_id}.tar"


@dataclass(frozen=True)
class OwnAgent:
    """The revision of a registered agent that an arm pinned."""

    revision_id: str
    name: str
    run_command: str
    env: Mapping[str, str]


async def read_own_agent(db: Database, revision_id: str) -> OwnAgent:
    """The revision that an arm pinned; raises `EvolveError` when it was removed."""
    row = await read_revision(db, revision_id)
    if row is None:
        raise EvolveError(f"the registered agent {revision_id} was removed", code="agent_not_found")
    return OwnAgent(revision_id, row["name"], row["run_command"], row["env"])


class OwnHarness(UnbundledHarness):
    """`built` is the tar of its $PREFIX on this host, there before `install` is called."""

    stdout_file = REGISTERED_STDOUT_FILE

    def __init__(self, agent: OwnAgent, built: Path) -> None:
        self.name = agent.name
        self.agent = agent
        self._built = built

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Its files and the instruction; they are root's, and every user's to read."""
        await box.put_tar(PREFIX, await asyncio.to_thread(self._built.read_bytes))
        await box.write(INSTRUCTION_PATH, context.instruction.encode())

    def launch(self, context: HarnessContext) -> Launch | None:
        """`sh -c` of the command, in the task's directory, the instruction on stdin."""
        access = context.model_access
        base_url = f"{access.base_url}/v1"
        env = {
            "HOME": context.home,
            **self.agent.env,
            "PREFIX": PREFIX,
            INSTRUCTION_FILE: INSTRUCTION_PATH,
            GATEWAY_BASE_URL: base_url,
            GATEWAY_API_KEY: access.api_key,
            OPENAI_BASE_URL: base_url,
            OPENAI_API_KEY: access.api_key,
            MODEL: access.model,
        }
        argv = ("/bin/sh", "-c", _WITH_PREFIX, self.name, self.agent.run_command)
        return Launch(argv, env, context.instruction.encode())
