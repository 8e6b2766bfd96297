"""Known secret values out of what is kept: each becomes `[secret:NAME]`, and is counted.

Output is masked in place before it is stored, so that no offset moves; what is kept as a file is masked then.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from activities.sandboxes.process_poll import Chunk, ExitStatus, Stream
from store.database import Database
from store.keys import key_text
from store.server_secret import ServerSecret

_KEYS = "SELECT id, role, step FROM gateway_keys WHERE trial_id = $1 AND attempt_number = $2"
MIN_SECRET_BYTES = 8
"""A shorter value is found everywhere, and hides nothing."""


class SecretMask:
    """Finds the values of named secrets, also as JSON writes them, and counts what it replaces."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._names: dict[bytes, str] = {}
        for name, value in secrets.items():
            for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
                encoded = form.encode("utf-8", "surrogateescape")
                if len(encoded) >= MIN_SECRET_BYTES:
                    self._names.setdefault(encoded, name)
        self._values = tuple(self._names)
        self._longest = max(map(len, self._values), default=0)
        # What was masked in place before is named, and counted, all the same.
        self._names |= {
            _in_place(form, name): name for form, name in self._names.items() if _fits(form, name)
        }
        # The longest first: one secret may begin with another.
        forms = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self.counts: Counter[str] = Counter()

    def text(self, data: bytes) -> bytes:
        """The data with `[secret:NAME]` in place of each value."""
        return self._replace(data, lambda _, name: _marker(name))

    def in_place(self, data: bytes) -> bytes:
        """As `text`, but filled up with stars, so that nothing moves: offsets hold, a database stays one.

        A value shorter than its name's mark is only stars.
        """
        return self._replace(data, _in_place)

    def n_undecided(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a value that goes on behind them."""
        for length in range(min(self._longest - 1, len(data)), 0, -1):
            end = data[-length:]
            if any(form.startswith(end) for form in self._values):
                return length
        return 0

    def _replace(self, data: bytes, shown: Callable[[bytes, str], bytes]) -> bytes:
        if self._pattern is None:
            return data

        def replaced(found: re.Match[bytes]) -> bytes:
            name = self._names[found[0]]
            self.counts[name] += 1
            return shown(found[0], name)

        return self._pattern.sub(replaced, data)


def _marker(name: str) -> bytes:
    return f"[secret:{name}]".encode()


def _fits(form: bytes, name: str) -> bool:
    return len(_marker(name)) <= len(form)


def _in_place(form: bytes, name: str) -> bytes:
    return (_marker(name) if _fits(form, name) else b"").ljust(len(form), b"*")


@dataclass(frozen=True)
class Piece:
    """Output that came from bytes `offset` to `end` of its source. Masked, it may have another length."""

    offset: int
    end: int
    data: bytes


class MaskedOutput:
    """One stream, masked as it comes: what may be the beginning of a secret waits for what follows."""

    def __init__(self, mask: SecretMask, *, is_in_place: bool = False) -> None:
        self._mask = mask
        self._masked = mask.in_place if is_in_place else mask.text
        self._held = b""
        self._at = 0

    def take(self, offset: int, data: bytes, *, is_last: bool = False) -> Piece | None:
        """What can be told now of what was held and the `data` behind it; None when that is nothing.

        `offset` is where `data` stood in the source: after what came before.
        """
        start = offset - len(self._held)
        data = self._held + data
        n_held = 0 if is_last else self._mask.n_undecided(data)
        ready, self._held = data[: len(data) - n_held], data[len(data) - n_held :]
        self._at = start + len(ready)
        return Piece(start, self._at, self._masked(ready)) if ready else None

    def end(self) -> Piece | None:
        """What was held, as there is no more."""
        return self.take(self._at + len(self._held), b"", is_last=True)


async def masked_in_place(
    items: AsyncIterator[Chunk | ExitStatus], mask: SecretMask
) -> AsyncIterator[Chunk | ExitStatus]:
    """A followed process's output with the values of secrets masked, every byte at its own offset.

    What may be the beginning of a secret is given with what comes behind it: whoever follows on from the
    last given byte reads it again.
    """
    outputs: dict[Stream, MaskedOutput] = {}
    async for item in items:
        if isinstance(item, ExitStatus):
            for stream, output in outputs.items():
                rest = output.end()
                if rest is not None:
                    yield Chunk(stream, rest.offset, rest.data)
            yield item
            continue
        output = outputs.setdefault(item.stream, MaskedOutput(mask, is_in_place=True))
        piece = output.take(item.offset, item.data)
        if piece is not None:
            yield Chunk(item.stream, piece.offset, piece.data)


async def key_secrets(
    db: Database, secret: ServerSecret, trial_id: str, attempt_number: int
) -> dict[str, str]:
    """The virtual keys of an attempt, by the names that stand for them in what is kept."""
    rows = await (await db.pool()).fetch(_KEYS, trial_id, attempt_number)
    return {_key_name(row["role"], row["step"]): key_text(secret, row["id"]) for row in rows}


def _key_name(role: str, step: str) -> str:
    return f"EVOLVE_{role.upper()}_KEY{f'_{step}' if step else ''}"
