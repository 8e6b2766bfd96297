"""The API as commands use it: JSON calls, pages, and typed errors (contract §1)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlsplit

import httpx

from cli.credentials import Credentials, find_credentials
from cli.errors import Refused, Unreachable

Json = dict[str, Any]

REQUEST_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
TRANSFER_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
PAGE_SIZE = 100
# A call that is safe to send again is, after these waits, when the server answers nothing.
RETRY_WAITS_SEC = (0.3, 1.0)
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")


def path(template: str, *segments: str) -> str:
    """`template` with each `{}` replaced by one escaped segment: a slash in a name is data."""
    return template.format(*(quote(segment, safe="") for segment in segments))


class Client:
    """One server. Every failure is a `Refused` or an `Unreachable`."""

    def __init__(self, credentials: Credentials) -> None:
        self.url = credentials.url
        host = urlsplit(credentials.url).hostname or ""
        self.http = httpx.Client(
            base_url=credentials.url,
            headers={
                "Authorization": f"Bearer {credentials.require_key()}",
                "Accept": "application/json",
                "Accept-Encoding": "identity",
            },
            timeout=REQUEST_TIMEOUT,
            trust_env=not _LOOPBACK.fullmatch(host),  # a proxy cannot reach our own machine
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def get(self, route: str, query: Mapping[str, Any] | None = None) -> Json:
        """The JSON object of a read; sent again when no answer comes."""
        return self._call_again("GET", route, params=_query(query))

    def post(self, route: str, body: Json | None = None, *, idempotency_key: str | None = None) -> Json:
        """The JSON object of a write; sent again only under an idempotency key."""
        if idempotency_key is None:
            return json_object(self.request("POST", route, json=body))
        headers = {"Idempotency-Key": idempotency_key}
        return self._call_again("POST", route, json=body, headers=headers)

    def delete(self, route: str) -> Json:
        """The JSON object of a delete, `{}` when the answer is empty."""
        return json_object(self.request("DELETE", route))

    def pages(self, route: str, query: Mapping[str, Any] | None = None) -> Iterator[Json]:
        """Every item of a paged collection, page by page, in the server's order."""
        cursor: str | None = None
        while True:
            page = self.get(route, {"limit": PAGE_SIZE, **(query or {}), "cursor": cursor})
            yield from items_of(page)
            cursor = page.get("nextCursor")
            if not cursor:
                return

    def request(self, method: str, route: str, **options: Any) -> httpx.Response:
        """One exchange, read whole; raises unless it ended in 2xx."""
        with transport_errors(self.url):
            response = self.http.request(method, route, **options)
        raise_for_error(response)
        return response

    @contextmanager
    def stream(self, method: str, route: str, **options: Any) -> Generator[httpx.Response]:
        """An answer whose body is read piece by piece inside the `with`."""
        with transport_errors(self.url), self.http.stream(method, route, **options) as response:
            if not response.is_success:
                response.read()
                raise_for_error(response)
            yield response

    def _call_again(self, method: str, route: str, **options: Any) -> Json:
        for wait_sec in RETRY_WAITS_SEC:
            try:
                return json_object(self.request(method, route, **options))
            except Unreachable as error:
                if isinstance(error.__cause__, httpx.ConnectError):
                    raise  # nobody listens: waiting a second does not help
                time.sleep(wait_sec)
        return json_object(self.request(method, route, **options))


def connect() -> Client:
    """A client of the server in force."""
    return Client(find_credentials())


def items_of(page: Json) -> list[Json]:
    """The objects of a page's `items`."""
    items: Any = page.get("items")
    return cast("list[Json]", items) if isinstance(items, list) else []


def json_object(response: httpx.Response) -> Json:
    """The body as an object; an empty one is `{}`."""
    if not response.content:
        return {}
    try:
        value: Any = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refused(
            f"{response.request.method} {response.request.url.path} answered no JSON object: "
            f"{response.text[:200]!r}",
            status=response.status_code,
        )
    return cast("Json", value)


@contextmanager
def transport_errors(url: str) -> Generator[None]:
    """Turn what httpx raises into `Unreachable`."""
    try:
        yield
    except httpx.InvalidURL as error:
        raise Unreachable(f"{url} is no URL: {error}") from error
    except httpx.ConnectError as error:
        raise Unreachable(f"no server answers at {url}: {error}") from error
    except httpx.TimeoutException as error:
        raise Unreachable(f"{url} did not answer in time ({type(error).__name__})") from error
    except httpx.TransportError as error:
        raise Unreachable(f"the connection to {url} broke: {error or type(error).__name__}") from error


def raise_for_error(response: httpx.Response) -> None:
    """Raise `Refused` for anything but 2xx; redirects count as errors (contract §1.4)."""
    if response.is_success:
        return
    envelope = _envelope(response)
    reason = response.reason_phrase or f"status {response.status_code}"
    code: Any = envelope.get("code")
    param: Any = envelope.get("param")
    details: Any = envelope.get("details")
    raise Refused(
        str(envelope.get("message") or reason),
        status=response.status_code,
        code=code if isinstance(code, str) else "unknown_error",
        param=param if isinstance(param, str) else None,
        details=cast("Json", details) if isinstance(details, dict) else None,
        retry_after_sec=_retry_after(envelope.get("retryAfterSec"), response.headers.get("Retry-After")),
        request_id=str(envelope.get("requestId") or response.headers.get("X-Request-Id") or "") or None,
    )


def _envelope(response: httpx.Response) -> Json:
    """The `error` member; a body without one becomes the message."""
    try:
        body: Any = response.json()
    except ValueError:
        body = None
    error: Any = cast("Json", body).get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return cast("Json", error)
    return {"message": response.text.strip()[:500]}


def _retry_after(stated: Any, header: str | None) -> float | None:
    """The body's finite number, 0 included, before the header's; a date is no number."""
    if isinstance(stated, int | float) and not isinstance(stated, bool) and math.isfinite(stated):
        return float(stated)
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _query(query: Mapping[str, Any] | None) -> dict[str, str]:
    """Absent options are left out; booleans are words; lists are comma-joined (contract §1.6)."""
    words: dict[str, str] = {}
    for name, value in (query or {}).items():
        if value is None or value == []:
            continue
        if isinstance(value, bool):
            words[name] = "true" if value else "false"
        elif isinstance(value, list):
            words[name] = ",".join(str(item) for item in cast("list[Any]", value))
        else:
            words[name] = str(value)
    return words
