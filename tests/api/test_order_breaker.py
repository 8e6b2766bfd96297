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


async def test_two_orders_reach_one_breaker_in_their_order(db: Database, temporal: str) -> None:
    async with db.transaction() as connection:
        for order in ("open", "close"):
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
    assert [signal.signal_name for signal in signals] == [names.SIGNAL_ORDER_BREAKER] * 2
    assert [signal.input.payloads[0].data for signal in signals] == [b'"open"', b'"close"']
