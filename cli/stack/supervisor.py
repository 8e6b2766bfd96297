"""`evolve up`: start every process of the platform in order, keep each alive, stop them in order.

The supervisor holds `run/supervisor.lock`. Its children are sessions of their own and write their own
records: when it is killed they go on, and the next `evolve up` takes them over, or stops first what
would now be started differently.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import UTC, datetime

from cli.stack.child import StopLadder
from cli.stack.home import Home
from cli.stack.identity import SUPERVISOR, ProcessRecord, record_myself
from cli.stack.keeper import Keeper
from cli.stack.logs import rotate_all
from cli.stack.ports import StackPorts
from cli.stack.postgres import STOP_LADDER as POSTGRES_STOP
from cli.stack.postgres import EmbeddedPostgres
from cli.stack.record import StackRecord
from cli.stack.services import STOP_LADDERS, Services
from cli.stack.settings import StackSettings, check_environment
from cli.stack.temporal import STOP_LADDER as TEMPORAL_STOP
from cli.stack.temporal import EmbeddedTemporal

HOUSEKEEPING_INTERVAL_SEC = 10.0
# What feeds on another goes first.
DOWN_ORDER: tuple[tuple[str, StopLadder], ...] = (
    *((name, STOP_LADDERS[name]) for name in ("worker", "api", "gateway")),
    ("temporal", TEMPORAL_STOP),
    ("postgres", POSTGRES_STOP),
)
Told = Callable[[str], None]


class Supervisor:
    """One life of the stack. `told` gets a line for people whenever something happened."""

    def __init__(self, postgres: EmbeddedPostgres, temporal: EmbeddedTemporal, told: Told) -> None:
        self._home = temporal.home
        self._temporal = temporal
        self._told = told
        self._services = Services(temporal.home, temporal.ports, temporal.config.namespace.name)
        specs = (postgres.spec(), temporal.spec(), *self._services.specs())
        self._keepers = {spec.name: Keeper(spec, self._home, self._note) for spec in specs}
        self._asked_to_stop = asyncio.Event()
        self._started_at = datetime.now(UTC)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Up, until a signal, and down. Raises `StackError`; nothing is left running then."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop.set)
        up = asyncio.create_task(self._up())
        asked = asyncio.create_task(self._asked_to_stop.wait())
        try:
            await asyncio.wait({up, asked}, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                await up  # raises what it failed of
                on_ready()
                await self._keep_house()
        finally:
            up.cancel()
            await asyncio.wait({up})
            await self._down()

    async def _up(self) -> None:
        adopted = {name for name, keeper in self._keepers.items() if await keeper.adopt()}
        self._temporal.ports.check(running=adopted)
        self._write_record()
        await self._start("postgres")
        await asyncio.gather(self._services.prepare_database(), self._start_temporal())
        await asyncio.gather(*(self._start(name) for name in ("gateway", "api", "worker")))
        self._write_record()

    def _note(self, line: str) -> None:
        self._told(line)
        self._write_record()

    async def _start(self, name: str) -> None:
        keeper = self._keepers[name]
        how = "taken over" if keeper.child else "started"
        await keeper.start()
        self._told(f"{name:<9} {how:<10}  {self._temporal.ports.url(name) or self._home.log(name)}")

    async def _start_temporal(self) -> None:
        await self._start("temporal")
        await self._temporal.configure()

    async def _down(self) -> None:
        for name, _ in DOWN_ORDER:
            if await self._keepers[name].stop():
                self._told(f"{name:<9} stopped")
        self._home.stack_record.unlink(missing_ok=True)

    async def _keep_house(self) -> None:
        while not self._asked_to_stop.is_set():
            rotate_all(self._home.path / "logs")
            self._write_record()
            try:
                await asyncio.wait_for(self._asked_to_stop.wait(), HOUSEKEEPING_INTERVAL_SEC)
            except TimeoutError:
                continue

    def _write_record(self) -> None:
        record = StackRecord(
            started_at=self._started_at,
            ports=self._temporal.ports,
            restarts={name: keeper.restarts for name, keeper in self._keepers.items()},
        )
        record.write(self._home.stack_record)


def run_supervisor(told: Told, on_ready: Callable[[Home, StackPorts], None]) -> None:
    """The whole of `evolve up`, in this process. Raises `StackError`."""
    check_environment()
    home, settings = Home.from_environment(), StackSettings()
    home.make()
    with home.lock():
        record_myself(home.process_record(SUPERVISOR))
        temporal = EmbeddedTemporal.prepare(home, settings)
        # Before the seconds that a first initdb takes; and again once it is known who is taken over.
        temporal.ports.check(
            running={name for name, _ in DOWN_ORDER if ProcessRecord.read(home.process_record(name))}
        )
        postgres = EmbeddedPostgres.prepare(home)

        async def supervise() -> None:
            await Supervisor(postgres, temporal, told).run(lambda: on_ready(home, temporal.ports))

        asyncio.run(supervise())
