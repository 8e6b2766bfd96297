"""A trial that is gone between the look at it and the lock of its job is not found: no job was named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from domain.errors import ApiError
from domain.regrading import TrialRegradeRequest
from store import derived, regrades
from store.accounts import Caller, caller_of_owner
from store.database import Database
from tests.factories import make_owner

Verb = Callable[[Database, Caller], Awaitable[Any]]


async def retry(db: Database, caller: Caller) -> None:
    await derived.retry_trial(db, caller, "gone", None)


async def regrade(db: Database, caller: Caller) -> None:
    await regrades.regrade_trial(db, caller, "gone", TrialRegradeRequest())


@pytest.mark.parametrize("verb", [retry, regrade])
async def test_its_trial_is_not_found(db: Database, verb: Verb, monkeypatch: pytest.MonkeyPatch) -> None:
    async def seen_before(*_: object) -> dict[str, str]:
        return {"job_id": "deleted-since"}

    await make_owner(db)
    for module in (derived, regrades):
        monkeypatch.setattr(module, "find_trial", seen_before)
    with pytest.raises(ApiError) as refusal:
        await verb(db, await caller_of_owner(db, None))
    assert refusal.value.code == "trial_not_found"
