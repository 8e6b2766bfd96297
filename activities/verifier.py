"""The verify phase: the tests arrive when the agent is over, run once, are read once.

In shared mode they run in the agent's own box; else see `separate_verifier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

from temporalio import activity

from activities.archives import tar_of_trees
from activities.artifacts import ArtifactsTooLarge
from activities.capture import Capture
from activities.following import Followed, follow_into_store
from activities.handover import hand_over
from activities.heartbeats import heartbeats
from activities.judge import mint_judge_env, revoke_judge_key
from activities.judge_packages import judge_package_env
from activities.masks import key_secrets
from activities.open_box import Windows, enter
from activities.sandboxes import process
from activities.sandboxes.base import Box
from activities.sandboxes.process import ProcessSpec, Stream
from activities.separate_verifier import SeparateVerifier, pre_artifacts_script
from activities.signatures import RUN_VERIFIER, VerifierEnd, VerifierInput
from activities.step_records import members_of_step
from activities.trial_context import Hands, TrialContext, fence_of
from domain.errors import EvolveError
from domain.events import TrialName, trial_scoring
from domain.rewards import REWARD_FILE_MAX_BYTES, Reward, RewardFailure, read_reward
from domain.steps import unmet_gate
from domain.tasks import EnvValue, resolve_env
from domain.verifier_place import verifier_place
from domain.vocabulary import AttemptPhase, TrialStatus
from store.database import now
from store.record import PhaseChange

PROCESS = "verifier"
TESTS_DIR = "/tests"
LOGS_DIR = "/logs/verifier"


# $1 holds the tests. The verifier's directory is made fresh, root's alone, so that nothing the agent left
# there is read. Done once: a worker that was frozen before this must not do it to a verifier that runs.
def _once(verifier: str, lay_tests: str) -> str:
    # An agent may have left a file, or a link, where the folder of the logs belongs.
    script = (
        f"{{ [ -d /logs ] && [ ! -L /logs ]; }} || rm -rf /logs; rm -rf {LOGS_DIR} && {lay_tests}"
        f" && mkdir -p /logs/artifacts && mkdir -m 700 {LOGS_DIR}"
    )
    return process.only_before(verifier, script) + ' || exit; rm -rf "$1"'


LAY_OUT = f'rm -rf {TESTS_DIR} && mv "$1" {TESTS_DIR}'
# An image of the verifier's own may hold more of the tests than the task does: they lie beside each other.
LAY_OUT_FRESH = f'mkdir -p {TESTS_DIR} && cp -a "$1"/. {TESTS_DIR}/'
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
            windows = Windows()
            try:
                box = await self._box_with_tests(context, attempt, windows)
            except (BoxUnfit, ArtifactsTooLarge) as fault:
                return VerifierEnd(problem=fault.message)
            end = await self._follow(context, attempt, box, windows)
            if context.step is not None:
                await self._keep_step(context, box)
        return end

    async def _keep_step(self, context: TrialContext, box: Box) -> None:
        """What the step left where logs and artifacts belong: the next step begins without it."""
        attempt = context.attempt
        secrets = await key_secrets(
            self._hands.db, self._hands.secret, attempt.trial_id, attempt.attempt_number
        )
        capture = Capture(self._hands, context, fence_of(attempt, AttemptPhase.VERIFY), secrets)
        await capture.keep_box(box)
        await capture.register()

    async def _box_with_tests(self, context: TrialContext, attempt: VerifierInput, windows: Windows) -> Box:
        """The box in which the tests run, or ran already."""
        if context.task.verifier_mode == "separate":
            return await self._in_a_box_of_its_own(context, attempt, windows)
        started_at = now()
        box = await self._hands.provider(attempt.provider).attach(attempt.box_id)
        if await process.status(box, context.process_name(PROCESS)) is None:
            script = await pre_artifacts_script(self._hands, context)
            problems = await hand_over(context, box, attempt.harness.user, script)
            if problems:
                windows.members["x_handover"] = {"problems": problems}
            await self._lay_out(context, box, LAY_OUT)
            windows.close("shared_verify_setup", started_at)
            await process.start(box, await self._spec(context, box, attempt.timeout_sec, context.task.env))
        return box

    async def _in_a_box_of_its_own(
        self, context: TrialContext, attempt: VerifierInput, windows: Windows
    ) -> Box:
        separate = self._separate(context, attempt)
        inputs = await separate.recorded()
        begun = await separate.begun(PROCESS)
        if begun is not None:
            return begun
        box = await separate.open(windows)
        await separate.furnish(box, inputs)
        await self._lay_out(context, box, LAY_OUT_FRESH)
        env = verifier_place(context.task).env
        await process.start(box, await self._spec(context, box, attempt.timeout_sec, env))
        return box

    def _separate(self, context: TrialContext, attempt: VerifierInput) -> SeparateVerifier:
        return SeparateVerifier(self._hands, context, attempt)

    async def _follow(
        self, context: TrialContext, attempt: VerifierInput, box: Box, windows: Windows
    ) -> VerifierEnd:
        """The verifier's output and end, and the reward that it left."""
        started_at = now()
        fence = fence_of(attempt, AttemptPhase.VERIFY)
        followed = Followed(context.process_name(PROCESS), verifier_streams(context))
        status = await follow_into_store(self._hands.db, box, fence, followed)
        windows.close("verifier", status.started_at or started_at, status.finished_at)
        await revoke_judge_key(self._hands, context)
        reading = await read_reward_files(box)
        if isinstance(reading, Reward):
            windows.members["verifier_result"] = {"rewards": reading.rewards}
        members = await members_of_step(self._hands.db, context, windows.members)
        await enter(self._hands, attempt, AttemptPhase.VERIFY, PhaseChange(members=members))
        return VerifierEnd(
            exit_code=status.exit_code,
            is_timeout=status.is_deadline,
            problem=reading.message if isinstance(reading, RewardFailure) else None,
            unmet_gate=_unmet_gate(context, reading),
        )

    async def _lay_out(self, context: TrialContext, box: Box, script: str) -> None:
        staged = f"{TESTS_DIR}.{uuid4().hex}"
        task_dir = await self._hands.task_dir(context.stored)
        folders = [task_dir / folder for folder in context.task.tests_folders]
        await box.put_tar(staged, tar_of_trees([folder for folder in folders if folder.is_dir()]))
        verifier = context.process_name(PROCESS)
        result = await box.run(["sh", "-c", _once(verifier, script), "lay-out", staged])
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace").strip()
            raise BoxUnfit(f"the agent left the box unfit for its verifier: {said}")

    async def _spec(
        self, context: TrialContext, box: Box, timeout_sec: float, env: Mapping[str, EnvValue]
    ) -> ProcessSpec:
        return ProcessSpec(
            name=context.process_name(PROCESS),
            argv=("sh", "-c", SCRIPT),
            user=None,
            cwd=box.workdir,
            env={
                **await judge_package_env(self._hands, context),
                **resolve_env(env),
                **resolve_env(context.task.verifier_env),
                **await mint_judge_env(self._hands, context),
                **context.plan.verifier_env,
            },
            stdin=None,
            deadline_sec=timeout_sec,
        )


def verifier_streams(context: TrialContext) -> dict[Stream, str]:
    """The names that a verifier's output is stored under."""
    return {"out": context.place("verifier/stdout")}


def _unmet_gate(context: TrialContext, reading: Reward | RewardFailure) -> str | None:
    if context.step is None or not isinstance(reading, Reward):
        return None
    return unmet_gate(context.step.min_reward, reading.rewards)


async def read_reward_files(box: Box) -> Reward | RewardFailure:
    """The reward that the tests left, read once after they ended."""
    return read_reward(await _content(box, "reward.txt"), await _content(box, "reward.json"))


async def _content(box: Box, name: str) -> bytes | None:
    try:
        return await box.read(f"{LOGS_DIR}/{name}", limit=REWARD_FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
