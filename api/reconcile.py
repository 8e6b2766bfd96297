"""Delivers intents to Temporal, at least once: at once after a request, and again until it works.

A start that finds its workflow running or ended, and a signal to one that has ended, are delivered:
the story that the intent asked for has been told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from store.database import Database
from store.intents import (
    IntentKind,
    count_undelivered,
    is_superseded,
    lock_next_intent,
    mark_delivered,
    mark_failed,
)
from store.outages import is_database_away
from workflows import names

_log = logging.getLogger(__name__)

# How long an undelivered intent waits for its next try, and how often intents of a process that died
# between its commit and its delivery are looked for.
RETRY_SEC = 2.0
IDLE_SEC = 10.0
RPC_TIMEOUT_SEC = 10.0
_AWAY = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


class Outbox:
    """One loop a process; several processes share the table, none delivers what another holds."""

    def __init__(self, db: Database, temporal_address: str, namespace: str) -> None:
        self._db = db
        self._address = temporal_address
        self._namespace = namespace
        self._client: Client | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to deliver, in the background."""
        self._task = asyncio.create_task(self._run(), name="outbox")

    async def close(self) -> None:
        """Stop; what is undelivered stays in the table."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def backlog(self) -> int:
        """How many intents wait."""
        return await count_undelivered(self._db)

    def wake(self) -> None:
        """A request has just committed an intent."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                is_clean = await self._deliver_all()
            except Exception as error:
                if not is_database_away(error):
                    _log.exception("outbox failed", exc_info=error)
                is_clean = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), IDLE_SEC if is_clean else RETRY_SEC)

    async def _deliver_all(self) -> bool:
        """One pass over what is undelivered; False when something stays."""
        after_id, is_clean = 0, True
        while True:
            async with self._db.transaction() as connection:
                intent = await lock_next_intent(connection, after_id)
                if intent is None:
                    return is_clean
                after_id = intent["id"]
                try:
                    await asyncio.wait_for(self._deliver(connection, intent), RPC_TIMEOUT_SEC)
                except Exception as error:  # whatever is wrong with one must not hold up those behind it
                    await _note_failure(connection, intent, error)
                    if _is_temporal_away(error):
                        return False
                    is_clean = False
                else:
                    await mark_delivered(connection, intent["id"])

    async def _deliver(self, connection: Any, intent: Any) -> None:
        client = await self._connect()
        subject_id: str = intent["subject_id"]
        match IntentKind(intent["kind"]):
            case IntentKind.START_JOB:
                await _start(client, names.JOB_WORKFLOW, names.job_workflow_id(subject_id), _job(subject_id))
            case IntentKind.CANCEL_JOB:
                await _signal_job(client, connection, subject_id, names.SIGNAL_CANCEL, [])
            case IntentKind.PAUSE_JOB:
                word = [intent["id"], intent["payload"]["is_paused"]]
                await _signal_job(client, connection, subject_id, names.SIGNAL_SET_PAUSED, word)
            case IntentKind.STOP_TRIALS:
                indexes = [intent["payload"]["indexes"]]
                await _signal_job(client, connection, subject_id, names.SIGNAL_STOP_TRIALS, indexes)
            case IntentKind.START_IMPORT:
                workflow_id = names.dataset_import_workflow_id(subject_id)
                await _start(client, names.DATASET_IMPORT_WORKFLOW, workflow_id, {"import_id": subject_id})
            case IntentKind.ORDER_BREAKER:
                # Delivered by several processes in any order; what was ordered last holds.
                if not await is_superseded(connection, intent):
                    await _order_breaker(client, subject_id, intent["payload"]["order"])
            case IntentKind.BUILD_ARCHIVE:
                await _build_archive(client, intent["payload"]["kind"], subject_id)

    async def _connect(self) -> Client:
        if self._client is None:
            self._client = await Client.connect(
                self._address, namespace=self._namespace, data_converter=names.DATA_CONVERTER
            )
        return self._client


async def _note_failure(connection: Any, intent: Any, error: Exception) -> None:
    _log.warning("intent %s (%s) is not delivered: %s", intent["id"], intent["kind"], error)
    await mark_failed(connection, intent["id"], str(error) or type(error).__name__)


def _is_temporal_away(error: Exception) -> bool:
    """Then no other intent can be delivered either. A failed connect is a RuntimeError of the SDK's core."""
    if isinstance(error, RPCError):
        return error.status in _AWAY
    return isinstance(error, RuntimeError | TimeoutError)


def _job(job_id: str) -> dict[str, Any]:
    return {"job_id": job_id}


async def _start(client: Client, workflow: str, workflow_id: str, argument: dict[str, Any]) -> None:
    """Start once ever: a repeat finds the first, whether it runs or has ended."""
    with contextlib.suppress(WorkflowAlreadyStartedError):
        await client.start_workflow(
            workflow,
            argument,
            id=workflow_id,
            task_queue=names.QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            static_summary=workflow_id,
        )


async def _signal_job(
    client: Client, connection: Any, job_id: str, signal: str, arguments: list[Any]
) -> None:
    """Signal the job's workflow, starting it when its own start was not delivered yet."""
    workflow_id = await connection.fetchval("SELECT workflow_id FROM jobs WHERE id = $1", job_id)
    if workflow_id is None:
        return
    if workflow_id != names.job_workflow_id(job_id):
        await _signal_running(client, workflow_id, signal, arguments)
        return
    with contextlib.suppress(WorkflowAlreadyStartedError):
        await client.start_workflow(
            names.JOB_WORKFLOW,
            _job(job_id),
            id=workflow_id,
            task_queue=names.QUEUE,
            # A workflow that an operator terminated starts again, and ends what it left.
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=signal,
            start_signal_args=arguments,
            static_summary=workflow_id,
        )


async def _signal_running(client: Client, workflow_id: str, signal: str, arguments: list[Any]) -> None:
    """Signal a workflow that a Temporal client started; one that is gone has ended."""
    try:
        await client.get_workflow_handle(workflow_id).signal(signal, args=arguments)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


async def _order_breaker(client: Client, provider: str, order: str) -> None:
    """Signal a provider's breaker, which runs only while there is something to hear."""
    workflow_id = names.provider_workflow_id(provider)
    await client.start_workflow(
        names.PROVIDER_WORKFLOW,
        {"provider": provider},
        id=workflow_id,
        task_queue=names.QUEUE,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=names.SIGNAL_ORDER_BREAKER,
        start_signal_args=[order],
        static_summary=workflow_id,
    )


async def _build_archive(client: Client, kind: str, subject_id: str) -> None:
    """An archive may be built again after an earlier build ended; one that is under way is enough."""
    workflow_id = names.archive_workflow_id(kind, subject_id)
    with contextlib.suppress(WorkflowAlreadyStartedError):
        await client.start_workflow(
            names.ARCHIVE_WORKFLOW,
            {"kind": kind, "subject_id": subject_id},
            id=workflow_id,
            task_queue=names.QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=workflow_id,
        )
