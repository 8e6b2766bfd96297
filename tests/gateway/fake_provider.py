"""A model provider on loopback that answers what a test tells it, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Reply:
    """What it answers. `is_cut`: the connection breaks after the last chunk. `gate`: waited for before the
    chunk of that number."""

    chunks: Sequence[bytes] = (b"{}",)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    is_cut: bool = False
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """One request as it arrived."""

    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class FakeProvider:
    """`reply` may be changed at any time; `hits` are in order."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.hits: list[Hit] = []
        self.n_sent = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.hits.append(Hit(request.path, request.query_string, headers, await request.read()))
        reply = self.reply
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        await response.prepare(request)
        for number, chunk in enumerate(reply.chunks):
            if gate := reply.gates.get(number):
                await gate.wait()
            await response.write(chunk)
            self.n_sent += 1
            await asyncio.sleep(0)
        if reply.is_cut:
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write_eof()
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[FakeProvider]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self.answer)
        async with TestServer(app) as server:
            self.url = str(server.make_url("")).rstrip("/")
            yield self


def events(*documents: Any, is_named: bool = False, end: bytes = b"") -> list[bytes]:
    """Server-sent events, oddly spaced so that only a byte-exact relay gives them back."""
    frames: list[bytes] = []
    for document in documents:
        head = f"event: {document['type']}\n" if is_named else ""
        frames.append(f"{head}data:  {json.dumps(document, indent=None)}\n\n".encode())
    return [*frames, end] if end else frames


SSE = {"content-type": "text/event-stream; charset=utf-8", "request-id": "req_1", "x-secret": "internal"}

MESSAGES_STREAM = events(
    {
        "type": "message_start",
        "message": {
            "id": "msg_1", "usage": {
                "input_tokens": 100, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 20,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
                "output_tokens": 1,
            },
        },
    },
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 'a "usage" ü'}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 50}},
    {"type": "message_stop", "x_unknown": True},
    is_named=True,
)  # fmt: skip
CHAT_STREAM = events(
    {"id": "c", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}], "usage": None},
    {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None},
    {
        "id": "c", "choices": [], "usage": {
            "prompt_tokens": 150, "completion_tokens": 50, "total_tokens": 200,
            "prompt_tokens_details": {"cached_tokens": 20},
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
    },
    end=b"data: [DONE]\n\n",
)  # fmt: skip
RESPONSES_STREAM = events(
    {"type": "response.created", "response": {"id": "r", "usage": None}},
    {"type": "response.output_text.delta", "delta": "hi", "obfuscation": "xyz"},
    {
        "type": "response.completed", "response": {
            "id": "r", "service_tier": "default", "usage": {
                "input_tokens": 150, "input_tokens_details": {"cached_tokens": 20},
                "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 30},
            },
        },
    },
    is_named=True,
)  # fmt: skip
GEMINI_STREAM = events(
    {
        "candidates": [{"content": {"parts": [{"text": "hm", "thought": True}]}}],
        "usageMetadata": {"promptTokenCount": 150, "totalTokenCount": 150},
    },
    {
        "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": 150, "cachedContentTokenCount": 20, "candidatesTokenCount": 20,
            "thoughtsTokenCount": 30, "totalTokenCount": 200,
        },
    },
)  # fmt: skip
