"""Which server a command talks to, and with which key.

`EVOLVE_DASHBOARD_URL` and `EVOLVE_API_KEY` win over `$EVOLVE_HOME/credentials.json`, which `evolve up`
writes. A key from the file goes to the file's server only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cli.errors import CliError, NotSignedIn

DEFAULT_URL = "http://127.0.0.1:8800"
CREDENTIALS_FILE = "credentials.json"


@dataclass(frozen=True)
class Credentials:
    """`url` has no trailing slash. `api_key` is None where none is known."""

    url: str
    api_key: str | None

    def require_key(self) -> str:
        """The key; raises `NotSignedIn` with what to do about it."""
        if self.api_key is None:
            raise NotSignedIn(
                f"no API key for {self.url}: start a server with `evolve up`, or set EVOLVE_API_KEY"
            )
        return self.api_key


def home_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """`EVOLVE_HOME`, `~/.evolve` by default."""
    return Path(environment.get("EVOLVE_HOME") or "~/.evolve").expanduser()


def find_credentials(environment: Mapping[str, str] = os.environ) -> Credentials:
    """The server and key in force. Raises `CliError` for a credentials file that cannot be read."""
    stored = _read_file(home_directory(environment) / CREDENTIALS_FILE)
    asked_url = environment.get("EVOLVE_DASHBOARD_URL", "").strip().rstrip("/")
    url = asked_url or stored.url
    key = environment.get("EVOLVE_API_KEY", "").strip()
    if key:
        return Credentials(url, key)
    return Credentials(url, stored.api_key if url == stored.url else None)


def _read_file(path: Path) -> Credentials:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Credentials(DEFAULT_URL, None)
    except (OSError, ValueError) as error:
        raise CliError(f"{path}: {error}", code="invalid_credentials_file") from None
    if not isinstance(document, dict):
        raise CliError(f"{path}: not a JSON object", code="invalid_credentials_file")
    members = cast("dict[str, Any]", document)
    url = str(members.get("dashboard_url") or DEFAULT_URL).rstrip("/")
    key = members.get("api_key")
    return Credentials(url, str(key) if key else None)
