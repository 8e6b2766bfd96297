"""Ceilings of this process, published in `/api/meta`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from domain.errors import ApiError

MAX_DATASET_ARCHIVE_BYTES = 16 * 1024**3
# A client sends 6 MiB; nothing else is held whole in memory.
MAX_CHUNK_BYTES = 16 * 1024**2
MAX_CONCURRENT_IMPORTS = 16
MAX_CONCURRENT_CHUNKS = 64

UPLOAD_LIMITS: Mapping[str, int] = MappingProxyType(
    {
        "dataset_archive_bytes": MAX_DATASET_ARCHIVE_BYTES,
        "job_archive_bytes": 0,
        "chunk_bytes": MAX_CHUNK_BYTES,
    }
)


class Gate:
    """At most `most` at a time; one more is refused with `code`, before it is read."""

    def __init__(self, code: str, most: int) -> None:
        self._code = code
        self._most = most
        self._n_inside = 0

    @contextmanager
    def enter(self) -> Generator[None]:
        """Hold a place for the block; raises the gate's code when none is free."""
        if self._n_inside >= self._most:
            message = f"{self._most} are under way; try again when one has ended."
            raise ApiError(self._code, message, details={"max_concurrent": self._most})
        self._n_inside += 1
        try:
            yield
        finally:
            self._n_inside -= 1
