"""The composition root: it alone puts the rooms together, and imports each only when it is asked for.

`evolve serve api|gateway|worker` runs one process until SIGTERM; `evolve up` runs the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.errors import CliError

if TYPE_CHECKING:
    from activities.settings import WorkerSettings
    from api.settings import ApiSettings
    from store.settings import StoreSettings

app = typer.Typer(no_args_is_help=True)

AnySettings = TypeVar("AnySettings", bound="StoreSettings")


@app.command("api")
def serve_api() -> None:
    """The HTTP API (EVOLVE_API_HOST, EVOLVE_API_PORT)."""
    from api.settings import ApiSettings

    settings = _read(ApiSettings)
    _run("api", settings, _serve_api(settings))


@app.command("gateway")
def serve_gateway() -> None:
    """The metered door to the models (EVOLVE_GATEWAY_PORT, EVOLVE_GATEWAY_SOCKET)."""
    from gateway.main import run_gateway
    from gateway.settings import GatewaySettings

    settings = _read(GatewaySettings)
    _run("gateway", settings, run_gateway(settings))


@app.command("worker")
def serve_worker() -> None:
    """Workflows, shared queues and this host's boxes; /healthz on EVOLVE_HEALTH_SOCKET."""
    from activities.settings import WorkerSettings

    settings = _read(WorkerSettings)
    _run("worker", settings, _serve_worker(settings))


def migrate() -> None:
    """Bring the database to this release's schema; a second one at the same time waits.

    EVOLVE_DATABASE_URL names the database, else it is the embedded one of EVOLVE_HOME.
    """
    from cli import store_side

    asyncio.run(store_side.migrate())


@app.command("prepare", hidden=True)
def prepare(
    dashboard_url: Annotated[str, typer.Option(help="Of the API, for the credentials file.")],
) -> None:
    """What `evolve up` does before it starts the rest: the server secret, the schema, credentials.json."""
    from cli import store_side
    from cli.stack.home import Home
    from store.server_secret import make_secret_file

    home = Home.from_environment()
    make_secret_file(home.path)

    async def run() -> None:
        await store_side.migrate()
        await store_side.ensure_credentials(home, dashboard_url)

    asyncio.run(run())


def _run(process: str, settings: StoreSettings, serving: Coroutine[Any, Any, None]) -> None:
    from cli.logging_setup import configure_logging
    from store import migrations

    configure_logging(settings.log_level, process)

    async def run() -> None:
        await migrations.check(settings.database_url.get_secret_value())
        await serving

    asyncio.run(run())


def _read(settings: type[AnySettings]) -> AnySettings:
    """The process's settings. Raises `CliError` that names each wrong variable, and no value."""
    from pydantic import ValidationError

    try:
        return settings.model_validate({})  # its sources are the environment
    except ValidationError as error:
        wrong = [
            f"EVOLVE_{'_'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise CliError("; ".join(wrong), code="invalid_settings") from None


async def _serve_api(settings: ApiSettings) -> None:
    from api.server import create_server

    await create_server(settings).serve()


async def _serve_worker(settings: WorkerSettings) -> None:
    from activities.worker import run_worker
    from cli.worker_health import worker_health
    from cli.workflow_side import workflow_side

    async with worker_health(settings.health_socket) as set_ready:
        await run_worker(settings, workflow_side(), set_ready)
