"""The most that a request can cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.bounds import OVERHEAD_TOKENS, ModelLimits, limit_output, prompt_bound
from gateway.denials import Denial
from gateway.json_text import JsonObject
from gateway.protocols import Dialect

LIMITS = ModelLimits(window=200_000, max_output=8_000, image_tokens=6_000)
PIXELS = "iVBOR" * 20_000
IMAGE_URL = "data:image/png;base64," + PIXELS


def bound(dialect: Dialect, body: dict[str, Any], limits: ModelLimits = LIMITS) -> int:
    text = json.dumps(body)
    return prompt_bound(dialect, JsonObject(text), len(text), limits)


def test_a_byte_is_at_most_a_token_and_the_window_is_all_that_fits() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 1000}]}
    assert bound("messages", body) == len(json.dumps(body)) + OVERHEAD_TOKENS
    long = {"messages": [{"role": "user", "content": "x" * 300_000}]}
    assert bound("messages", long) == 200_000
    assert bound("messages", long, ModelLimits(200_000, 1, 1, is_window_wider=True)) > 300_000


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (
            "messages",
            {"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": PIXELS}}]}]},
        ),
        (
            "messages",
            {
                "messages": [
                    {
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [{"type": "image", "source": {"type": "base64", "data": PIXELS}}],
                            }
                        ]
                    }
                ]
            },
        ),
        (
            "chat",
            {"messages": [{"content": [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]}]},
        ),
        (
            "responses",
            {"input": [{"content": [{"type": "input_image", "image_url": IMAGE_URL}]}]},
        ),
        ("gemini", {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": PIXELS}}]}]}),
    ],
)
def test_an_image_counts_as_an_image_and_not_as_its_bytes(dialect: Dialect, body: dict[str, Any]) -> None:
    assert 6_000 < bound(dialect, body) < 6_000 + OVERHEAD_TOKENS + 300


def test_what_only_looks_like_an_image_counts_by_its_bytes() -> None:
    disguised = {"type": "image", "source": {"type": "base64", "data": PIXELS}}
    body = {"messages": [{"content": [{"type": "tool_use", "input": disguised}]}]}
    assert bound("messages", body) > len(PIXELS)


@pytest.mark.parametrize(
    ("dialect", "part"),
    [
        ("messages", {"type": "document", "source": {"type": "base64", "data": "JVBER"}}),
        ("chat", {"type": "input_audio", "input_audio": {"data": "x"}}),
        ("gemini", {"inlineData": {"mimeType": "application/pdf", "data": "x"}}),
        ("gemini", {"inlineData": {"mimeType": "image/png", "mime_type": "application/pdf", "data": "x"}}),
        ("gemini", {"inlineData": {"mimeType": "image/png"}, "inline_data": {"mimeType": "video/mp4"}}),
    ],
)
def test_documents_and_sound_count_as_the_whole_window(dialect: Dialect, part: dict[str, Any]) -> None:
    assert bound(dialect, {"messages": [{"content": [part]}]}) == 200_000
    with pytest.raises(Denial, match="no bound"):
        bound(dialect, {"messages": [{"content": [part]}]}, ModelLimits(None, 1, 1))


def test_a_limit_is_kept_lowered_or_set_with_room_for_the_prompt() -> None:
    kept = JsonObject('{"max_tokens": 100}')
    assert limit_output("chat", kept, LIMITS, "max_tokens") == (100, [])
    assert kept.render() == '{"max_tokens": 100}'
    free = ModelLimits(window=None, max_output=None, image_tokens=1)
    assert limit_output("messages", JsonObject('{"max_tokens": 999999}'), free, "")[0] == 999_999
    wide = ModelLimits(window=10_000, max_output=10_000, image_tokens=1)
    prompt = JsonObject(json.dumps({"messages": "x" * 6_000}))
    assert 7_900 < limit_output("chat", prompt, wide, "max_tokens")[0] < 8_000
    assert limit_output("responses", JsonObject("{}"), free, "")[0] == 16_384


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ('{"a" : 1, "b":2 }', '{"a" : 1, "b":2 ,"c":3}'),
        ("{ }", '{"c":3}'),
    ],
)
def test_an_edit_changes_only_what_it_edits(text: str, edited: str) -> None:
    body = JsonObject(text)
    body.set(("c",), 3)
    assert JsonObject(body.render()).values == JsonObject(edited).values
    dropped = JsonObject(' {"a" : 1, "b":[1.0],  "c":"\\u00fc"} ')
    dropped.drop("a")
    dropped.set(("d", "e"), True)
    assert dropped.render() == ' {"b":[1.0],  "c":"\\u00fc","d":{"e": true}} '.replace(": true", ":true")
