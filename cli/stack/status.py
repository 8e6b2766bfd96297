"""`evolve status`: every process of the stack, asked directly. It needs no living supervisor."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel, computed_field

from cli.stack import postgres, services, temporal
from cli.stack.home import Home
from cli.stack.identity import SUPERVISOR, ProcessRecord
from cli.stack.ports import StackPorts
from cli.stack.record import StackRecord

NAMES = ("postgres", "temporal", "gateway", "api", "worker")
Health = Literal["healthy", "unhealthy", "stopped"]


class ProcessStatus(BaseModel):
    """`restarts` counts since the last `evolve up`. `url` is None for a process that listens on no port."""

    name: str
    health: Health
    pid: int | None
    restarts: int
    url: str | None
    log_file: str

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        pid = str(self.pid) if self.pid else ""
        return (self.name, self.health, pid, str(self.restarts), self.url or "", self.log_file)


class StackStatus(BaseModel):
    """`temporal_address` is for workers and Temporal clients, the URL of `temporal` is its UI."""

    home: str
    credentials_file: str
    temporal_address: str | None
    processes: list[ProcessStatus]

    @computed_field
    @property
    def is_healthy(self) -> bool:
        """Whether every process is."""
        return all(process.health == "healthy" for process in self.processes)


async def stack_status(home: Home) -> StackStatus:
    """Ask all at once."""
    record = StackRecord.read(home.stack_record)
    supervisor = ProcessStatus(
        name=SUPERVISOR,
        health="healthy" if home.supervisor_lives() else "stopped",
        pid=_pid(home, SUPERVISOR),
        restarts=0,
        url=None,
        log_file=str(home.log(SUPERVISOR)),
    )
    children = await asyncio.gather(*(_process(home, record, name) for name in NAMES))
    return StackStatus(
        home=str(home.path),
        credentials_file=str(home.credentials),
        temporal_address=record.ports.temporal_address if record else None,
        processes=[supervisor, *children],
    )


async def _process(home: Home, record: StackRecord | None, name: str) -> ProcessStatus:
    pid = _pid(home, name)
    health: Health = "stopped"
    if pid is not None and record is not None:
        health = "healthy" if await _is_healthy(name, home, record.ports) else "unhealthy"
    return ProcessStatus(
        name=name,
        health=health,
        pid=pid,
        restarts=record.restarts.get(name, 0) if record else 0,
        url=record.ports.url(name) if record else None,
        log_file=str(home.log(name)),
    )


def _pid(home: Home, name: str) -> int | None:
    record = ProcessRecord.read(home.process_record(name))
    return record.identity.pid if record else None


async def _is_healthy(name: str, home: Home, ports: StackPorts) -> bool:
    if name == "postgres":
        return await postgres.is_healthy(home)
    if name == "temporal":
        return await temporal.is_healthy(ports)
    return await services.is_healthy(name, home, ports)
