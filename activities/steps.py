"""Before the agent of a step starts: no trace of earlier tests, the step's own files, its setup, its key."""

from __future__ import annotations

from uuid import uuid4

from temporalio import activity

from activities.agent import PROCESS as AGENT
from activities.archives import tar_of_tree
from activities.healthcheck import await_healthy
from activities.heartbeats import heartbeats
from activities.open_box import enter, install_agent
from activities.sandboxes import process
from activities.sandboxes.base import Box
from activities.sandboxes.process import ExitStatus, ProcessSpec
from activities.signatures import PREPARE_STEP, BoxedAttempt, StepReady
from activities.step_records import members_of_step
from activities.trial_context import Hands, TrialContext
from domain.errors import HealthcheckFailed, InfrastructureFailure
from domain.task_env import resolve_env
from domain.task_steps import SETUP_TIMEOUT_SEC, TaskStep
from domain.vocabulary import AttemptPhase, ExceptionType, TrialStatus
from store.database import now
from store.record import PhaseChange, exception_info

SETUP = "setup"
SAID_BYTES = 2_000
# Hidden tests and what they wrote are gone before the next agent starts; the logs of the step before are
# kept already. Folders stay as the image made them; a link in place of one is the agent's doing.
FORGET = """rm -rf /tests /logs/verifier || exit
for folder in /logs/agent /logs/artifacts; do
  if [ -L "$folder" ]; then rm -f "$folder"; fi
  [ -d "$folder" ] && rm -rf -- "$folder"/..?* "$folder"/.[!.]* "$folder"/*
done
exit 0"""
LAY_WORKDIR = 'cp -R "$1"/. "$2"/'
RUN_SETUP = "if command -v bash >/dev/null; then exec bash ./setup.sh; fi; exec sh ./setup.sh"


class PrepareStep:
    """`prepare_step`: a repeat finds `setup.sh` run; nothing is touched once the agent started."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=PREPARE_STEP.name)
    async def prepare_step(self, attempt: BoxedAttempt) -> StepReady:
        async with heartbeats():
            context = await self._hands.load(attempt)
            step = context.step
            assert step is not None
            await enter(self._hands, attempt, AttemptPhase.INSTALL)
            box = await self._hands.provider(attempt.provider).attach(attempt.box_id)
            if attempt.step:
                await self._forget_tests(context, box)
            change = PhaseChange(
                status=TrialStatus.RUNNING, members=await members_of_step(self._hands.db, context, {})
            )
            await enter(self._hands, attempt, AttemptPhase.INSTALL, change)
            problem = await self._set_up(context, box, step, attempt.harness.user)
            if problem is None:
                await install_agent(self._hands, context, box, attempt.harness)
            else:
                await self._record(attempt, context, problem)
        return StepReady(problem=problem)

    async def _forget_tests(self, context: TrialContext, box: Box) -> None:
        script = process.only_before(context.process_name(AGENT), FORGET)
        await _checked(box, ["sh", "-c", script, "forget"], "what the step before left could not be removed")

    async def _set_up(self, context: TrialContext, box: Box, step: TaskStep, user: str | None) -> str | None:
        """The step's files, its `setup.sh`, its healthcheck; what went wrong, None when all is well."""
        if step.has_workdir:
            await self._lay_workdir(context, box, step)
        if step.has_setup:
            problem = await _run_setup(context, box, step, user)
            if problem is not None:
                return problem
        if step.healthcheck is not None:
            try:
                await await_healthy(box, step.healthcheck, user, context.task.env)
            except HealthcheckFailed as failure:
                return f"step {step.name}: {failure.message}"
        return None

    async def _lay_workdir(self, context: TrialContext, box: Box, step: TaskStep) -> None:
        """Over what is there. Once `setup.sh` has begun, or the agent, the files are theirs."""
        task_dir = await self._hands.task_dir(context.stored)
        staged = f"/tmp/.evolve-workdir-{uuid4().hex}"
        await box.put_tar(staged, tar_of_tree(task_dir / step.folder / "workdir"))
        begun = context.process_name(SETUP if step.has_setup else AGENT)
        script = process.only_before(begun, LAY_WORKDIR) + ' || exit; rm -rf "$1"'
        argv = ["sh", "-c", script, "lay-workdir", staged, box.workdir]
        await _checked(box, argv, f"the files of step {step.name} could not be laid in {box.workdir}")

    async def _record(self, attempt: BoxedAttempt, context: TrialContext, problem: str) -> None:
        failed = {"exception_info": exception_info((ExceptionType.INFRASTRUCTURE, problem), now())}
        members = await members_of_step(self._hands.db, context, failed)
        await enter(self._hands, attempt, AttemptPhase.INSTALL, PhaseChange(members=members))


async def _run_setup(context: TrialContext, box: Box, step: TaskStep, user: str | None) -> str | None:
    """Run once, as the agent's user, whoever dies meanwhile."""
    spec = ProcessSpec(
        name=context.process_name(SETUP),
        argv=("sh", "-c", f"exec 2>&1; {RUN_SETUP}"),
        user=user,
        cwd=box.workdir,
        env=resolve_env(context.task.env),
        deadline_sec=SETUP_TIMEOUT_SEC,
    )
    await process.start(box, spec)
    said = b""
    async for item in process.follow(box, spec.name, {}):
        if isinstance(item, ExitStatus):
            return _problem(step, item, said)
        said = (said + item.data)[-SAID_BYTES:]
    raise AssertionError("a followed process always ends")


def _problem(step: TaskStep, status: ExitStatus, said: bytes) -> str | None:
    if status.exit_code == 0:
        return None
    how = f"ran past {SETUP_TIMEOUT_SEC:g} s" if status.is_deadline else f"ended with {status.exit_code}"
    return f"step {step.name}: setup.sh {how}: {said.decode(errors='replace').strip()}"


async def _checked(box: Box, argv: list[str], failed: str) -> None:
    result = await box.run(argv, timeout_sec=120)
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()
        raise InfrastructureFailure(f"{failed}: {said}")
