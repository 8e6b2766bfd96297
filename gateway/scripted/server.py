"""The scripted upstream: a model provider of our own making, behind the same door as the real ones.

It listens on a unix socket of the gateway's own, so that its calls are admitted, held, relayed and metered
by the same code. It reads no network.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from aiohttp import web

from gateway.native_errors import error_body
from gateway.protocols import PROTOCOL_OF, Dialect
from gateway.scripted import chat, gemini, messages, responses
from gateway.scripted.answer import Answer, AnswerCall
from gateway.scripted.conversation import Conversation, read_conversation
from gateway.scripted.script import Script, ScriptedCall, ScriptedError, Turn

AFTER_THE_END = Turn(text="The script is over.")
EMBEDDING = [0.0, 0.6, 0.8]
_MAX_BODY_BYTES = 64 * 1024 * 1024
_WHOLE: Mapping[Dialect, Callable[[Answer], dict[str, Any]]] = {
    "chat": chat.whole,
    "responses": responses.whole,
    "messages": messages.whole,
    "gemini": gemini.whole,
}
_FAILURE: Mapping[Dialect, Callable[[str], bytes]] = {
    "chat": chat.failure,
    "responses": responses.failure,
    "messages": messages.failure,
    "gemini": gemini.failure,
}


class ScriptedUpstream:
    """Answers for the models of `scripts`."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts
        self._n_errors: Counter[str] = Counter()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._answer_chat)
        app.router.add_post("/v1/responses", self._answer_responses)
        app.router.add_post("/v1/messages", self._answer_messages)
        app.router.add_post("/v1/embeddings", self._answer_embeddings)
        app.router.add_post("/v1beta/models/{call}", self._answer_gemini)
        return app

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncGenerator[None]:
        """Listen on a new socket while in the context."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.UnixSite(runner, socket).start()
            yield
        finally:
            await runner.cleanup()

    async def _answer_chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "chat")

    async def _answer_responses(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "responses")

    async def _answer_messages(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "messages")

    async def _answer_gemini(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "gemini")

    async def _answer_embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        texts = cast(list[Any], body["input"]) if isinstance(body["input"], list) else [body["input"]]
        data = [{"object": "embedding", "index": i, "embedding": EMBEDDING} for i, _ in enumerate(texts)]
        n_tokens = sum(len(str(text).split()) for text in texts)
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})

    async def _answer(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        raw = await request.read()
        body = cast(dict[str, Any], json.loads(raw))
        model, _, verb = unquote(request.match_info.get("call", "")).rpartition(":")
        name = model if dialect == "gemini" else str(body.get("model"))
        script = self._scripts.get(name)
        if script is None:
            return web.json_response(error_body(PROTOCOL_OF[dialect], 404, f"no script {name}"), status=404)
        conversation = read_conversation(dialect, body)
        turn = script.turn(conversation.said, conversation.n_turns) or AFTER_THE_END
        await asyncio.sleep(turn.delay_sec)
        if turn.error is not None and self._is_due(turn.error, raw):
            return _error(dialect, turn.error)
        answer = compose(name, turn, conversation)
        if not (body.get("stream") is True or verb == "streamGenerateContent"):
            if turn.cut_after_chunks is not None and request.transport is not None:
                request.transport.abort()
            return web.json_response(_WHOLE[dialect](answer))
        is_events = dialect != "gemini" or request.query.get("alt") == "sse"
        response = web.StreamResponse()
        response.content_type = "text/event-stream" if is_events else "application/json"
        await response.prepare(request)
        frames = _frames(dialect, answer, body, is_events=is_events)
        await _send(request, response, turn, _ending(dialect, turn, frames))
        return response

    def _is_due(self, error: ScriptedError, raw: bytes) -> bool:
        """Whether this request still gets the error. The one thing that is counted here."""
        if error.times is None:
            return True
        key = hashlib.sha256(raw).hexdigest()
        self._n_errors[key] += 1
        return self._n_errors[key] <= error.times


def compose(model: str, turn: Turn, conversation: Conversation) -> Answer:
    """The turn as an answer to this request. Tools that it does not offer are not called: a request for a
    title gets the turn's words only."""
    at = conversation.n_turns + 1
    wanted: list[tuple[str, dict[str, Any], str | None]] = []
    if turn.shell is not None and (call := conversation.shell_call(turn.shell)):
        wanted.append((*call, None))
    for call in turn.calls if conversation.tools else ():
        wanted.append((_offered(call, conversation), call.arguments, call.namespace))
    calls = tuple(
        AnswerCall(f"call_{at}_{number}", name, arguments, namespace)
        for number, (name, arguments, namespace) in enumerate(wanted, 1)
    )
    usage = None if turn.usage == "missing" else turn.usage
    text = turn.text if turn.text or calls else "OK."
    return Answer(f"{model.replace('/', '_')}_{at}", model, turn.thinking, text, calls, usage)


def _offered(call: ScriptedCall, conversation: Conversation) -> str:
    return next((name for name in call.names if name in conversation.tools), call.names[0])


def _frames(dialect: Dialect, answer: Answer, body: dict[str, Any], *, is_events: bool) -> Iterator[bytes]:
    if dialect == "chat":
        options = body.get("stream_options")
        asked = cast(dict[str, Any], options) if isinstance(options, dict) else {}
        return chat.stream(answer, tells_usage=bool(asked.get("include_usage")))
    if dialect == "gemini":
        return gemini.stream(answer) if is_events else gemini.array(answer)
    return responses.stream(answer) if dialect == "responses" else messages.stream(answer)


def _ending(dialect: Dialect, turn: Turn, frames: Iterator[bytes]) -> Iterator[bytes]:
    """The frames, up to where the turn fails."""
    for number, frame in enumerate(frames):
        if number == turn.fail_after_chunks:
            yield _FAILURE[dialect]("scripted failure")
            return
        yield frame


async def _send(
    request: web.Request, response: web.StreamResponse, turn: Turn, frames: Iterator[bytes]
) -> None:
    for number, frame in enumerate(frames):
        if number == turn.cut_after_chunks:
            if request.transport is not None:
                request.transport.close()
            return
        await response.write(frame)
        if turn.chunk_delay_sec:
            await asyncio.sleep(turn.chunk_delay_sec)
    await response.write_eof()


def _error(dialect: Dialect, error: ScriptedError) -> web.Response:
    headers = {} if error.retry_after_sec is None else {"retry-after": str(error.retry_after_sec)}
    if isinstance(error.body, str):
        return web.Response(status=error.status, text=error.body, headers=headers)
    body = (
        error.body
        if error.body is not None
        else error_body(PROTOCOL_OF[dialect], error.status, error.message)
    )
    return web.json_response(body, status=error.status, headers=headers)
