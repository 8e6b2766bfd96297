"""The processes beside the gateway in its bench: `python -m tests.bench.gateway_peers ROLE PORT [UPSTREAM]`.

`provider` streams 50 chunks spaced by a few milliseconds, as a model does, or one when `max_tokens` is 1;
 `raw` relays them with aiohttp and
does nothing else; `sdk` relays them through LiteLLM's SDK, as a gateway made of it would.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

CHUNKS = 50
SPACING_SEC = 0.004
_sessions: list[aiohttp.ClientSession] = []
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m"}
    return f"data: {json.dumps({**head, 'choices': [choice], 'usage': None})}\n\n".encode()


USAGE = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
LAST = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": USAGE}
STREAM = [
    *(chunk({"role": "assistant", "content": f"word {number} of a text"}) for number in range(CHUNKS)),
    chunk({}, "stop"),
    f"data: {json.dumps(LAST)}\n\n".encode(),
    b"data: [DONE]\n\n",
]  # fmt: skip


async def provide(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for each in STREAM if body["max_tokens"] > 1 else (STREAM[0], *STREAM[-3:]):
        await response.write(each)
        await asyncio.sleep(SPACING_SEC)
    await response.write_eof()
    return response


def raw(upstream: str) -> Handler:
    """Bytes up, bytes down."""

    async def relay(request: web.Request) -> web.StreamResponse:
        if not _sessions:
            connector = aiohttp.TCPConnector(limit=0)
            _sessions.append(aiohttp.ClientSession(connector=connector, auto_decompress=False))
        body = await request.read()
        headers = {"content-type": "application/json", "authorization": "Bearer key"}
        async with _sessions[0].post(upstream + request.path, data=body, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"content-type": answer.content_type})
            await response.prepare(request)
            async for each in answer.content.iter_any():
                await response.write(each)
            await response.write_eof()
            return response

    return relay


def sdk(upstream: str) -> Handler:
    """As the raw one, through `litellm.acompletion`."""
    import litellm

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        chunks = await litellm.acompletion(
            model="openai/m",
            messages=body["messages"],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=body["max_tokens"],
            api_base=upstream + "/v1",
            api_key="key",
            max_retries=0,
            num_retries=0,
        )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for each in chunks:
            await response.write(f"data: {each.model_dump_json()}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    return relay


async def close_sessions(_app: web.Application) -> None:
    for session in _sessions:
        await session.close()


def main() -> None:
    role, port, *rest = sys.argv[1:]
    handler = {"provider": lambda: provide, "raw": lambda: raw(rest[0]), "sdk": lambda: sdk(rest[0])}[role]()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", handler)
    app.router.add_get("/healthz", lambda _request: web.Response())
    app.on_cleanup.append(close_sessions)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, access_log=None)


if __name__ == "__main__":
    main()
