"""The translator: LiteLLM in a process of its own, `python -P -m gateway.translator SOCKET`.

It answers Anthropic Messages and OpenAI Responses with a model behind Chat Completions. It knows no key and
no provider: it asks the gateway's inner door under a URL that is good for one call, so that what goes to the
provider is admitted, metered and signed there. Only streams: LiteLLM's whole Messages lose their text when
there is a tool call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from aiohttp import web

READY = "ready\n"
# LiteLLM reads these when it is imported: no fetches, no `.env`, no proxy's habits.
SILENCE = MappingProxyType(
    {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
        "LITELLM_LOCAL_BLOG_POSTS": "True",
        "LITELLM_OFFLINE_MODE": "true",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
    }
)
# The prefix that makes LiteLLM use chat for a server of its OpenAI kind, instead of responses.
_MODEL = "openai/chat_completions/{}"
MODEL_HEADER, URL_HEADER = "x-evolve-model", "x-evolve-url"
# What each bridge was seen to carry over (tests/gateway/test_translation.py); the rest is left out and told.
CARRIED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "messages": frozenset(
            (
                "max_tokens",
                "messages",
                "model",
                "output_config",
                "stop_sequences",
                "stream",
                "system",
                "temperature",
                "thinking",
                "tool_choice",
                "tools",
                "top_p",
            )
        ),
        "responses": frozenset(
            (
                "input",
                "instructions",
                "max_output_tokens",
                "model",
                "parallel_tool_calls",
                "reasoning",
                "stream",
                "temperature",
                "text",
                "tool_choice",
                "tools",
                "top_p",
            )
        ),
    }
)


def main() -> None:
    os.environ.update(SILENCE)
    _quiet_litellm()
    asyncio.run(_serve(sys.argv[1]))


async def _serve(socket: str) -> None:
    """Until standard input ends: then the gateway is gone, however it went."""
    asyncio.get_running_loop().set_exception_handler(_pass_over_missing_proxy)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{dialect}", _translate)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    sys.stdout.write(READY)
    sys.stdout.flush()
    os.dup2(2, 1)  # nobody reads the pipe from here on, and whoever printed would stop when it is full
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def _pass_over_missing_proxy(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A stream of Messages that is not read to its very end imports LiteLLM's proxy when it is collected."""
    if not isinstance(context.get("exception"), ModuleNotFoundError):
        loop.default_exception_handler(context)


def _quiet_litellm() -> None:
    """One try, nothing dropped, nothing guessed, nothing told to anybody."""
    import litellm

    litellm.num_retries = 0
    litellm.drop_params = False
    litellm.modify_params = False
    litellm.suppress_debug_info = True
    litellm.disable_hf_tokenizer_download = True
    litellm.cache = None
    litellm.callbacks = []


async def _translate(request: web.Request) -> web.StreamResponse:
    dialect = str(request.match_info["dialect"])
    body = cast(dict[str, Any], json.loads(await request.read()))
    name = str(body["model"])
    try:
        frames = await _frames(
            dialect, {**body, "model": _MODEL.format(name)}, str(request.headers[URL_HEADER])
        )
        first = await anext(frames)
    except Exception as error:
        # Any kind: LiteLLM raises its own, the SDKs' and Python's. The gateway knows the provider's word.
        return web.json_response({"message": f"{type(error).__name__}: {error}"[:2000]}, status=400)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    shown = request.headers[MODEL_HEADER]
    try:
        await response.write(_renamed(first, name, shown))
        async for frame in frames:
            await response.write(_renamed(frame, name, shown))
    except Exception:
        # As above: a broken answer must look broken.
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


async def _frames(dialect: str, body: dict[str, Any], url: str) -> AsyncIterator[bytes]:
    import litellm

    asked = {**body, "api_base": url, "api_key": "none", "max_retries": 0, "num_retries": 0, "timeout": 3600}
    call: Any = litellm.anthropic_messages if dialect == "messages" else litellm.aresponses
    answer = await call(**asked)
    return _message_frames(answer) if dialect == "messages" else _response_frames(answer)


async def _message_frames(answer: Any) -> AsyncIterator[bytes]:
    """To the last event and no further: what LiteLLM does after it is only logging, with modules of its
    proxy that are not installed."""
    async for frame in answer:
        yield cast(bytes, frame)
        if frame.startswith(b"event: message_stop"):
            return


async def _response_frames(answer: Any) -> AsyncIterator[bytes]:
    async for event in answer:
        text = event.model_dump_json(exclude_none=True)
        yield f"event: {json.loads(text)['type']}\ndata: {text}\n\n".encode()


def _renamed(frame: bytes, name: str, shown: str) -> bytes:
    """With the model as the client calls it, in the events that say which one answers."""
    if b"message_start" not in frame and b'"response":' not in frame:
        return frame
    for ours in (f"chat_completions/{name}", name):
        for mark in (": ", ":"):
            frame = frame.replace(
                f'"model"{mark}{json.dumps(ours)}'.encode(), f'"model"{mark}{json.dumps(shown)}'.encode()
            )
    return frame


if __name__ == "__main__":
    main()
