"""Admission: what a key may ask for, what of it is changed, and the most that it can cost."""

from __future__ import annotations

from dataclasses import dataclass

from domain.money import MAX_NANOS
from domain.prices import ModelPrice, worst_case_nanos
from gateway.bounds import ModelLimits, limit_output, prompt_bound
from gateway.denials import Denial
from gateway.json_text import JsonObject
from gateway.policy import apply_policy
from gateway.protocols import Dialect, Wanted
from gateway.translator import CARRIED
from gateway.upstreams import Upstream
from store.keys import GrantedModel, KeyGrant

# An `anthropic-beta` that lets a prompt be longer than the book's window.
_WIDER_WINDOW = "context-1m"


@dataclass(frozen=True)
class Target:
    """Where a call goes, and at what price."""

    model: GrantedModel
    upstream: Upstream
    price: ModelPrice


@dataclass(frozen=True)
class Admissible:
    """A request that may be asked once its hold is reserved. `hides_usage`: usage was asked for by us, and
    the client that did not must not see the chunk with it. `service` is the service tier that is asked for,
    by the client's word, `max_output` the limit that the body carries. `is_translated`: the upstream does
    not speak its protocol."""

    body: bytes
    hold_nanos: int
    service: str | None
    adjustments: tuple[str, ...]
    max_output: int
    is_translated: bool
    hides_usage: bool = False


def granted_model(grant: KeyGrant, wanted: Wanted, body: JsonObject) -> GrantedModel:
    """The model that is asked for, by its id. Raises `Denial`."""
    name = wanted.model if wanted.protocol == "gemini" else body.values.get("model")
    if not isinstance(name, str):
        raise Denial("invalid", "model must be a string")
    model = grant.model(name, wanted.dialect)
    if model is None:
        raise Denial("no_model", f"The model `{name[:200]}` does not exist or this key may not use it")
    return model


def admissible(wanted: Wanted, target: Target, body: JsonObject, beta: str) -> Admissible:
    """The body as it goes upstream, with its hold. `beta` is the `anthropic-beta` header. Raises `Denial`."""
    dialect = wanted.dialect
    n_bytes = len(body.encode())
    adjustments = apply_policy(dialect, body)
    is_stream = _is_stream(wanted, body)
    limits = ModelLimits(
        window=target.price.max_input_tokens,
        max_output=target.price.max_output_tokens,
        image_tokens=target.upstream.image_tokens,
        is_window_wider=_WIDER_WINDOW in beta,
    )
    is_translated = not target.upstream.speaks(dialect)
    if is_translated:
        adjustments += _make_translatable(target, dialect, body, is_stream=is_stream)
    service = _service(target.price, body)
    price = target.price.of_service(service) or target.price
    tokens_in = prompt_bound(dialect, body, n_bytes, limits)
    limit = tokens_out = 0
    if dialect != "embeddings":
        limit, changes = limit_output(dialect, body, limits, target.upstream.max_tokens_name)
        tokens_out = limit + target.upstream.reasoning_beside_limit
        adjustments += changes
    # The service that is asked for is not always the one that is given.
    hold_nanos = max(worst_case_nanos(each, tokens_in, tokens_out) for each in (price, target.price))
    if hold_nanos > MAX_NANOS:
        raise Denial("invalid", "the output limit is more than any model has")
    hides_usage = dialect == "chat" and is_stream and _ask_for_usage(body)
    name_model(dialect, target.model, body)
    return Admissible(
        body=body.encode(),
        hold_nanos=hold_nanos,
        service=service,
        adjustments=tuple(adjustments),
        max_output=limit,
        is_translated=is_translated,
        hides_usage=hides_usage,
    )


def name_model(dialect: Dialect, model: GrantedModel, body: JsonObject) -> None:
    """Name the model as its provider does; Gemini's is in the path, and the body's would only contradict."""
    if dialect == "gemini":
        if "model" in body.values:
            body.drop("model")
    elif model.upstream_model != model.name:
        body.set(("model",), model.upstream_model)


def _make_translatable(target: Target, dialect: Dialect, body: JsonObject, *, is_stream: bool) -> list[str]:
    """Leave out what no bridge carries, and say so. Raises `Denial` for pairs that no golden test has."""
    carried = CARRIED.get(dialect)
    if carried is None or not is_stream or not target.upstream.speaks("chat"):
        form = dialect if is_stream else f"{dialect} without a stream"
        raise Denial("no_pair", f"{target.model.name}: {target.upstream.name} cannot be asked in {form}")
    lost = sorted(set(body.values) - carried)
    for name in lost:
        body.drop(name)
    return [f"translated {dialect} to chat", *(f"stripped member {_told(name)}" for name in lost)]


def _told(name: str) -> str:
    """A client's word as a row can hold it."""
    return ascii(name)[1:-1][:80]


def _service(price: ModelPrice, body: JsonObject) -> str | None:
    service = body.values.get("service_tier")
    if service is not None and (not isinstance(service, str) or price.of_service(service) is None):
        raise Denial("no_price", f"service_tier {str(service)[:40]!r} of {price.model} has no known price")
    return service


def _is_stream(wanted: Wanted, body: JsonObject) -> bool:
    if wanted.dialect == "gemini":
        return wanted.verb == "streamGenerateContent"
    stream = body.values.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise Denial("invalid", "stream must be true or false")
    return bool(stream)


def _ask_for_usage(body: JsonObject) -> bool:
    """A chat stream tells its usage only when asked. Whether the client had not asked."""
    options = body.values.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:  # pyright: ignore[reportUnknownMemberType]
        return False
    body.set(("stream_options", "include_usage"), True)
    return True
