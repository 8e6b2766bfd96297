"""`docs/settings.md`, written from the settings classes by `python -m tests.docs.settings_page`."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from activities.settings import WorkerSettings
from api.settings import ApiSettings
from cli.stack.settings import PRODUCTION_ONLY, StackSettings
from gateway.settings import GatewaySettings

READERS: dict[str, type[BaseSettings]] = {
    "up": StackSettings,
    "api": ApiSettings,
    "gateway": GatewaySettings,
    "worker": WorkerSettings,
}
# A default that is this machine's, by its factory.
FACTORIES = {
    "default_home": "`~/.evolve`",
    "gethostname": "the host's name",
    "machine_cpus": "the machine's",
    "machine_memory_mb": "the machine's",
}
INTRODUCTION = f"""\
# Settings

Written by `python -m tests.docs.settings_page` from the settings classes; a test compares.

Every process reads `EVOLVE_*` from its environment when it starts, refuses a wrong value by name, and takes
an empty variable for an absent one. `evolve doctor` prints what a process started now would use, secrets
hidden. `evolve up` sets what its children need; it refuses
{" and ".join(f"`{name}`" for name in PRODUCTION_ONLY)}, which point single processes at production.

The command line and the published client read two more: `EVOLVE_DASHBOARD_URL`, the server's URL, and
`EVOLVE_API_KEY`. They win over `$EVOLVE_HOME/credentials.json`, and no server process sees them.
`DOCKER_HOST` names the Docker engine, as it does for Docker's own commands.

| variable | read by | default | meaning |
| --- | --- | --- | --- |
"""


def settings_page() -> str:
    """The whole page."""
    readers: dict[str, list[str]] = {}
    fields: dict[str, FieldInfo] = {}
    for process, settings in READERS.items():
        for name, field in settings.model_fields.items():
            readers.setdefault(name, []).append(process)
            fields.setdefault(name, field)
    return INTRODUCTION + "".join(_row(name, fields[name], readers[name]) for name in fields)


def _row(name: str, field: FieldInfo, readers: list[str]) -> str:
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `EVOLVE_{name.upper()}` | {', '.join(readers)} | {_default(field)} | {meaning} |\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return FACTORIES[field.default_factory.__name__]
    if field.default in (None, "", (), Path()):
        return "-"
    return f"`{field.default}`"


if __name__ == "__main__":
    sys.stdout.write(settings_page())
