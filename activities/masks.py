"""Known secret values out of what is kept: each becomes `[secret:NAME]`, and is counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from store.database import Database
from store.keys import key_text
from store.server_secret import ServerSecret

_KEYS = "SELECT id, role, step FROM gateway_keys WHERE trial_id = $1 AND attempt_number = $2"
MIN_SECRET_BYTES = 8
"""A shorter value is found everywhere, and hides nothing."""

_Shown = Callable[[str, int], bytes]
"""What stands for a value, by its secret's name and its length."""


class SecretMask:
    """Finds the values of named secrets, also as JSON writes them, and counts what it replaces."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._names: dict[bytes, str] = {}
        for name, value in secrets.items():
            for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
                encoded = form.encode("utf-8", "surrogateescape")
                if len(encoded) >= MIN_SECRET_BYTES:
                    self._names.setdefault(encoded, name)
        # The longest first: one secret may begin with another.
        forms = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self._longest = len(forms[0]) if forms else 0
        self.counts: Counter[str] = Counter()

    def text(self, data: bytes) -> bytes:
        """The data with `[secret:NAME]` in place of each value."""
        return self._replace(data, lambda name, _: f"[secret:{name}]".encode())

    def binary(self, data: bytes) -> bytes:
        """The data with stars in place of each value: a database stays one, since nothing moves."""
        return self._replace(data, lambda _, length: b"*" * length)

    def n_undecided(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a value that goes on behind them."""
        for length in range(min(self._longest - 1, len(data)), 0, -1):
            end = data[-length:]
            if any(form.startswith(end) for form in self._names):
                return length
        return 0

    def _replace(self, data: bytes, shown: _Shown) -> bytes:
        if self._pattern is None:
            return data

        def replaced(found: re.Match[bytes]) -> bytes:
            name = self._names[found[0]]
            self.counts[name] += 1
            return shown(name, len(found[0]))

        return self._pattern.sub(replaced, data)


@dataclass(frozen=True)
class Piece:
    """Output that came from bytes `offset` to `end` of its source. Masked, it may have another length."""

    offset: int
    end: int
    data: bytes


class MaskedOutput:
    """One stream, masked as it comes: what may be the beginning of a secret waits for what follows."""

    def __init__(self, mask: SecretMask, *, is_text: bool = True) -> None:
        self._mask = mask
        self._masked = mask.text if is_text else mask.binary
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


async def key_secrets(
    db: Database, secret: ServerSecret, trial_id: str, attempt_number: int
) -> dict[str, str]:
    """The virtual keys of an attempt, by the names that stand for them in what is kept."""
    rows = await (await db.pool()).fetch(_KEYS, trial_id, attempt_number)
    return {_key_name(row["role"], row["step"]): key_text(secret, row["id"]) for row in rows}


def _key_name(role: str, step: str) -> str:
    return f"EVOLVE_{role.upper()}_KEY{f'_{step}' if step else ''}"
