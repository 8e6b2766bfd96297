"""Request bodies: a key that sends many large ones at once fills no memory, and only its own wait."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from aiohttp import web
from aiohttp.http_exceptions import PayloadEncodingError

from gateway.denials import Denial

MAX_READING = 8
"""Bodies of one key that are read at the same time; more wait, unread."""
READING_SEC = 120.0
"""For one body, its waiting included."""


class BodyReader:
    """Reads the bodies of all keys."""

    def __init__(self) -> None:
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def read(self, request: web.Request, key_id: str) -> bytes:
        """The whole body. Raises `Denial`, and aiohttp's own error for one that is too large."""
        places = self._places.get(key_id)
        if places is None:
            places = self._places[key_id] = asyncio.Semaphore(MAX_READING)
        try:
            async with asyncio.timeout(READING_SEC), places:
                return await request.read()
        except TimeoutError:
            raise Denial("unavailable", f"the body did not come within {READING_SEC:.0f} s") from None
        except (PayloadEncodingError, web.RequestPayloadError):
            raise Denial("invalid", "the body is not encoded as its headers say") from None
