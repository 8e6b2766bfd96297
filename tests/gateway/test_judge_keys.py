"""A judge names its model itself: its key admits one family, and only what has a price."""

from __future__ import annotations

from store.keys import GrantedModel
from tests.gateway.conftest import Door
from tests.gateway.fake_provider import MESSAGES_STREAM, SSE, Reply


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
