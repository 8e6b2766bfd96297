"""The API process as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api.answers import install_error_handlers
from api.feeds import Feed
from api.platform import Platform
from api.reconcile import Outbox
from api.routers import accounts, agents, datasets, derived, jobs, later, meta, traces, trials, uploads
from api.settings import ApiSettings
from api.wire import Wire
from store.blobs import Blobs
from store.database import Database


def create_platform(settings: ApiSettings) -> Platform:
    """The parts of the process; nothing is connected before it is used."""
    url = settings.database_url.get_secret_value()
    db = Database(url)
    return Platform(
        settings=settings,
        db=db,
        blobs=Blobs(settings.blob_url),
        outbox=Outbox(db, settings.temporal_address, settings.temporal_namespace),
        feed=Feed(url),
    )


def create_app(settings: ApiSettings) -> FastAPI:
    """Every route of the contract. Start it under a lifespan: the outbox and the feed run in it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        platform: Platform = app.state.platform
        platform.feed.start()
        platform.outbox.start()
        yield
        await platform.outbox.close()
        await platform.feed.close()
        await platform.db.close()

    app = FastAPI(
        title="Evolve",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.platform = create_platform(settings)
    # Literal paths before those with a name: `/api/jobs/compare` is not a job.
    for router in (
        meta.router,
        later.router,
        accounts.router,
        agents.router,
        uploads.router,
        datasets.router,
    ):
        app.include_router(router)
    for router in (jobs.router, derived.router, trials.router, traces.router):
        app.include_router(router)
    install_error_handlers(app)
    app.add_middleware(Wire)
    return app
