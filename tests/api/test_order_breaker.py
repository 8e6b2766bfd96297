"""An operator's word on a provider is delivered to its breaker, started where none runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from temporalio.client import Client

from api.reconcile import Outbox
from store.database import Database
from store.intents import IntentKind, add_intent
from tests.api.conditions import until
from tests.temporal import running_temporal
from workflows import names


@pytest.fixture
def temporal() -> Iterator[str]:
    with running_temporal() as address:
        yield address


async def test_of_two_orders_the_last_reaches_the_breaker(db: Database, temporal: str) -> None:
    async with db.transaction() as connection:
        for order in ("close", "open"):
            await add_intent(connection, IntentKind.ORDER_BREAKER, "docker", {"order": order})
    outbox = Outbox(db, temporal, "evolve")
    outbox.start()
    await until(db, "SELECT NOT EXISTS (SELECT FROM intents WHERE delivered_at IS NULL)")
    await outbox.close()
    client = await Client.connect(temporal, namespace="evolve", data_converter=names.DATA_CONVERTER)
    history = await client.get_workflow_handle(names.provider_workflow_id("docker")).fetch_history()
    signals = [
        event.workflow_execution_signaled_event_attributes
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert [signal.signal_name for signal in signals] == [names.SIGNAL_ORDER_BREAKER]
    assert signals[0].input.payloads[0].data == b'"open"'


async def test_an_intent_that_cannot_be_delivered_holds_up_none_behind_it(
    db: Database, temporal: str
) -> None:
    """As one of a newer release's kind, while an older process still delivers."""
    async with db.transaction() as connection:
        await connection.execute(
            "INSERT INTO intents (kind, subject_id, payload, created_at, n_tries)"
            " VALUES ('unheard.of', 'x', '{}', now(), 0)"
        )
        await add_intent(connection, IntentKind.ORDER_BREAKER, "local", {"order": "open"})
    outbox = Outbox(db, temporal, "evolve")
    outbox.start()
    await until(db, "SELECT EXISTS (SELECT FROM intents WHERE delivered_at IS NOT NULL)")
    await until(db, "SELECT last_error LIKE '%unheard.of%' FROM intents WHERE kind = 'unheard.of'")
    await outbox.close()
