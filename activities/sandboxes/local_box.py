"""One running box of the `local` provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

from activities.sandboxes import local_sweeper, process
from activities.sandboxes.base import NetworkMode, ProcessInfo, ProcessKey, RunResult
from activities.sandboxes.docker_outside import OutsideFiles
from activities.sandboxes.local_host import RESOLVER, LocalHost
from activities.sandboxes.local_mounts import CAPABILITIES
from activities.sandboxes.local_pod import Ceilings, Making, attach_nat, detach_nat, limit_command
from activities.sandboxes.local_record import BoxDirectory, BoxRecord
from activities.sandboxes.local_spawn import memory_file, pid_one_above, process_key, run_program
from activities.sandboxes.local_users import BoxUser, find_user
from activities.sandboxes.process_poll import ExitStatus, FileSlice, FileState
from domain.errors import (
    ExecChdirFailure,
    ProviderCreateFailure,
    ProviderUnreachable,
    SandboxDeath,
    TaskError,
)

SERVICE = "entrypoint"
SWEEP_TIMEOUT_SEC = 60.0
SWEEP_TRIES = 3
# Of so many only the names are told: reading a command line waits for its process, and those of a fork
# bomb hardly get to run.
CROWD = 256
# Values come by descriptor 3, so that none is in a command line; the rest is the command.
_RUN = '. /proc/self/fd/3; exec 3<&-; exec "$@"'


class LocalBox:
    """`record` is that of a box that runs."""

    def __init__(self, host: LocalHost, directory: BoxDirectory, record: BoxRecord) -> None:
        assert record.pod is not None
        assert record.init is not None
        self._host = host
        self._directory = directory
        self._record = record
        self._ceilings = Ceilings(0, record.memory_mb, record.storage_mb)
        self._pod: ProcessKey = record.pod
        self._init: ProcessKey = record.init
        self._init_in_pod = pid_one_above(self._init[0])
        self._files = OutsideFiles(directory.name, self._init[0])

    @property
    def box_id(self) -> str:
        return self._directory.name

    @property
    def workdir(self) -> str:
        return self._record.workdir

    async def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_sec: float = 30.0,
    ) -> RunResult:
        where = cwd or self.workdir
        if not await self._files.is_folder(where):
            raise ExecChdirFailure(f"the working directory {where!r} does not exist in the box")
        who = await self._user(user)
        exports = process.shell_exports({**self._record.env, "HOME": who.home, **(env or {})})
        inside = [*self._drop(who), "/bin/sh", "-c", _RUN, "run", *argv]
        command = [*limit_command(self._host, self.box_id, self._ceilings), *self._enter(where), *inside]
        with memory_file(exports) as values:
            result = await run_program(command, stdin=stdin or b"", fds={3: values}, timeout_sec=timeout_sec)
        self._check_alive()
        return result

    async def _user(self, user: str | None) -> BoxUser:
        found = await find_user(self._files_read, user)
        if found.uid and not self._host.is_root:
            raise TaskError(f"a local box of a normal user has root only, not {user!r}", param="user")
        return found

    async def _files_read(self, path: str) -> bytes:
        return await self._files.read(path, 0, None)

    def _enter(self, cwd: str | None = None) -> list[str]:
        """By way of the pod: its /usr is read-only, so nothing in the box can write to this nsenter."""
        into = [self._host.program("nsenter"), f"--target={self._init_in_pod}"]
        into += ["--user", "--preserve-credentials", "--pid"]
        into += ["--mount", "--ipc", "--uts", f"--wdns={cwd}"] if cwd else []
        return [*self._host.enter(self._pod[0], "--net", "--mount"), *into]

    def _drop(self, user: BoxUser) -> list[str]:
        kept = "".join(f",+{each}" for each in CAPABILITIES) if self._host.is_root else ""
        drop = [
            self._host.program("setpriv"),
            "--no-new-privs",
            f"--bounding-set=-all{kept}",
            "--inh-caps=-all",
        ]
        if not self._host.is_root:
            return drop
        groups = f"--groups={','.join(map(str, user.groups))}" if user.groups else "--clear-groups"
        return [*drop, f"--reuid={user.uid}", f"--regid={user.gid}", groups]

    def _check_alive(self) -> None:
        if process_key(self._init[0]) != self._init:
            raise SandboxDeath(f"the box {self.box_id} is gone")

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return await self._files.read(path, offset, limit)

    async def read_files(self, slices: Sequence[FileSlice]) -> list[FileState | None]:
        """See `process_poll.ReadsFilesFromOutside`."""
        return await self._files.read_files(slices)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None:
        who = await self._user(user)
        owner = (who.uid, who.gid) if self._host.is_root else (os.geteuid(), os.getegid())
        await self._files.write(path, data, mode, owner)

    async def put_tar(self, path: str, tar: bytes) -> None:
        await self._files.put_tar(path, tar)

    async def get_tar(self, path: str) -> AsyncIterator[bytes]:
        async for chunk in self._files.get_tar(path):
            yield chunk

    async def is_folder(self, path: str) -> bool:
        return await self._files.is_folder(path)

    async def set_network(self, mode: NetworkMode) -> None:
        async with self._directory.locked() as lock:
            record = self._directory.read()
            if record is None or record.network_mode == mode:
                return
            if mode == "public":
                await attach_nat(Making(self._host, self._directory, lock), self._pod, with_firewall=True)
            elif mode == "no-network":
                await detach_nat(self._directory)
            else:
                raise ProviderCreateFailure(f"local boxes have no network mode {mode!r}")
            await self.write_resolver(mode)
            self._directory.write_network(record, mode)

    async def write_resolver(self, mode: NetworkMode) -> None:
        """Tell programs in the box which name server there is."""
        told = f"nameserver {RESOLVER}\n" if mode == "public" else ""
        await self.write("/etc/resolv.conf", told.encode())

    async def make_workdir(self) -> None:
        if not await self._files.is_folder(self.workdir):
            made = await self.run(["mkdir", "-p", "--", self.workdir], cwd="/")
            if made.exit_code != 0:
                told = made.stderr.decode(errors="replace").strip()
                raise ProviderCreateFailure(f"the working directory {self.workdir!r}: {told}")

    async def processes(self) -> list[ProcessInfo]:
        return await asyncio.to_thread(self._processes)

    def _processes(self) -> list[ProcessInfo]:
        self._check_alive()
        proc = Path(f"/proc/{self._init[0]}/root/proc")
        try:
            names = [each for each in os.listdir(proc) if each.isdigit()]
        except FileNotFoundError as error:
            raise SandboxDeath(f"the box {self.box_id} is gone") from error
        found = [self._process(proc / name, has_words=len(names) < CROWD) for name in names]
        return sorted((each for each in found if each), key=lambda each: each.pid)

    @staticmethod
    def _process(path: Path, *, has_words: bool) -> ProcessInfo | None:
        try:
            before, _, after = (path / "stat").read_bytes().rpartition(b") ")
            words = (path / "cmdline").read_bytes() if has_words else before.partition(b"(")[2]
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = after.split()
        if fields[0] in (b"Z", b"X"):
            return None
        command = words.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        return ProcessInfo(int(path.name), int(fields[19]), command)

    async def sweep(self, keep: Collection[ProcessKey]) -> int:
        proc = f"/proc/{self._init_in_pod}/root/proc"
        sweeper = [self._host.python, "-I", "-S", local_sweeper.__file__, proc]
        kept = "".join(f"{pid} {start_ticks}\n" for pid, start_ticks in keep).encode()
        told = b""
        for _ in range(SWEEP_TRIES):  # a sweep beside this one ends this one too
            swept = await run_program([*self._enter(), *sweeper], stdin=kept, timeout_sec=SWEEP_TIMEOUT_SEC)
            self._check_alive()
            if swept.exit_code == 0:
                return int(swept.stdout)
            told = swept.stderr
        message = told.decode(errors="replace").strip()
        raise ProviderUnreachable(f"the box {self.box_id} could not be swept: {message}")

    async def service_exit_code(self) -> int | None:
        """How the service that the image's ENTRYPOINT starts has ended; None while it runs or is none."""
        if not self._record.has_service:
            return None
        status = await process.status(self, SERVICE)
        return status.exit_code if isinstance(status, ExitStatus) else None
