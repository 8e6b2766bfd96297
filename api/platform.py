"""What every route works with, and who is asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.answers import database_away
from api.feeds import Feed
from api.reconcile import Outbox
from api.settings import ApiSettings
from domain.errors import ApiError
from store.accounts import Caller, authenticate
from store.blobs import Blobs
from store.database import Database
from store.outages import is_database_away

READ_METHODS = frozenset({"GET", "HEAD"})
# Writes nothing, whatever its method.
READ_PATHS = frozenset({"/api/datasets/preflight"})


@dataclass(frozen=True)
class Platform:
    """The parts of this process."""

    settings: ApiSettings
    db: Database
    blobs: Blobs
    outbox: Outbox
    feed: Feed


def current_platform(request: Request) -> Platform:
    """The platform of the application that serves the request."""
    platform = request.app.state.platform
    assert isinstance(platform, Platform)
    return platform


PlatformDep = Annotated[Platform, Depends(current_platform)]


async def current_caller(request: Request, platform: PlatformDep) -> Caller:
    """Who the bearer key belongs to.

    Raises `missing_authorization`, `invalid_api_key`, `credential_service_unavailable`, and
    `read_only_key` for a read-only key on a route that writes.
    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise ApiError("missing_authorization", "Send `Authorization: Bearer <api key>`.")
    try:
        caller = await authenticate(platform.db, secret.strip())
    except Exception as error:
        if is_database_away(error):
            raise database_away() from error
        raise
    if caller is None:
        raise ApiError("invalid_api_key", "The API key is unknown or revoked.")
    if caller.is_read_only and request.method not in READ_METHODS and request.url.path not in READ_PATHS:
        raise ApiError("read_only_key", "This key may only read.")
    return caller


CallerDep = Annotated[Caller, Depends(current_caller)]
