"""Build, boot, install: from a placed attempt to a box in which the agent can start."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from temporalio import activity

from activities.bundles import AgentInstallFailed, BundleFolder
from activities.failures import current_phase
from activities.harnesses.home import resolve_home
from activities.harnesses.own import OwnHarness
from activities.harnesses.seeds import SEEDED_HARNESSES
from activities.healthcheck import await_healthy
from activities.heartbeats import heartbeats
from activities.judge_packages import judge_mounts
from activities.making import TrialOver, make_leased_box
from activities.model_access import harness_context, mint_agent_key, refuse_spent_up
from activities.own_agents import ensure_built
from activities.sandboxes.base import Box, BoxSpec, ImageRef, ImageRequest, Mount, SandboxProvider
from activities.signatures import OPEN_BOX, HarnessPlace, OpenedBox, PlacedAttempt, StepPlan
from activities.trial_context import Hands, TrialContext, box_tag, fence_of
from domain.causes import TRAJECTORY_SEED
from domain.errors import EvolveError, ServiceDied
from domain.vocabulary import AttemptPhase
from store.database import now
from store.import_record import built_image
from store.record import PhaseChange, enter_phase, iso

# A box outlives its own trial by this much, so that a worker that was away finds what it left.
LIFETIME_MARGIN_SEC = 3600.0
# Harbor's limit for the same, which `agent_setup_timeout_multiplier` stretches.
AGENT_SETUP_SEC = 360.0


@dataclass
class Windows:
    """The timings of contract 3.8 as they come to be known: name → {started_at, finished_at}."""

    members: dict[str, Any] = field(default_factory=dict[str, Any])

    def close(self, name: str, started_at: datetime, finished_at: datetime | None = None) -> datetime:
        """The window from `started_at` to `finished_at`, by default now; returns its end."""
        at = finished_at or now()
        self.members[name] = {"started_at": iso(started_at), "finished_at": iso(at)}
        return at


class OpenBox:
    """`open_box`: find or build, find or make; harmless to repeat."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=OPEN_BOX.name)
    async def open_box(self, attempt: PlacedAttempt) -> OpenedBox:
        async with heartbeats():
            context = await self._hands.load(attempt)
            provider = self._hands.provider(attempt.provider)
            windows, started_at = Windows(), now()
            await enter(self._hands, attempt, AttemptPhase.BUILD)
            _require_seedable(context)
            await refuse_spent_up(self._hands, context)
            bundle = await self._bundle(context, provider, windows)
            image_at = now()
            image = await self._build(context, provider)
            windows.close("image_prepare", image_at)
            await enter(self._hands, attempt, AttemptPhase.BOOT)
            box = await self._boot(context, provider, image, bundle)
            booted_at = windows.close("environment_setup", started_at)
            windows.members["sandbox_provider"] = attempt.provider
            windows.members["verifier_environment_mode"] = context.task.verifier_mode
            windows.members["x_image"] = await self._image_facts(context, attempt.provider, image)
            if unenforced := self._hands.unenforced_sizes(context.task, attempt.provider):
                windows.members["x_unenforced"] = unenforced
            change = PhaseChange(members=windows.members, sandbox_id=box.box_id)
            await enter(self._hands, attempt, AttemptPhase.INSTALL, change)
            await self._require_healthy(context, box, image)
            place = await self._install_in_time(context, box, image, bundle)
            await _require_service(box)
            windows.close("agent_setup", booted_at)
            await enter(self._hands, attempt, AttemptPhase.INSTALL, PhaseChange(members=windows.members))
        return OpenedBox(
            box_id=box.box_id,
            agent_timeout_sec=context.agent_timeout_sec,
            verifier_timeout_sec=context.verifier_timeout_sec,
            harness=place,
            steps=_step_plans(context),
        )

    async def _bundle(
        self, context: TrialContext, provider: SandboxProvider, windows: Windows
    ) -> BundleFolder | None:
        """What the harness is made of, on this host; None for one that is made of nothing, or is a
        registered agent, whose files are built here and go into the box with its install."""
        harness, started_at = context.harness, now()
        if isinstance(harness, OwnHarness):
            is_hit = await ensure_built(self._hands, provider, harness.agent, activity.info().attempt)
            windows.close("harness_bundle", started_at)
            windows.members["harness_bundle_cache_hit"] = is_hit
            return None
        version = await self._hands.bundles.resolve_version(harness, context.arm.version)
        bundle = None if version is None else harness.bundle(version)
        windows.members["agent_version"] = version
        if bundle is None:
            return None
        folder = await self._hands.bundles.ensure(bundle)
        windows.close("harness_bundle", started_at)
        windows.members["harness_bundle_cache_hit"] = folder.is_cache_hit
        return folder

    async def _install_in_time(
        self, context: TrialContext, box: Box, image: ImageRef, bundle: BundleFolder | None
    ) -> HarnessPlace:
        """Raises `AgentInstallFailed` when it takes longer than it may."""
        limit_sec = AGENT_SETUP_SEC * context.plan.multipliers.of("agent_setup")
        limit = asyncio.timeout(limit_sec)
        try:
            async with limit:
                return await self._install(context, box, image, bundle)
        except TimeoutError:
            if not limit.expired():
                raise
            raise AgentInstallFailed(
                f"{context.arm.name} was not set up in the box within {limit_sec:g} s"
            ) from None

    async def _install(
        self, context: TrialContext, box: Box, image: ImageRef, bundle: BundleFolder | None
    ) -> HarnessPlace:
        """The harness in the box, its key minted; for steps, what all of them use.

        The agent is the task's user, else the image's.
        """
        user = context.task.agent_user or image.user
        place = HarnessPlace(user=user)
        if isinstance(context.harness, OwnHarness):
            place = HarnessPlace(user=user, home=await resolve_home(box, user))
        elif bundle is not None:
            place = HarnessPlace(
                user=user,
                home=await resolve_home(box, user),
                bundle=await self._hands.bundles.open_in(box, bundle, user),
                version=bundle.bundle.version,
            )
        if not context.task.steps:
            await install_agent(self._hands, context, box, place)
        return place

    async def _judge_mounts(self, context: TrialContext) -> tuple[Mount, ...]:
        """Fetched before anything is spent, also for a verifier's box that comes later."""
        mounts = await judge_mounts(self._hands, context)
        return mounts if context.task.verifier_mode == "shared" else ()

    async def _require_healthy(self, context: TrialContext, box: Box, image: ImageRef) -> None:
        if context.task.healthcheck is not None:
            await await_healthy(box, context.task.healthcheck, image.user, context.task.env)

    async def _build(self, context: TrialContext, provider: SandboxProvider) -> ImageRef:
        task_dir = await self._hands.task_dir(context.stored)
        return await provider.ensure_image(
            ImageRequest(
                installation_id=self._hands.installation_id,
                context_dir=task_dir / "environment",
                docker_image=context.task.docker_image,
                context_digest=context.stored.image_digest,
                build_timeout_sec=context.build_timeout_sec,
            )
        )

    async def _image_facts(self, context: TrialContext, provider: str, image: ImageRef) -> dict[str, Any]:
        """`rebuilt` where it is not the image that the import built: another host, or a pruned one, made it
        anew from the same files."""
        facts = {"id": image.id, "base_image_replaced": image.base_image_replaced}
        published = await built_image(self._hands.db, (context.version_id, context.task_name), provider)
        is_rebuilt = published is not None and published != image.id
        return {**facts, "rebuilt": True} if is_rebuilt else facts

    async def _boot(
        self, context: TrialContext, provider: SandboxProvider, image: ImageRef, bundle: BundleFolder | None
    ) -> Box:
        task = context.task
        spec = BoxSpec(
            tag=box_tag(self._hands.installation_id, context.attempt),
            image=image,
            network_mode=task.network.mode,
            lifetime_sec=context.lifetime_sec + LIFETIME_MARGIN_SEC,
            cpus=task.cpus,
            memory_mb=task.memory_mb,
            storage_mb=task.storage_mb,
            env=task.env_literals,
            workdir=task.workdir,
            mounts=(*((bundle.mount,) if bundle else ()), *await self._judge_mounts(context)),
        )
        return await make_leased_box(self._hands.db, provider, spec)


async def install_agent(hands: Hands, context: TrialContext, box: Box, place: HarnessPlace) -> None:
    """Mint the agent's key and write what its harness needs in the box. Raises `KeyRevoked`."""
    await mint_agent_key(hands, context)
    await context.harness.install(box, await harness_context(hands, context, place, box.workdir))


class TrajectoryUnseedable(EvolveError):
    """The task begins in the middle of a conversation that the harness cannot be given."""

    code = TRAJECTORY_SEED


def _require_seedable(context: TrialContext) -> None:
    """`oracle` and `nop` hold no conversation: nothing is missing to them."""
    is_seeded = context.harness.name in SEEDED_HARNESSES or not context.arm.spends
    if context.task.has_trajectory and not is_seeded:
        raise TrajectoryUnseedable(
            f"[{TRAJECTORY_SEED}] {context.arm.name} cannot go on with the task's trajectory.json"
        )


def _step_plans(context: TrialContext) -> list[StepPlan]:
    stretched = context.plan.multipliers
    return [
        StepPlan(
            name=step.name,
            position=position,
            agent_timeout_sec=step.agent_timeout_sec * stretched.of("agent"),
            verifier_timeout_sec=step.verifier_timeout_sec * stretched.of("verifier"),
        )
        for position, step in enumerate(context.task.steps)
    ]


async def _require_service(box: Box) -> None:
    """A service of the image that died early fails the trial with its exit code."""
    code = await box.service_exit_code()
    if code is not None:
        raise ServiceDied(f"the image's ENTRYPOINT ended with exit code {code} before the agent started")


async def enter(
    hands: Hands, attempt: PlacedAttempt, phase: AttemptPhase, change: PhaseChange | None = None
) -> None:
    """Take the fence for a phase and record it; raises `TrialOver` when the trial has settled."""
    current_phase.set(phase)
    if not await enter_phase(hands.db, fence_of(attempt, phase), change):
        raise TrialOver(f"trial {attempt.trial_id} has settled")
