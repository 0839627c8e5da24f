"""Quota: reserve → settle with the tenant's owner. Fallback: the same limits on this gateway's part of what is left."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from weir.quota.v1 import quota_pb2

from libs.clock import Clock
from libs.deadlines import Deadline, to_duration, to_seconds
from libs.errors import Reason, WeirError
from libs.mux import MuxClient, OnReply, Semantics
from libs.quota import (
    Bridge,
    Denied,
    LimitReport,
    PriceBook,
    SettledAlready,
    Share,
    ask_of,
    error_of,
)
from libs.registry import RegistrySnapshot, budget_specs, limit_specs, price_book
from services.gateway.clients.decision import start_decision
from services.gateway.clients.shards import LimiterStreams
from services.gateway.ports import Reservation

_RENEWALS = 4
"""Within the time of a lease: three may be lost."""
_DIGEST = 1000
_SECOND = 1_000_000_000


class QuotaClient:
    """Implements `QuotaPort`.

    :param lease_seconds: how long a lease outlives this process; it is prolonged four times within.
    """

    def __init__(
        self,
        streams: LimiterStreams,
        *,
        clock: Clock,
        decide_timeout: float,
        end_timeout: float,
        lease_seconds: float,
    ) -> None:
        self._streams = streams
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._end_timeout = end_timeout
        self._lease_seconds = lease_seconds
        self._bridge: Bridge[quota_pb2.Reserve] = Bridge()
        self._prices = PriceBook({})
        self._seen = RegistrySnapshot()
        self._gateways = 1

    async def run(self) -> None:
        """Keeps the streams open, and the leases of what runs, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._streams.run(self._on_stream))
            while True:
                await asyncio.sleep(self._lease_seconds / _RENEWALS)
                self._renew(lambda home: True)

    async def wait_connected(self, timeout: float) -> None:  # noqa: ASYNC109 - the error is ours, not TimeoutError
        """See `LimiterStreams`."""
        await self._streams.wait_connected(timeout)

    @property
    def pending(self) -> int:
        """Calls that were not answered yet."""
        return self._streams.pending

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Takes new limits and budgets for the fallback, and new prices; cheap when none of them changed, as while the
        levels of an overload do."""
        seen, self._seen = self._seen, snapshot
        gateways = max(1, sum(1 for service, _ in snapshot.endpoints if service == "gateway"))
        moved, self._gateways = gateways != self._gateways, gateways
        money = snapshot.budgets is not seen.budgets or snapshot.tenants is not seen.tenants
        if moved or money or snapshot.limits is not seen.limits:
            self._bridge.apply(limit_specs(snapshot), budget_specs(snapshot), gateways, self._now())
        if snapshot.prices is not seen.prices:
            self._prices = price_book(snapshot)

    def start_reserve(
        self,
        *,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        prompt_tokens: int = 0,
        max_output_tokens: int = 0,
        choices: int = 1,
        model_version: str = "",
        grows: bool = False,
        over_quota_allowed: bool = False,
        request_counted: bool,
        deadline: Deadline,
        traceparent: str,
    ) -> Future[Reservation]:
        """See `QuotaPort`."""
        reserve = quota_pb2.Reserve(
            tenant=tenant,
            model=model,
            request_id=request_id,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            choices=choices,
            model_version=model_version,
            grows=grows,
            over_quota_allowed=over_quota_allowed,
            request_counted=request_counted,
            lease=to_duration(self._lease_seconds),
            share_seen=self._bridge.seen(tenant),
        )
        home, asked, until = self._streams.home(tenant), self._now(), self._until(deadline)
        return start_decision(
            self._streams.carrier(home),
            quota_pb2.QuotaCall(reserve=reserve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=lambda reply: self._reserved(reserve, reply, asked, until),
            fallback=lambda: self._reserve_locally(reserve, until),
            wait=home.moving,  # to the tenant's next owner, which is a matter of milliseconds
            home=home,
        )

    def start_grow(
        self, *, tenant: str, request_id: str, tokens: int, deadline: Deadline, traceparent: str
    ) -> Future[None]:
        """See `QuotaPort`."""
        reserve = self._larger((tenant, request_id), tokens)
        home, asked, until = self._streams.home(tenant), self._now(), self._until(deadline)

        def read(reply: quota_pb2.QuotaReply) -> None:
            if self._bridge.runs((tenant, request_id)):
                self._reserved(reserve, reply, asked, until)

        return start_decision(
            self._streams.carrier(home),
            quota_pb2.QuotaCall(reserve=reserve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=read,
            fallback=lambda: self.grow_here(tenant=tenant, request_id=request_id, tokens=tokens, deadline=deadline),
            wait=home.moving,
            home=home,
        )

    def grow_here(self, *, tenant: str, request_id: str, tokens: int, deadline: Deadline) -> None:
        """See `QuotaPort`."""
        if self._bridge.runs((tenant, request_id)):
            self._reserve_locally(self._larger((tenant, request_id), tokens), self._until(deadline))

    def _larger(self, key: tuple[str, str], tokens: int) -> quota_pb2.Reserve:
        """What was asked last for a request that runs, with more tokens."""
        reserve, lost = quota_pb2.Reserve(), self._bridge.lost(key)
        if lost is not None:
            reserve.CopyFrom(lost[0])
        reserve.tokens, reserve.grows, reserve.request_counted = tokens, True, True
        reserve.share_seen = self._bridge.seen(key[0])
        return reserve

    def _until(self, deadline: Deadline) -> int:
        """What runs for longer is looked after by nobody, and its lease ends."""
        return self._now() + int((deadline.remaining(self._clock) + self._end_timeout) * _SECOND)

    def settle(
        self,
        *,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        prompt_tokens: int = 0,
        cached_prompt_tokens: int = 0,
        model_version: str = "",
    ) -> None:
        """See `QuotaPort`."""
        spend = self._prices.of(model_version, model).cost(tokens, prompt_tokens, cached_prompt_tokens)
        over_quota = self._bridge.settle(tenant, model, request_id, tokens, self._now(), spend=spend)
        settle = quota_pb2.Settle(
            tenant=tenant,
            model=model,
            request_id=request_id,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            cached_prompt_tokens=cached_prompt_tokens,
            model_version=model_version,
            over_quota=over_quota,
        )
        took = partial(self._took, (tenant, request_id))
        self._send(self._streams.to(tenant), quota_pb2.QuotaCall(settle=settle), took, lazy=True)

    def _reserved(self, reserve: quota_pb2.Reserve, reply: quota_pb2.QuotaReply, asked: int, until: int) -> Reservation:
        tenant = reserve.tenant
        if reply.share_number:
            ends = asked + int(to_seconds(reply.share_lasts) * _SECOND)
            self._bridge.told(tenant, reply.share_number, map(_share, reply.shares), ends, self._now())
        if reply.HasField("rejected"):
            raise WeirError.from_rejection(reply.rejected)
        reserved = reply.reserved
        ask = ask_of(reserve, self._prices)
        self._bridge.served(
            (tenant, reserve.request_id),
            reserve,
            over_quota=reserved.over_quota,
            until=until,
            tokens=ask.tokens,
            spend=ask.spend,
        )
        return Reservation(
            _limit(reserved.requests),
            _limit(reserved.tokens),
            over_quota=reserved.over_quota,
            spend=_limit(reserved.spend),
        )

    def _reserve_locally(self, reserve: quota_pb2.Reserve, until: int) -> Reservation:
        """Out of what the owner last said to be this gateway's share: see `Bridge`."""
        now = self._now()
        outcome = self._bridge.reserve(
            ask_of(reserve, self._prices), reserve, lease_ns=until - now, until=until, now=now
        )
        if isinstance(outcome, Denied):
            raise error_of(outcome, outcome.retry_after_ns)
        if isinstance(outcome, SettledAlready):
            return Reservation(None, None, local=True)
        if self._streams.home(reserve.tenant).connected:
            # It was too slow, or is not the owner; what cannot be told now is told on the next stream.
            self._claim((reserve.tenant, reserve.request_id))
        return Reservation(
            _report(outcome.requests),
            _report(outcome.tokens),
            local=True,
            over_quota=outcome.over_quota,
            spend=_report(outcome.spend),
        )

    def _on_stream(self, shard: int) -> None:
        """Its owner may be another one, who was not told the last of what was granted."""
        opened = self._streams.muxes[shard]
        self._renew(lambda home: home is opened)
        for key in tuple(self._bridge.grown(self._now())):
            if self._streams.home(key[0]) is opened:
                self._claim(key)

    def _renew(self, wanted: Callable[[MuxClient], bool]) -> None:
        """Prolongs the leases of what runs, of the shards whose streams are wanted."""
        running: dict[MuxClient, dict[str, list[str]]] = {}
        for tenant, request_id in self._bridge.running(self._now()):
            home = self._streams.home(tenant)
            if home.connected and wanted(home):
                tenants = running.setdefault(self._streams.carrier(home), {})
                tenants.setdefault(tenant, []).append(request_id)
        for mux, tenants in running.items():
            for renew in _digests(tenants):
                renew.lease.CopyFrom(to_duration(self._lease_seconds))
                self._send(mux, quota_pb2.QuotaCall(renew=renew), self._renewed)

    def _renewed(self, reply: quota_pb2.QuotaReply | None, error: WeirError | None) -> None:
        if reply is not None and error is None:
            for held in reply.renewed.unknown:
                for request_id in held.request_ids:
                    self._claim((held.tenant, request_id))

    def _claim(self, key: tuple[str, str]) -> None:
        """Tells the owner of a request that is served and has no lease there."""
        lost = self._bridge.lost(key)
        if lost is not None:
            reserve = quota_pb2.Reserve()
            reserve.CopyFrom(lost[0])
            reserve.granted, reserve.over_quota_allowed = True, lost[1]
            self._send(self._streams.to(key[0]), quota_pb2.QuotaCall(reserve=reserve), partial(self._took, key))

    def _took(self, key: tuple[str, str], reply: object, error: WeirError | None) -> None:
        """Settling is at-least-once and harmless to lose: the lease ends by itself."""
        if error is None or error.reason is Reason.CONFLICT:
            self._bridge.taken(key)

    def _send(self, mux: MuxClient, call: quota_pb2.QuotaCall, on_reply: OnReply, *, lazy: bool = False) -> None:
        # What cannot even be queued is covered by the lease's own end, and by the next digest.
        with contextlib.suppress(WeirError):
            mux.call_nowait(
                call,
                deadline=Deadline.after(self._end_timeout, self._clock),
                semantics=Semantics.RETRY,
                on_reply=on_reply,
                lazy=lazy,
            )

    def _now(self) -> int:
        return int(self._clock.monotonic() * _SECOND)


def _digests(tenants: Mapping[str, Sequence[str]]) -> Iterator[quota_pb2.Renew]:
    """Messages of at most `_DIGEST` ids."""
    renew, room = quota_pb2.Renew(), _DIGEST
    for tenant, request_ids in tenants.items():
        start = 0
        while start < len(request_ids):
            some = request_ids[start : start + room]
            renew.held.add(tenant=tenant, request_ids=some)
            start, room = start + len(some), room - len(some)
            if not room:
                yield renew
                renew, room = quota_pb2.Renew(), _DIGEST
    if renew.held:
        yield renew


def _share(share: quota_pb2.Share) -> Share:
    return Share(
        share.model,
        share.tokens if share.HasField("tokens") else None,
        share.requests if share.HasField("requests") else None,
        share.spend if share.HasField("spend") else None,
    )


def _limit(status: quota_pb2.LimitStatus) -> tuple[int, int, float] | None:
    return (status.limit, status.remaining, to_seconds(status.reset)) if status.limit else None


def _report(report: LimitReport) -> tuple[int, int, float] | None:
    return (report.limit, report.remaining, report.reset_ns / _SECOND) if report.limit else None
