"""Files of a box past the engine, for a worker that is root: below `/proc/PID/root`, in under a ms each."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from io import BytesIO
from typing import Concatenate, ParamSpec, TypeVar

from activities.sandboxes import outside_files
from activities.sandboxes.process_poll import FileSlice, FileState
from domain.errors import ProviderUnreachable, SandboxDeath

CHUNK_BYTES = 256 * 1024

Params = ParamSpec("Params")
Result = TypeVar("Result")


class OutsideFiles:
    """Raises `SandboxDeath` when the box's first process is over, `FileNotFoundError` for an absent path."""

    def __init__(self, box_id: str, init_pid: int) -> None:
        self._box_id = box_id
        self._init_pid = init_pid
        with self._alive():
            self._start_ticks = outside_files.process_start_ticks(init_pid)

    async def read(self, path: str, offset: int, limit: int | None) -> bytes:
        _, data = await self._on_root(outside_files.read_slice, path, offset, limit)
        return data

    async def read_files(self, slices: Sequence[FileSlice]) -> list[FileState | None]:
        return await self._on_root(_read_slices, slices)

    async def write(self, path: str, data: bytes, mode: int, owner: tuple[int, int]) -> None:
        await self._on_root(outside_files.write_file, path, data, mode, owner)

    async def put_tar(self, path: str, tar: bytes) -> None:
        await self._on_root(outside_files.unpack, path, BytesIO(tar))

    async def is_folder(self, path: str) -> bool:
        return await self._on_root(outside_files.is_folder, path)

    async def get_tar(self, path: str) -> AsyncIterator[bytes]:
        receiving, sending = os.pipe()
        packing = asyncio.create_task(self._on_root(_pack_into, path, sending))
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(receiving, "rb")
        )
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                yield chunk
        except GeneratorExit:
            transport.close()
            with contextlib.suppress(BrokenPipeError):  # whoever asked has had enough
                await packing
            raise
        transport.close()
        await packing

    async def _on_root(
        self,
        function: Callable[Concatenate[int, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        def call() -> Result:
            with self._open_root() as root:
                return function(root, *args, **kwargs)

        try:
            return await asyncio.to_thread(call)
        except (FileNotFoundError, BrokenPipeError):
            raise
        except OSError as error:
            raise ProviderUnreachable(f"the files of the box {self._box_id} failed: {error}") from error

    @contextlib.contextmanager
    def _open_root(self) -> Iterator[int]:
        """The box's root folder, of the very process that was there at first: pids are used again."""
        with self._alive():
            root = outside_files.open_root(self._init_pid)
        try:
            with self._alive():
                if outside_files.process_start_ticks(self._init_pid) != self._start_ticks:
                    raise ProcessLookupError(self._init_pid)
            yield root
        finally:
            os.close(root)

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, ProcessLookupError) as error:
            raise SandboxDeath(f"the box {self._box_id} is gone") from error


def _read_slices(root: int, slices: Sequence[FileSlice]) -> list[FileState | None]:
    return [_read_slice(root, each) for each in slices]


def _read_slice(root: int, wanted: FileSlice) -> FileState | None:
    try:
        return FileState(*outside_files.read_slice(root, wanted.path, wanted.offset, wanted.limit))
    except FileNotFoundError:
        return None


def _pack_into(root: int, path: str, sending: int) -> None:
    with os.fdopen(sending, "wb", buffering=CHUNK_BYTES) as target:
        outside_files.pack(root, path, target)
