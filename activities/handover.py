"""What a task runs in the agent's box when the agent is over: `pre_artifacts.sh`, then its collect hooks.

They run as the agent's user: what it left in its repository (filters, hooks) then acts with no more rights
than it had. One that fails is told, and what is there is judged all the same.
"""

from __future__ import annotations

from activities.sandboxes import process
from activities.sandboxes.base import Box
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec
from activities.trial_context import TrialContext
from domain.tasks import resolve_env

PRE_ARTIFACTS = "pre-artifacts"
PRE_ARTIFACTS_SEC = 600.0
"""No declaration bounds it."""
SAID_BYTES = 2_000
_LAY_FOLDER = """
{ [ -d /logs ] && [ ! -L /logs ]; } || rm -rf /logs
{ [ -d /logs/artifacts ] && [ ! -L /logs/artifacts ]; } || rm -rf /logs/artifacts
mkdir -p /logs/artifacts && chmod 1777 /logs/artifacts
"""
# Pending work is committed, so that a diff of commits has it. The script comes on stdin, since its user
# need not be able to read what root writes.
_COMMIT_AND_RUN = """
if command -v git >/dev/null && git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  git add -A
  git diff --cached --quiet || git -c user.name=agent -c user.email=agent@localhost \
    -c commit.gpgsign=false -c core.hooksPath=/dev/null commit -q --no-verify -m 'Work left uncommitted'
fi
script=/tmp/.evolve-pre-artifacts
rm -rf "$script"
cat >"$script" || exit
if command -v bash >/dev/null; then bash "$script" </dev/null; else sh "$script" </dev/null; fi
code=$?
rm -f "$script"
exit "$code"
"""
# The repository may be another user's; said here it holds for the script's own calls as well.
_ANY_REPOSITORY = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


async def hand_over(context: TrialContext, box: Box, user: str | None, script: bytes | None) -> list[str]:
    """Run them once each, whoever dies meanwhile; returns what went wrong. `script` is `pre_artifacts.sh`."""
    specs = _specs(context, user, script)
    if not specs:
        return []
    await box.run(["sh", "-c", _LAY_FOLDER])
    told = [await _run(box, title, spec) for title, spec in specs]
    return [each for each in told if each is not None]


def _specs(context: TrialContext, user: str | None, script: bytes | None) -> list[tuple[str, ProcessSpec]]:
    env = resolve_env(context.task.env)
    specs = [
        (
            f"collect hook {hook.command!r}",
            ProcessSpec(
                name=context.process_name(f"collect-{number}"),
                argv=("sh", "-c", hook.command),
                user=hook.user or user,
                env=env,
                deadline_sec=hook.timeout_sec,
            ),
        )
        for number, hook in enumerate(context.task.collect)
    ]
    if script is not None:
        first = ProcessSpec(
            name=context.process_name(PRE_ARTIFACTS),
            argv=("sh", "-c", _COMMIT_AND_RUN),
            user=user,
            env={**env, **_ANY_REPOSITORY},
            stdin=script,
            deadline_sec=PRE_ARTIFACTS_SEC,
        )
        specs.insert(0, ("pre_artifacts.sh", first))
    return specs


async def _run(box: Box, title: str, spec: ProcessSpec) -> str | None:
    await process.start(box, spec)
    said = b""
    async for item in process.follow(box, spec.name, {}):
        if isinstance(item, ExitStatus):
            return _problem(title, item, said)
        said = _end_of(said, item)
    raise AssertionError("a followed process always ends")


def _end_of(said: bytes, chunk: Chunk) -> bytes:
    return (said + chunk.data)[-SAID_BYTES:]


def _problem(title: str, status: ExitStatus, said: bytes) -> str | None:
    if status.exit_code == 0:
        return None
    how = "ran out of time" if status.is_deadline else f"ended with exit code {status.exit_code}"
    return f"{title} {how}: {said.decode(errors='replace').strip()}"
