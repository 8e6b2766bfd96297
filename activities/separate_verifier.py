"""A separate verifier's box: the agent's box hands on its artifacts and goes, a fresh one takes its room.

The order makes a worker's death harmless. What is to be judged is stored and recorded before the agent's
box is ended, and that before the verifier's gets room: nobody waits for room while holding any, so trials
never wait for each other in a circle. A later try finds each of these done.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

from activities.artifacts import gather, lay_artifacts
from activities.capture import Capture
from activities.ending import end_box
from activities.handover import hand_over
from activities.healthcheck import await_healthy
from activities.home_capture import keep_home
from activities.judge_packages import judge_mounts
from activities.making import TrialOver, make_leased_box
from activities.masks import key_secrets
from activities.open_box import LIFETIME_MARGIN_SEC, Windows, enter
from activities.prepare import UNDECLARED_CPUS, UNDECLARED_MEMORY_MB
from activities.sandboxes import process
from activities.sandboxes.base import Box, BoxSpec, SandboxProvider
from activities.signatures import VerifierInput
from activities.trial_context import Hands, TrialContext, box_tag, fence_of
from activities.verifier_image import ensure_verifier_image
from domain.errors import SandboxDeath
from domain.verifier_inputs import VerifierInputs
from domain.verifier_place import VerifierPlace, verifier_place
from domain.vocabulary import AttemptPhase
from store.database import now
from store.hosts import Room, leased_boxes, mark_ending
from store.record import PhaseChange
from store.rooms import exchange_room
from store.verifier_inputs import MEMBER, verifier_inputs

ROOM_POLL_SEC = 2.0


class SeparateVerifier:
    """One attempt's. `recorded` first; then, unless the tests have `begun`, `open` and `furnish`."""

    def __init__(self, hands: Hands, context: TrialContext, attempt: VerifierInput) -> None:
        self._hands = hands
        self._context = context
        self._attempt = attempt
        self._place: VerifierPlace = verifier_place(context.task)
        self._tag = box_tag(hands.installation_id, attempt, "verifier")

    @property
    def _provider(self) -> SandboxProvider:
        return self._hands.provider(self._attempt.provider)

    async def recorded(self) -> VerifierInputs:
        """What is to be judged; gathered from the agent's box unless an earlier try has done so.

        Raises `ArtifactsTooLarge`, and `SandboxDeath` when that box is gone with its work.
        """
        attempt = self._attempt
        found = await verifier_inputs(self._hands.db, attempt.trial_id, attempt.attempt_number)
        return found or await self._gather()

    async def _gather(self) -> VerifierInputs:
        hands, context, attempt = self._hands, self._context, self._attempt
        box = await self._provider.attach(attempt.box_id)
        script = await pre_artifacts_script(hands, context)
        problems = await hand_over(context, box, attempt.harness.user, script)
        secrets = await key_secrets(hands.db, hands.secret, attempt.trial_id, attempt.attempt_number)
        capture = Capture(hands, context, fence_of(attempt, AttemptPhase.VERIFY), secrets)
        handed = await gather(hands, context, box, attempt.provider, capture)
        await capture.keep_logs(box)
        await keep_home(capture, box, attempt.harness.home)
        await capture.register()
        told = {"problems": problems, "not_carried": handed.left_out, "left_out": capture.left_out}
        members: dict[str, Any] = {
            MEMBER: handed.inputs.model_dump(mode="json"),
            "x_handover": {name: value for name, value in told.items() if value},
        }
        await self._enter(members)
        return handed.inputs

    async def begun(self, process_name: str) -> Box | None:
        """The box in which the tests run, or ran already: it is only followed. None where there is none."""
        attempt = self._attempt
        for lease in await leased_boxes(self._hands.db, attempt.trial_id, attempt.attempt_number):
            if lease["name"] == self._tag.name and lease["box_id"] is not None:
                with suppress(SandboxDeath):
                    box = await self._provider.attach(lease["box_id"])
                    return box if await process.status(box, process_name) is not None else None
        return None

    async def open(self, windows: Windows) -> Box:
        """The verifier's box, in the room that the agent's leaves. Raises `ProviderCreateFailure`."""
        await self._end_agents_box()
        started_at = now()
        image = await ensure_verifier_image(
            self._hands,
            self._context.stored,
            self._provider,
            self._context.build_limit_sec(self._place.build_timeout_sec),
        )
        await self._lease()
        box = await make_leased_box(
            self._hands.db,
            self._provider,
            BoxSpec(
                tag=self._tag,
                image=image,
                network_mode=self._place.network.mode,
                lifetime_sec=self._context.verifier_timeout_sec + LIFETIME_MARGIN_SEC,
                cpus=self._place.cpus,
                memory_mb=self._place.memory_mb,
                storage_mb=self._place.storage_mb,
                env=self._place.env_literals,
                workdir=self._place.workdir,
                mounts=await judge_mounts(self._hands, self._context),
            ),
        )
        windows.close("x_verifier_boot", started_at)
        await self._enter({"verifier_sandbox_id": box.box_id, **windows.members})
        if self._place.healthcheck is not None:
            await await_healthy(box, self._place.healthcheck, image.user, self._place.env)
        return box

    async def furnish(self, box: Box, inputs: VerifierInputs) -> None:
        """Lay the artifacts; asked for by a worker that was overtaken, nothing is touched."""
        await self._enter({})
        await lay_artifacts(self._hands, box, inputs)

    async def _end_agents_box(self) -> None:
        await mark_ending(self._hands.db, self._agents_name)
        await end_box(self._hands.db, self._provider, self._attempt.box_id)

    async def _lease(self) -> None:
        """Wait for room on this host, if what the agent's box left is not enough: others end, too."""
        room = Room(
            name=self._tag.name,
            provider=self._attempt.provider,
            trial_id=self._attempt.trial_id,
            attempt_number=self._attempt.attempt_number,
            cpus=self._place.cpus or UNDECLARED_CPUS,
            memory_mb=self._place.memory_mb or UNDECLARED_MEMORY_MB,
            host_id=self._attempt.host_id,
        )
        overcommit = self._hands.settings.cpu_overcommit
        fence = fence_of(self._attempt, AttemptPhase.VERIFY)
        while True:
            choice = await exchange_room(self._hands.db, fence, self._agents_name, room, overcommit)
            if choice is None:
                raise TrialOver(f"trial {self._attempt.trial_id} was deleted")
            if choice.waiting_for is None:
                return
            await asyncio.sleep(ROOM_POLL_SEC * (0.5 + random.random()))

    @property
    def _agents_name(self) -> str:
        return box_tag(self._hands.installation_id, self._attempt).name

    async def _enter(self, members: dict[str, Any]) -> None:
        change = PhaseChange(members=members)
        await enter(self._hands, self._attempt, AttemptPhase.VERIFY, change)


async def pre_artifacts_script(hands: Hands, context: TrialContext) -> bytes | None:
    """The task's `pre_artifacts.sh`, None where it has none."""
    if not context.task.has_pre_artifacts:
        return None
    return (await hands.task_dir(context.stored) / "pre_artifacts.sh").read_bytes()
