"""An agent's way to its model: a virtual key of its own, minted before it starts, revoked when it is over."""

from __future__ import annotations

from datetime import timedelta

from activities.harnesses.base import HarnessContext, ModelAccess
from activities.sandboxes.relay import PORT as RELAY_PORT
from activities.signatures import HarnessPlace
from activities.trial_context import Hands, TrialContext
from domain.causes import BUDGET_REFUSED, BUDGET_WORDS
from domain.errors import EvolveError
from domain.models import ModelRoute, route_of
from domain.rosters import roster_of
from store.budgets import budget_refusal
from store.database import now
from store.keys import GrantedModel, KeyPlan, KeyRole, key_text, mint_key

GATEWAY_IN_BOX = f"http://127.0.0.1:{RELAY_PORT}"
"""The relay of the box's own net pod."""
MAX_IN_FLIGHT = 32
"""Calls that one agent or judge may have under way: its sub-agents work at the same time."""
# A key outlives the agent's deadline by this much: what an agent on a busy host still says is metered.
KEY_MARGIN = timedelta(hours=1)


class BudgetRefused(EvolveError):
    """A budget above the trial is spent up: nothing was made for it (contract 6.2)."""

    code = BUDGET_REFUSED


async def refuse_spent_up(hands: Hands, context: TrialContext) -> None:
    """The wallet check before a box is made. Raises `BudgetRefused`."""
    if _route(hands, context) is None:
        return
    refusal = await budget_refusal(hands.db, context.job.owner_user_id, context.job.org_id)
    if refusal is not None:
        raise BudgetRefused(budget_message(refusal.kind, refusal.message))


def budget_message(kind: str, message: str) -> str:
    """As contract 4.2 writes it: whose budget it was stands right after the prefix."""
    return f"[agent-phase:budget_exhausted] {BUDGET_WORDS.get(kind, 'other')}: {message}"


async def mint_agent_key(hands: Hands, context: TrialContext) -> None:
    """Make the key of the attempt or its step, so that what is derived works. Raises `KeyRevoked`."""
    route = _route(hands, context)
    if route is not None:
        await mint_key(hands.db, hands.secret, _plan(context, route))


async def harness_context(
    hands: Hands, context: TrialContext, place: HarnessPlace, workdir: str
) -> HarnessContext:
    """What the harness gets to see; its access is good once `mint_agent_key` was called."""
    route = _route(hands, context)
    return HarnessContext(
        task=context.task,
        task_dir=await hands.task_dir(context.stored),
        arm=context.arm,
        access=None if route is None else _access(hands, context, route),
        version=place.version,
        user=place.user,
        home=place.home,
        bundle=place.bundle,
        workdir=workdir,
    )


def _route(hands: Hands, context: TrialContext) -> ModelRoute | None:
    """Where the arm's model is asked; None for an agent that calls none."""
    name = context.arm.model_name
    if name is None or not roster_of(context.arm.name).needs_model:
        return None
    route = route_of(name, hands.settings.served_names())
    if route is None:
        raise EvolveError(f"nobody is known to serve the model {name}", code="model_not_found")
    return route


def _name_in_box(context: TrialContext, route: ModelRoute) -> str:
    """A registered agent is told the name that the arm gives (contract 6.10)."""
    return route.name if context.arm.registration is not None else route.name_in_box


def _access(hands: Hands, context: TrialContext, route: ModelRoute) -> ModelAccess:
    return ModelAccess(
        base_url=GATEWAY_IN_BOX,
        api_key=key_text(hands.secret, _plan(context, route).key_id),
        model=_name_in_box(context, route),
        effort=context.arm.reasoning_effort,
    )


def _plan(context: TrialContext, route: ModelRoute) -> KeyPlan:
    model = GrantedModel(
        name=_name_in_box(context, route), provider=route.provider, upstream_model=route.upstream_model
    )
    return plan_key(
        context,
        "agent",
        (model,),
        cap_nanos=context.plan.max_trial_spend_nanos,
        lifetime_sec=context.agent_timeout_sec,
    )


def plan_key(
    context: TrialContext,
    role: KeyRole,
    models: tuple[GrantedModel, ...],
    *,
    cap_nanos: int,
    lifetime_sec: float,
) -> KeyPlan:
    """A key of the attempt for one role, good for `lifetime_sec` from now with a margin."""
    return KeyPlan(
        role=role,
        job_id=context.attempt.job_id,
        trial_id=context.attempt.trial_id,
        attempt_number=context.attempt.attempt_number,
        step=context.step_name,
        owner_user_id=context.job.owner_user_id,
        org_id=context.job.org_id,
        models=models,
        cap_nanos=cap_nanos,
        max_in_flight=MAX_IN_FLIGHT,
        expires_at=now() + timedelta(seconds=lifetime_sec) + KEY_MARGIN,
    )
