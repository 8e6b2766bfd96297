"""One admitted call: from its reservation to its end, which is booked exactly once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

import structlog

from domain.money import nanos_of_usd
from domain.prices import ModelPrice, cost_nanos
from domain.usage import CallUsage
from gateway.admission import Admissible, Target
from gateway.ledger import Ledger
from gateway.meter import Meter
from gateway.operator_faults import UpstreamFailure
from gateway.protocols import Dialect
from store.database import now
from store.keys import GrantedModel, KeyGrant
from store.spend import CallEnd, EndStatus, NewCall

log = structlog.get_logger()

# Beyond this a reseller's own figure and ours are told to the operator.
_DIFFERENCE = 0.02


def new_call(
    ledger: Ledger, grant: KeyGrant, dialect: Dialect, target: Target, admitted: Admissible
) -> NewCall:
    """The row that asks to be admitted."""
    return NewCall(
        call_id=uuid4().hex,
        key_id=grant.key_id,
        gateway_id=ledger.gateway_id,
        protocol=dialect,
        model=target.model.name,
        provider=target.model.provider,
        upstream_model=target.model.upstream_model,
        hold_nanos=admitted.hold_nanos,
        price_version=target.price.version,
        started_at=now(),
        adjustments=admitted.adjustments,
    )


def unserved_call(ledger: Ledger, grant: KeyGrant, dialect: Dialect, model: GrantedModel) -> NewCall:
    """The row of a call that nobody can answer, whatever it asks."""
    return NewCall(
        call_id=uuid4().hex,
        key_id=grant.key_id,
        gateway_id=ledger.gateway_id,
        protocol=dialect,
        model=model.name,
        provider=model.provider,
        upstream_model=model.upstream_model,
        hold_nanos=0,
        price_version="",
        started_at=now(),
    )


@dataclass(frozen=True)
class UpstreamError:
    """What the provider of a translated call answered instead of an answer, or that it was never reached."""

    status: int
    message: str
    headers: Mapping[str, str]
    failure: UpstreamFailure
    end: EndStatus = "refused_upstream"


@dataclass
class OpenCall:
    """A call whose hold is reserved. Its members are what is known of it so far.

    `price` is the model's, with all its services; `service` is the one that was asked for.
    """

    ledger: Ledger
    row: NewCall
    grant: KeyGrant
    price: ModelPrice
    service: str | None
    meter: Meter
    http_status: int | None = None
    error_kind: str | None = None
    first_byte_ms: int | None = None
    is_client_gone: bool = False
    is_upstream_cut: bool = False
    is_translated: bool = False
    may_be_billed: bool = True
    """False while a translated call has not gone to the provider, and when it came back with an error."""
    upstream_error: UpstreamError | None = None
    _began: float = field(default_factory=time.monotonic)
    _is_ended: bool = False

    @property
    def is_ended(self) -> bool:
        """Whether its end is booked, or about to be: nothing may go upstream for it any more."""
        return self._is_ended

    def note_first_byte(self) -> None:
        if self.first_byte_ms is None:
            self.first_byte_ms = round((time.monotonic() - self._began) * 1000)

    def see(self, chunk: bytes) -> None:
        """Some of the answer. A translated call is metered where it comes from the provider."""
        if not self.is_translated:
            self.note_first_byte()
            self.meter.feed(chunk)

    async def end_unused(self, status: EndStatus, error_kind: str) -> None:
        """The provider did nothing, which costs nothing."""
        self.error_kind = error_kind
        await self._settle(self._end(status))

    async def end_metered(self) -> None:
        """By what the meter saw; without a usage that is final the whole hold is booked."""
        await self._settle(self._metered_end())

    def end_cancelled(self, error_kind: str) -> None:
        """As `end_metered`, of a handler that is being cancelled, or broke, and cannot wait."""
        if self._is_ended:
            return
        self.is_upstream_cut = True
        self.error_kind = self.error_kind or error_kind
        end = self._metered_end()
        self._note_end(end)
        self.ledger.settle_soon(self.row, end)

    def _metered_end(self) -> CallEnd:
        if not self.may_be_billed:
            return self._unbilled_end()
        usage = self.meter.usage(is_cut=self.is_upstream_cut)
        self.error_kind = self.meter.error_kind or self.error_kind
        if usage is None:
            self.error_kind = self.error_kind or "usage_missing"
            return self._end("held")
        return self._end("measured", usage, self._cost(usage))

    def _unbilled_end(self) -> CallEnd:
        """Of a translated call that the provider never began to answer, whatever broke beside it."""
        self.is_upstream_cut = False
        error = self.upstream_error
        if error is None:
            return self._end("failed")
        self.error_kind = error.failure.kind
        return self._end(error.end)

    def _cost(self, usage: CallUsage) -> int:
        """By the service that was given. A reseller's own figure is what is billed; it is never nothing."""
        cost = cost_nanos(self._given_price(), usage)
        told = self.meter.reported_usd
        reported = nanos_of_usd(told) if told is not None and self.row.provider == "openrouter" else 0
        if reported == 0:
            return cost
        if abs(reported - cost) > _DIFFERENCE * max(reported, cost):
            log.warning("price differs", model=self.row.upstream_model, ours=cost, reported=reported)
        return reported

    def _given_price(self) -> ModelPrice:
        """A provider may give another service than was asked for, and bills what it gave."""
        asked = self.price.of_service(self.service) or self.price
        if self.meter.service is None:
            return asked
        given = self.price.of_service(self.meter.service)
        if given is None:
            log.warning("no price of this service", model=self.row.upstream_model, service=self.meter.service)
        return given or asked

    def _warn_of_another_model(self) -> None:
        """The row says what was asked for, and so does the price."""
        named = self.meter.model
        if named is not None and not _is_same_model(self.row.upstream_model, named):
            log.warning("another model answered", asked=self.row.upstream_model, named=named)

    def _end(self, status: EndStatus, usage: CallUsage | None = None, cost: int | None = None) -> CallEnd:
        return CallEnd(
            status=status,
            ended_at=now(),
            usage=usage,
            cost_nanos=cost,
            http_status=self.http_status,
            error_kind=self.error_kind,
            first_byte_ms=self.first_byte_ms,
            is_client_gone=self.is_client_gone,
            is_upstream_cut=self.is_upstream_cut,
        )

    async def _settle(self, end: CallEnd) -> None:
        if not self._is_ended:
            self._note_end(end)
            await self.ledger.settle(self.row, end)

    def _note_end(self, end: CallEnd) -> None:
        self._is_ended = True
        self._warn_of_another_model()
        if end.cost_nanos is not None and end.cost_nanos > self.row.hold_nanos:
            log.error("call cost more than it held", call=self.row.call_id, model=self.row.upstream_model)
        log.info(
            "call",
            call=self.row.call_id,
            trial=self.grant.trial_id,
            attempt_number=self.grant.attempt_number,
            role=self.grant.role,
            protocol=self.row.protocol,
            model=self.row.upstream_model,
            provider=self.row.provider,
            status=end.status,
            http_status=end.http_status,
            cost_nanos=end.cost_nanos,
            hold_nanos=self.row.hold_nanos,
            error_kind=end.error_kind,
            first_byte_ms=end.first_byte_ms,
            is_client_gone=end.is_client_gone,
            is_upstream_cut=end.is_upstream_cut,
        )


def _is_same_model(asked: str, named: str) -> bool:
    """Whether an answer's model may be the one that was asked for: providers add dates, and drop owners."""
    ours, theirs = (name.rpartition("/")[2].lower() for name in (asked, named))
    return ours.startswith(theirs) or theirs.startswith(ours)
