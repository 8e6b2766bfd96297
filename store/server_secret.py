"""The one secret of an installation that is not in its database, and what is derived from it.

Virtual keys are derived from it and provider keys are encrypted under it: a copy of the database alone
opens nothing. Every process of an installation must hold the same one.
"""

from __future__ import annotations

import os
import secrets
import stat
from functools import lru_cache
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from domain.errors import EvolveError
from store.settings import StoreSettings

Purpose = Literal["virtual-keys", "provider-keys"]

FILE_NAME = "secret.key"
VARIABLE = "EVOLVE_SECRET_KEY"
MIN_CHARS = 32


class BadServerSecret(EvolveError):
    """There is no usable server secret; the message says where one was looked for and what is wrong."""

    code = "bad_server_secret"


class ServerSecret:
    """The secret; `str()` and `repr()` do not show it."""

    def __init__(self, text: str) -> None:
        """Raises `BadServerSecret` for fewer than `MIN_CHARS` characters."""
        if len(text) < MIN_CHARS:
            raise BadServerSecret(f"the server secret has fewer than {MIN_CHARS} characters")
        self._material = text.encode()
        self._derived = lru_cache(self._derive)

    @classmethod
    def of(cls, settings: StoreSettings) -> ServerSecret:
        """The secret of a process. Raises `BadServerSecret`."""
        text = settings.secret_key
        return cls.read(None if text is None else text.get_secret_value(), settings.home)

    @classmethod
    def read(cls, text: str | None, home: Path) -> ServerSecret:
        """`text`, of `EVOLVE_SECRET_KEY`, or else the home's file. Raises `BadServerSecret`."""
        return cls(text) if text else cls.from_file(home / FILE_NAME)

    @classmethod
    def from_file(cls, path: Path) -> ServerSecret:
        """Raises `BadServerSecret` for a file that is absent or that others may read."""
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            text = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise BadServerSecret(
                f"no server secret: {path} does not exist and {VARIABLE} is not set; `evolve up` makes it"
            ) from None
        if mode & 0o077:
            raise BadServerSecret(f"{path} can be read by others (mode {mode:o}): chmod 600 it")
        return cls(text)

    def derive(self, purpose: Purpose) -> bytes:
        """32 bytes for one purpose (HKDF-SHA256): one purpose's key tells nothing of another's."""
        return self._derived(purpose)

    def _derive(self, purpose: Purpose) -> bytes:
        hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"evolve/{purpose}/1".encode())
        return hkdf.derive(self._material)


def make_secret_file(home: Path) -> bool:
    """Make `$EVOLVE_HOME/secret.key`, mode 0600, once; False when there is one already."""
    path = home / FILE_NAME
    # Under a name of its own first: a reader never sees half a secret.
    temporary = home / f".{FILE_NAME}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32) + "\n")
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True
