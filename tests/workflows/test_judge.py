"""A verifier that grades with a language model: its key, its lane, its end."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from domain.usage import CallUsage
from store.database import now
from store.keys import find_key
from store.server_secret import ServerSecret
from store.spend import CallEnd, NewCall, reserve, settle_call
from tests.factories import TASK_TOML, task_files
from tests.inprocess import SECRET, Platform
from tests.waiting import eventually
from workflows import names

JUDGED = f"""{TASK_TOML}
[verifier.env]
ANTHROPIC_API_KEY = "${{ANTHROPIC_API_KEY}}"
MODE = "${{MODE:-strict}}"
"""


async def start(platform: Platform, **members: Any) -> Any:
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], **members}
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )


async def verifiers_environment(platform: Platform) -> dict[str, str]:
    [trial] = await platform.rows("SELECT sandbox_id FROM trials")
    return platform.provider.environment(str(trial["sandbox_id"]), "verifier")


async def ask(platform: Platform, key: str, cost_nanos: int) -> None:
    """What the gateway books of a call with that key."""
    grant = await find_key(platform.db, ServerSecret(SECRET), key)
    assert grant is not None
    call = NewCall(
        call_id=uuid4().hex, key_id=grant.key_id, gateway_id="g", protocol="messages",
        model="claude-sonnet-4-6", provider="anthropic", upstream_model="claude-sonnet-4-6",
        hold_nanos=cost_nanos, price_version="book", started_at=now(),
    )  # fmt: skip
    assert await reserve(platform.db, call) is None
    usage = CallUsage(input_tokens=90, cached_input_tokens=10, output_tokens=7)
    end = CallEnd(status="measured", ended_at=now(), usage=usage, cost_nanos=cost_nanos)
    await settle_call(platform.db, call.call_id, end)


async def test_a_judge_has_a_capped_key_of_its_family_while_the_verifier_runs(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha", toml=JUDGED))
    platform.provider.barriers.hold("verifier")
    handle = await start(platform, verifier_env={"REWARDKIT_MODEL": "anthropic/claude-haiku-4-5"})
    await eventually(lambda: platform.provider.barriers.reached("verifier"))
    env = await verifiers_environment(platform)
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8801"
    assert (env["MODE"], env["REWARDKIT_MODEL"]) == ("strict", "anthropic/claude-haiku-4-5")
    grant = await find_key(platform.db, ServerSecret(SECRET), env["ANTHROPIC_API_KEY"])
    assert grant is not None
    assert (grant.role, grant.cap_nanos) == ("judge", 5_000_000_000)
    assert grant.model("gpt-5") is None
    await ask(platform, env["ANTHROPIC_API_KEY"], 2_500_000)
    platform.provider.barriers.release("verifier")
    await asyncio.wait_for(handle.result(), 60)
    assert await find_key(platform.db, ServerSecret(SECRET), env["ANTHROPIC_API_KEY"]) is None
    [trial] = await platform.rows("SELECT status, result FROM trials")
    assert trial["status"] == "SCORED"
    result: Any = trial["result"]
    assert result["judge_result"] == {
        "n_input_tokens": 100, "n_cache_tokens": 10, "n_output_tokens": 7, "cost_usd": 0.0025,
    }  # fmt: skip
    assert (result["judge_spend_source"], result["agent_result"]["cost_usd"]) == ("measured", 0)


async def test_a_smaller_cap_of_the_agent_bounds_the_judge_too(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha", toml=JUDGED))
    handle = await start(platform, max_trial_spend_usd=1.5)
    await asyncio.wait_for(handle.result(), 60)
    [key] = await platform.rows("SELECT role, cap_nanos, revoked_at FROM gateway_keys")
    assert (key["role"], key["cap_nanos"]) == ("judge", 1_500_000_000)
    assert key["revoked_at"] is not None


async def test_without_a_judge_no_key_is_made_and_overrides_still_arrive(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    platform.provider.barriers.hold("verifier")
    handle = await start(platform, verifier_env={"REWARDKIT_JUDGE": "claude-code"})
    await eventually(lambda: platform.provider.barriers.reached("verifier"))
    env = await verifiers_environment(platform)
    platform.provider.barriers.release("verifier")
    await asyncio.wait_for(handle.result(), 60)
    assert env == {"REWARDKIT_JUDGE": "claude-code"}
    assert await platform.rows("SELECT FROM gateway_keys") == []
