"""The verify phase in shared mode: the tests arrive when the agent is over, run once, are read once."""

from __future__ import annotations

from uuid import uuid4

from temporalio import activity

from activities.archives import tar_of_tree
from activities.following import Followed, follow_into_store
from activities.heartbeats import heartbeats
from activities.judge import mint_judge_env, revoke_judge_key
from activities.open_box import Windows, enter
from activities.sandboxes import process
from activities.sandboxes.base import Box
from activities.sandboxes.process import ProcessSpec, Stream
from activities.signatures import RUN_VERIFIER, VerifierEnd, VerifierInput
from activities.trial_context import Hands, TrialContext, fence_of
from domain.errors import EvolveError
from domain.events import TrialName, trial_scoring
from domain.rewards import REWARD_FILE_MAX_BYTES, Reward, RewardFailure, read_reward
from domain.tasks import resolve_env
from domain.vocabulary import AttemptPhase, TrialStatus
from store.database import now
from store.record import PhaseChange

PROCESS = "verifier"
STREAMS: dict[Stream, str] = {"out": "verifier/stdout"}
TESTS_DIR = "/tests"
LOGS_DIR = "/logs/verifier"
# $1 holds the tests. The verifier's directory is made fresh, root's alone, so that nothing the agent left
# there is read. Done once: a worker that was frozen before this must not do it to a verifier that runs.
LAY_OUT = (
    process.only_before(
        PROCESS,
        # An agent may have left a file, or a link, where the folder of the logs belongs.
        f"{{ [ -d /logs ] && [ ! -L /logs ]; }} || rm -rf /logs; "
        f'rm -rf {TESTS_DIR} {LOGS_DIR} && mv "$1" {TESTS_DIR}'
        f" && mkdir -p /logs/artifacts && mkdir -m 700 {LOGS_DIR}",
    )
    + ' || exit; rm -rf "$1"'
)
# One stream, in the order it was written; by bash, since most real ones are not executable, and by sh
# where an image has no bash.
SCRIPT = (
    f"exec 2>&1; if command -v bash >/dev/null; then exec bash {TESTS_DIR}/test.sh; fi; "
    f"exec sh {TESTS_DIR}/test.sh"
)


class BoxUnfit(EvolveError):
    """The tests cannot be laid out in what the agent left: the trial has no score."""

    code = "box_unfit"


class RunVerifier:
    """`run_verifier`: re-attach first; its exit code never overrides a reward file."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=RUN_VERIFIER.name)
    async def run_verifier(self, attempt: VerifierInput) -> VerifierEnd:
        async with heartbeats():
            context = await self._hands.load(attempt)
            name = TrialName(
                trial_id=attempt.trial_id,
                task_name=context.task_name,
                attempt_number=attempt.attempt_number,
            )
            change = PhaseChange(status=TrialStatus.SCORING, event=trial_scoring(name))
            await enter(self._hands, attempt, AttemptPhase.VERIFY, change)
            box = await self._hands.provider(attempt.provider).attach(attempt.box_id)
            windows, started_at = Windows(), now()
            if await process.status(box, PROCESS) is None:
                try:
                    await self._lay_out(context, box)
                except BoxUnfit as unfit:
                    return VerifierEnd(problem=unfit.message)
                started_at = windows.close("shared_verify_setup", started_at)
                await process.start(box, await self._spec(context, box, attempt.timeout_sec))
            fence = fence_of(attempt, AttemptPhase.VERIFY)
            status = await follow_into_store(self._hands.db, box, fence, Followed(PROCESS, STREAMS))
            windows.close("verifier", status.started_at or started_at)
            await revoke_judge_key(self._hands, context)
            reading = await read_reward_files(box)
            if isinstance(reading, Reward):
                windows.members["verifier_result"] = {"rewards": reading.rewards}
            await enter(self._hands, attempt, AttemptPhase.VERIFY, PhaseChange(members=windows.members))
        return VerifierEnd(
            exit_code=status.exit_code,
            is_timeout=status.is_deadline,
            problem=reading.message if isinstance(reading, RewardFailure) else None,
        )

    async def _lay_out(self, context: TrialContext, box: Box) -> None:
        staged = f"{TESTS_DIR}.{uuid4().hex}"
        task_dir = await self._hands.task_dir(context.stored)
        await box.put_tar(staged, tar_of_tree(task_dir / "tests"))
        result = await box.run(["sh", "-c", LAY_OUT, "lay-out", staged])
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace").strip()
            raise BoxUnfit(f"the agent left the box unfit for its verifier: {said}")

    async def _spec(self, context: TrialContext, box: Box, timeout_sec: float) -> ProcessSpec:
        return ProcessSpec(
            name=PROCESS,
            argv=("sh", "-c", SCRIPT),
            user=None,
            cwd=box.workdir,
            env={
                **resolve_env(context.task.env),
                **resolve_env(context.task.verifier_env),
                **await mint_judge_env(self._hands, context),
                **context.plan.verifier_env,
            },
            stdin=None,
            deadline_sec=timeout_sec,
        )


async def read_reward_files(box: Box) -> Reward | RewardFailure:
    """The reward that the tests left, read once after they ended."""
    return read_reward(await _content(box, "reward.txt"), await _content(box, "reward.json"))


async def _content(box: Box, name: str) -> bytes | None:
    try:
        return await box.read(f"{LOGS_DIR}/{name}", limit=REWARD_FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
