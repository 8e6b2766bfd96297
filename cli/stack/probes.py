"""Signs of life of each kind of process, cheap enough to ask for often."""

from __future__ import annotations

import asyncio
from pathlib import Path

PROBE_TIMEOUT_SEC = 2.0
# Postgres' SSLRequest: answered by one byte when the postmaster turns.
_SSL_REQUEST = bytes.fromhex("0000000804d2162f")


async def http_ok(address: tuple[str, int] | Path, path: str = "/healthz") -> bool:
    """Whether a GET answers 200. `address` is host and port, or a unix socket."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    answer = await _exchange(address, request, 12)
    return answer.startswith(b"HTTP/1.") and answer[9:12] == b"200"


async def postgres_answers(data: Path, socket_directory: Path) -> bool:
    """Whether the server of `data` takes connections (line 8 of postmaster.pid, as pg_ctl reads it)."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    if len(lines) < 8 or lines[7].strip() != "ready":
        return False
    return await _exchange(socket_directory / ".s.PGSQL.5432", _SSL_REQUEST, 1) == b"N"


async def port_answers(host: str, port: int) -> bool:
    """Whether something listens there."""
    return await _exchange((host, port), b"", 0) is not _NO_ANSWER


_NO_ANSWER = b"no answer"


async def _exchange(address: tuple[str, int] | Path, request: bytes, length: int) -> bytes:
    """The first `length` bytes of the answer, or `_NO_ANSWER` (that very object)."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SEC):
            if isinstance(address, Path):
                reader, writer = await asyncio.open_unix_connection(address)
            else:
                reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(request)
                return await reader.readexactly(length)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return _NO_ANSWER
