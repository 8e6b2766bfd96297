"""A verifier's way to a language model: a key of its own, of the families that its task asks for."""

from __future__ import annotations

from activities.model_access import GATEWAY_IN_BOX, plan_key
from activities.trial_context import Hands, TrialContext
from domain.judges import JUDGE_CAP_NANOS, judge_env, judge_families
from domain.models import SCRIPTED
from store.keys import GrantedModel, mint_key, revoke_keys


async def mint_judge_env(hands: Hands, context: TrialContext) -> dict[str, str]:
    """The credentials that `[verifier.env]` asks for, good until `revoke_judge_key`; empty without a judge.

    Raises `KeyRevoked` once the attempt's verifier is over.
    """
    env = context.task.verifier_env
    families = [family.provider for family in judge_families(env)]
    if not families:
        return {}
    if SCRIPTED in hands.settings.served_names():
        families.append(SCRIPTED)
    plan = plan_key(
        context,
        "judge",
        tuple(GrantedModel.family(provider) for provider in families),
        cap_nanos=min(context.plan.max_trial_spend_nanos, JUDGE_CAP_NANOS),
        lifetime_sec=context.verifier_timeout_sec,
    )
    return judge_env(env, GATEWAY_IN_BOX, await mint_key(hands.db, hands.secret, plan))


async def revoke_judge_key(hands: Hands, context: TrialContext) -> None:
    """Let the attempt's judge call no more; harmless where there is none."""
    if judge_families(context.task.verifier_env):
        await revoke_keys(hands.db, context.attempt.trial_id, context.attempt.attempt_number, "judge")
