"""Quota: reserve → settle with the tenant's owner, or out of an allowance that the owner has told before.

Far from a tenant's limits a request is reserved here, out of the allowance, and its owner hears of it a little later,
with others. Near them, and for whatever the allowance does not cover, the owner is asked. Fallback, while it cannot be:
the same limits on this gateway's part of what is left.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from weir.quota.v1 import quota_pb2

from libs.clock import Clock
from libs.deadlines import Deadline, to_duration, to_seconds
from libs.errors import Reason, WeirError
from libs.mux import MuxClient, OnReply, Semantics
from libs.quota import (
    Bridge,
    Denied,
    PriceBook,
    SettledAlready,
    ask_of,
    error_of,
)
from libs.registry import RegistrySnapshot, budget_specs, limit_specs, price_book
from services.gateway.clients.decision import start_decision
from services.gateway.clients.quota_wire import digests, less, limited, report_of, share_of, state_of
from services.gateway.clients.shards import LimiterStreams
from services.gateway.ports import Reservation

_RENEWALS = 4
"""Within the time of a lease: three may be lost."""
_SECOND = 1_000_000_000
_MOST_REPORTS = 50_000


class QuotaClient:
    """Implements `QuotaPort`.

    :param lease_seconds: how long a lease outlives this process; it is prolonged four times within.
    :param allowances: False asks the owner of each request.
    """

    def __init__(
        self,
        streams: LimiterStreams,
        *,
        clock: Clock,
        decide_timeout: float,
        end_timeout: float,
        lease_seconds: float,
        allowances: bool = True,
    ) -> None:
        self._streams = streams
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._end_timeout = end_timeout
        self._lease_seconds = lease_seconds
        self._allowances = allowances
        self._bridge: Bridge[quota_pb2.Reserve] = Bridge()
        self._reports: dict[tuple[str, str, str], Reservation] = {}
        """By tenant, model and version, what the owner said last, less what was given out here since."""
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
            self._reports.clear()
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
        )
        return self._decide(
            reserve,
            self._reserved,
            lambda until: self._reserve_locally(reserve, until),
            deadline=deadline,
            traceparent=traceparent,
        )

    def start_grow(
        self, *, tenant: str, request_id: str, tokens: int, deadline: Deadline, traceparent: str
    ) -> Future[None]:
        """See `QuotaPort`."""
        reserve = self._larger((tenant, request_id), tokens)

        def grown(reserve: quota_pb2.Reserve, reply: quota_pb2.QuotaReply, until: int) -> None:
            if self._bridge.runs((tenant, request_id)):
                self._reserved(reserve, reply, until)

        return self._decide(
            reserve,
            grown,
            lambda until: self.grow_here(tenant=tenant, request_id=request_id, tokens=tokens, deadline=deadline),
            deadline=deadline,
            traceparent=traceparent,
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
        return reserve

    def _decide(
        self,
        reserve: quota_pb2.Reserve,
        read: Callable[[quota_pb2.Reserve, quota_pb2.QuotaReply, int], Any],
        fallback: Callable[[int], Any],
        *,
        deadline: Deadline,
        traceparent: str,
    ) -> Future[Any]:
        """Out of the allowance, or as the owner says, or as the fallback does."""
        home, asked, until = self._streams.home(reserve.tenant), self._now(), self._until(deadline)
        if self._allowances and home.connected and (allowed := self._allow(reserve, until)) is not None:
            future: Future[Any] = asyncio.get_running_loop().create_future()
            future.set_result(allowed)
            return future
        self._bridge.asked(reserve.tenant)
        self._want_share(reserve)

        def hear(reply: quota_pb2.QuotaReply | None) -> None:
            self._bridge.answered(reserve.tenant)
            self._hear_shares(reserve, reply, asked)

        return start_decision(
            self._streams.carrier(home),
            quota_pb2.QuotaCall(reserve=reserve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=lambda reply: read(reserve, reply, until),
            fallback=lambda: fallback(until),
            wait=home.moving,  # to the tenant's next owner, which is a matter of milliseconds
            home=home,
            hear=hear,
        )

    def _allow(self, reserve: quota_pb2.Reserve, until: int) -> Reservation | None:
        """Reserves out of the allowance; None where the owner must be asked."""
        report = self._reports.get(limited(reserve))
        if report is None:  # it has never said what limits this
            return None
        try:
            ask = ask_of(reserve, self._prices)
        except WeirError:  # for the owner to say
            return None
        key, now = (reserve.tenant, reserve.request_id), self._now()
        runs = self._bridge.runs(key)
        if self._bridge.allow(ask, reserve, lease_ns=until - now, until=until, now=now) is None:
            return None
        self._claim(key, lazy=True)
        if not runs:
            report = self._reports[limited(reserve)] = Reservation(
                less(report.requests, int(ask.count_request)),
                less(report.tokens, ask.tokens),
                spend=less(report.spend, ask.spend),
            )
        return report

    def _want_share(self, reserve: quota_pb2.Reserve) -> None:
        now = self._now()
        reserve.share_seen = self._bridge.seen(*limited(reserve), now)
        reserve.share_wanted = self._allowances and self._bridge.wants(*limited(reserve), now)

    def _hear_shares(self, reserve: quota_pb2.Reserve, reply: quota_pb2.QuotaReply | None, asked: int) -> None:
        if reply is not None and reply.share_number:
            ends, shares = asked + int(to_seconds(reply.share_lasts) * _SECOND), map(share_of, reply.shares)
            self._bridge.told(reserve.tenant, reply.share_number, shares, ends, self._now(), allowance=reply.allowance)
        elif reserve.share_wanted:
            self._bridge.not_told(reserve.tenant)

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
        settled = partial(self._settled, (tenant, request_id))
        self._send(self._streams.to(tenant), quota_pb2.QuotaCall(settle=settle), settled, lazy=True)

    def _reserved(self, reserve: quota_pb2.Reserve, reply: quota_pb2.QuotaReply, until: int) -> Reservation:
        if reply.HasField("rejected"):
            raise WeirError.from_rejection(reply.rejected)
        reserved = reply.reserved
        ask = ask_of(reserve, self._prices)
        self._bridge.served(
            (reserve.tenant, reserve.request_id),
            reserve,
            over_quota=reserved.over_quota,
            until=until,
            tokens=ask.tokens,
            spend=ask.spend,
        )
        self._report(reserve, reserved)
        return replace(self._reports[limited(reserve)], over_quota=reserved.over_quota)

    def _report(self, reserve: quota_pb2.Reserve, reserved: quota_pb2.Reserved) -> None:
        if len(self._reports) >= _MOST_REPORTS:
            self._reports.clear()
        self._reports[limited(reserve)] = Reservation(
            state_of(reserved.requests), state_of(reserved.tokens), spend=state_of(reserved.spend)
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
            report_of(outcome.requests),
            report_of(outcome.tokens),
            local=True,
            over_quota=outcome.over_quota,
            spend=report_of(outcome.spend),
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
            for renew in digests(tenants):
                renew.lease.CopyFrom(to_duration(self._lease_seconds))
                self._send(mux, quota_pb2.QuotaCall(renew=renew), self._renewed)

    def _renewed(self, reply: quota_pb2.QuotaReply | None, error: WeirError | None) -> None:
        if reply is not None and error is None:
            for held in reply.renewed.unknown:
                for request_id in held.request_ids:
                    self._claim((held.tenant, request_id))

    def _claim(self, key: tuple[str, str], *, lazy: bool = False) -> None:
        """Tells the owner of a request that is served and has no lease there, or a smaller one."""
        lost = self._bridge.lost(key)
        if lost is not None:
            reserve = quota_pb2.Reserve()
            reserve.CopyFrom(lost[0])
            reserve.granted, reserve.over_quota_allowed = True, lost[1]
            self._want_share(reserve)
            claimed = partial(self._claimed, reserve, self._now())
            self._send(self._streams.to(key[0]), quota_pb2.QuotaCall(reserve=reserve), claimed, lazy=lazy)

    def _claimed(
        self, reserve: quota_pb2.Reserve, asked: int, reply: quota_pb2.QuotaReply | None, error: WeirError | None
    ) -> None:
        key = (reserve.tenant, reserve.request_id)
        if error is None:
            self._bridge.taken(key, ask_of(reserve, self._prices).tokens)
        elif error.reason is Reason.CONFLICT:
            self._bridge.taken(key)
        if reply is not None and reply.HasField("reserved"):
            self._report(reserve, reply.reserved)
        self._hear_shares(reserve, reply, asked)

    def _settled(self, key: tuple[str, str], reply: object, error: WeirError | None) -> None:
        """Settling is at-least-once and harmless to lose: the lease ends by itself."""
        if error is None:
            self._bridge.taken(key)

    def _send(self, mux: MuxClient, call: quota_pb2.QuotaCall, on_reply: OnReply, *, lazy: bool = False) -> None:
        try:
            mux.call_nowait(
                call,
                deadline=Deadline.after(self._end_timeout, self._clock),
                semantics=Semantics.RETRY,
                on_reply=on_reply,
                lazy=lazy,
            )
        except WeirError as error:  # it cannot even be queued: the lease ends by itself, or the next digest says it
            on_reply(None, error)

    def _now(self) -> int:
        return int(self._clock.monotonic() * _SECOND)
