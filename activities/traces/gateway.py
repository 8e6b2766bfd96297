"""What the gateway metered of an attempt, as the trace's last events (contract 4.4, GatewayUsage)."""

from __future__ import annotations

from typing import Any

from domain.money import usd_of_nanos
from domain.trajectory import FinalMetrics
from domain.trials import wire_time
from domain.vocabulary import SpendSource
from store.attempt_spend import CallRow, attempt_calls, attempt_spend, count_calls
from store.database import Database
from store.fences import Fence
from store.traces import GATEWAY_SEQ_BASE, write_events


async def measured_metrics(db: Database, fence: Fence) -> FinalMetrics | None:
    """The agent's tokens and cost, None unless every one of its calls was measured, and there was one."""
    spend = await attempt_spend(db, fence.trial_id, fence.attempt_number, "agent")
    if spend.n_calls == 0 or spend.source is not SpendSource.MEASURED:
        return None
    return FinalMetrics(
        total_prompt_tokens=spend.usage.prompt_tokens,
        total_completion_tokens=spend.usage.output_tokens,
        total_cached_tokens=spend.usage.cached_input_tokens,
        total_cost_usd=usd_of_nanos(spend.measured_nanos),
    )


async def write_gateway_lines(db: Database, fence: Fence) -> None:
    """One `usage` event a call of the agent's, in the order in which they were made, and a `trace_loss` for
    those beyond the first `MAX_CALLS`.

    To be called once no more calls are made, and again when one was measured after all.
    """
    of = (fence.trial_id, fence.attempt_number, "agent")
    calls = await attempt_calls(db, *of)
    rows = [(GATEWAY_SEQ_BASE + n, "usage", gateway_usage(call)) for n, call in enumerate(calls)]
    n_lost = await count_calls(db, *of) - len(calls)
    if n_lost > 0:
        told = {"reason": f"calls after the first {len(calls)}", "events": n_lost}
        rows.append((GATEWAY_SEQ_BASE + len(calls), "trace_loss", told))
    await write_events(db, fence, rows)


def gateway_usage(call: CallRow) -> dict[str, Any]:
    """The event's data. Tokens and cost that nobody measured are null; a call that failed cost nothing."""
    return {
        "timestamp": wire_time(call.started_at),
        "model": call.model,
        "update": {
            "sessionUpdate": "usage",
            "scope": "call",
            "source": "gateway",
            "callId": call.call_id,
            "status": call.status,
            "startedAt": wire_time(call.started_at),
            "endedAt": wire_time(call.ended_at),
            "receivedAt": wire_time(call.ended_at or call.started_at),
            "usage": _usage(call),
        },
    }


def _usage(call: CallRow) -> dict[str, Any]:
    usage = call.usage
    extra: dict[str, Any] = {}
    if usage is not None:
        extra["cache_write_tokens"] = usage.cache_write_tokens
        if usage.reasoning_tokens is not None:
            extra["reasoning_tokens"] = usage.reasoning_tokens
    return {
        "promptTokens": usage and usage.prompt_tokens,
        "completionTokens": usage and usage.output_tokens,
        "cachedTokens": usage and usage.cached_input_tokens,
        "costUsd": None if call.status == "held" else usd_of_nanos(call.cost_nanos),
        "extra": extra,
    }
