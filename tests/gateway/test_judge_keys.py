"""A judge names its model itself: its key admits one family, and only what has a price."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from store.database import Database
from store.keys import GrantedModel
from tests.gateway.conftest import Door, opened_door
from tests.gateway.fake_provider import MESSAGES_STREAM, SSE, FakeProvider, Reply


async def test_a_judge_asks_the_model_of_its_rubric(door: Door) -> None:
    key = await door.mint(role="judge", models=(GrantedModel.family("anthropic"),))
    door.provider.reply = Reply(MESSAGES_STREAM, headers=SSE)
    body = {"model": "claude-sonnet-4-6", "max_tokens": 64, "stream": True, "messages": []}
    status, _, _ = await door.post("/v1/messages", body, key="", **{"x-api-key": key})
    assert status == 200
    [call] = await door.calls(key)
    assert (call.role, call.provider, call.upstream_model) == ("judge", "anthropic", "claude-sonnet-4-6")
    assert call.status == "measured"


async def test_it_may_not_leave_its_family_nor_ask_what_has_no_price(door: Door) -> None:
    key = await door.mint(role="judge", models=(GrantedModel.family("anthropic"),))
    auth = {"key": "", "authorization": f"Bearer {key}"}
    other = {"model": "gpt-5", "max_tokens": 64, "messages": []}
    assert (await door.post("/v1/chat/completions", other, **auth))[0] == 404
    unpriced = {"model": "claude-of-tomorrow", "max_tokens": 64, "messages": []}
    assert (await door.post("/v1/messages", unpriced, **auth))[0] == 400
    assert door.provider.hits == []


async def test_a_family_is_not_listed_as_a_model(door: Door) -> None:
    key = await door.mint(role="judge", models=(GrantedModel.family("anthropic"),))
    async with door.client.get(f"{door.url}/v1/models", headers={"authorization": f"Bearer {key}"}) as answer:
        assert (await answer.json())["data"] == []


async def test_a_scripted_judge_answers_and_is_billed_by_its_script(
    db: Database, provider: FakeProvider, write_scripts: Callable[[str], Path]
) -> None:
    scripts = """
models:
  judge:
    prices: {input: 3, output: 15}
    turns:
      - text: '{"score": 1, "reasoning": "done"}'
        usage: {input_tokens: 200, output_tokens: 10}
"""
    families = tuple(GrantedModel.family(name) for name in ("anthropic", "scripted"))
    async with opened_door(db, provider, write_scripts(scripts)) as door:
        key = await door.mint(role="judge", models=families)
        body = {
            "model": "scripted/judge", "max_tokens": 64, "messages": [{"role": "user", "content": "Judge."}],
        }  # fmt: skip
        status, answer, _ = await door.post("/v1/messages", body, key="", **{"x-api-key": key})
        assert status == 200
        assert json.loads(json.loads(answer)["content"][0]["text"])["score"] == 1
        [call] = await door.calls(key)
    assert (call.role, call.cost_nanos) == ("judge", 200 * 3_000 + 10 * 15_000)
