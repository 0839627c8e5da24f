"""Quota: reserve → settle with the tenant's owner, or out of an allowance that the owner has told before.

Far from a tenant's limits a request is reserved here, out of the allowance, and its owner hears of it a little later,
with others. Near them, and for whatever the allowance does not cover, the owner is asked. Fallback, while it cannot be:
the same limits on this process's part of what is left.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from weir.quota.v1 import quota_pb2

from libs.clock import Clock
from libs.deadlines import Deadline, to_duration
from libs.errors import Reason, WeirError
from libs.limiter.settlements import Settlements
from libs.limiter.streams import LimiterStreams
from libs.limiter.wire import allotment_of, digests, less, limited, report_of
from libs.mux import MuxClient, OnReply, start_decision, tell
from libs.quota import (
    HOLDERS,
    UNLIMITED,
    Bridge,
    Denied,
    Header,
    LimitReport,
    PriceBook,
    Question,
    SettledAlready,
    ask_of,
    error_of,
    limit_headers,
    used_of,
)
from libs.registry import RegistrySnapshot, budget_specs, limit_specs, price_book

_RENEWALS = 4
"""Within the time of a lease: three may be lost."""
_SECOND = 1_000_000_000
_MOST_REPORTS = 50_000


@dataclass(frozen=True, slots=True)
class Reservation:
    """A quota lease, and what is left of the limits. `local` says that it was taken from this process's own share
    because the limiter is away; `over_quota`, that a limit per minute refused and only a slot and the spend were taken.
    `spend` is in micro-dollars."""

    requests: LimitReport = UNLIMITED
    tokens: LimitReport = UNLIMITED
    local: bool = False
    over_quota: bool = False
    spend: LimitReport = UNLIMITED

    def headers(self) -> list[Header]:
        """The limits as HTTP tells them; nothing of those that are not set."""
        return limit_headers(self.requests, self.tokens, self.spend)


class Refused(WeirError):
    """The owner's own word: it holds nothing of what was asked for, and there is nothing to settle. What is refused
    here while it is silent it may have granted."""


class QuotaClient:
    """Reserve → settle. What is asked and told are the messages of `weir.quota.v1`, whose words hold here; nothing but
    `start_…` and `grow_here` fails, and nothing waits.

    :param lease_seconds: how long a lease outlives this process; it is prolonged four times within.
    :param settlements: keeps those that were not acknowledged; None: they end with the process.
    :param allowances: False asks the owner of each request.
    :param holders: services whose processes reserve, each of them for itself: while nobody has told a share, a limit
        is parted equally among them.
    """

    def __init__(
        self,
        streams: LimiterStreams,
        *,
        clock: Clock,
        decide_timeout: float,
        end_timeout: float,
        lease_seconds: float,
        settlements: Settlements | None = None,
        allowances: bool = True,
        holders: Collection[str] = HOLDERS,
    ) -> None:
        self._streams = streams
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._end_timeout = end_timeout
        self._lease_seconds = lease_seconds
        self._lease = to_duration(lease_seconds)
        self._settlements = settlements
        self._stopping = False
        self._allowances = allowances
        self._bridge: Bridge[quota_pb2.Reserve] = Bridge()
        self._reports: dict[tuple[str, str, str], Reservation] = {}
        """By tenant, model and version, what the owner said last, less what was given out here since."""
        self._prices = PriceBook({})
        self._seen = RegistrySnapshot()
        self._holders = holders
        self._parts = 1

    async def run(self) -> None:
        """Keeps the streams open, and the leases of what runs, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._streams.run(self._on_stream))
            try:
                while True:
                    await asyncio.sleep(self._lease_seconds / _RENEWALS)
                    self._renew(lambda home: True)
            finally:
                self._stopping = True  # what the streams end with now, the next life settles

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
        parts = max(1, sum(1 for service, _ in snapshot.endpoints if service in self._holders))
        moved, self._parts = parts != self._parts, parts
        money = snapshot.budgets is not seen.budgets or snapshot.tenants is not seen.tenants
        if moved or money or snapshot.limits is not seen.limits:
            self._reports.clear()
            self._bridge.apply(limit_specs(snapshot), budget_specs(snapshot), parts, self._now())
        if snapshot.prices is not seen.prices:
            self._prices = price_book(snapshot)
            self._bridge.ask_anew()

    def start_reserve(self, reserve: quota_pb2.Reserve, *, deadline: Deadline, traceparent: str) -> Future[Reservation]:
        """Take a share; the lease's length is filled in here.

        :raises WeirError: QUOTA_REQUESTS, QUOTA_TOKENS, QUOTA_CONCURRENCY, QUOTA_SPEND; CONTEXT_LENGTH_EXCEEDED or
            INVALID_REQUEST beyond the tenant's longest context or output (through the future).
        """
        reserve.lease.CopyFrom(self._lease)
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
        """Take a larger share for a request that runs: `tokens` in all.

        :raises WeirError: QUOTA_TOKENS, QUOTA_SPEND (through the future); what it has stays its own.
        """
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
        """Likewise at once, as the fallback does.

        :raises WeirError: QUOTA_TOKENS, QUOTA_SPEND.
        """
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
        question = self._say(reserve)
        return start_decision(
            self._streams.carrier(home),
            quota_pb2.QuotaCall(reserve=reserve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=lambda reply: read(reserve, reply, until),
            fallback=lambda: fallback(until),
            # The tenant's next owner is a matter of milliseconds; and whoever has just started is told of money soon.
            wait=home.moving or (not home.connected and self._bridge.blind(*limited(reserve), asked)),
            home=home,
            hear=partial(self._hear, question),
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
                less(report.requests, ask.requests * ask.count_request),
                less(report.tokens, ask.tokens),
                spend=less(report.spend, ask.spend),
            )
        return report

    def _say(self, reserve: quota_pb2.Reserve) -> Question:
        """What goes to the owner says what came of shares, and whether more are wanted."""
        question = self._bridge.say(
            limited(reserve),
            self._now(),
            uncounted=not reserve.request_counted,
            claims=reserve.granted,
            shares=self._allowances,
        )
        reserve.share_seen, reserve.share_wanted = question.seen, question.wanted
        return question

    def _hear(self, question: Question, reply: quota_pb2.QuotaReply | None) -> None:
        self._bridge.hear(question, None if reply is None else allotment_of(reply), self._now())

    def _until(self, deadline: Deadline) -> int:
        """What runs for longer is looked after by nobody, and its lease ends."""
        return self._now() + int((deadline.remaining(self._clock) + self._end_timeout) * _SECOND)

    def settle(self, settle: quota_pb2.Settle) -> None:
        """Replace the share by what was used; that it was over quota is filled in here, of what this life reserved."""
        tenant, request_id = settle.tenant, settle.request_id
        model, tokens, spend = used_of(settle, self._prices)
        if self._bridge.settle(tenant, model, request_id, tokens, self._now(), spend=spend):
            settle.over_quota = True
        place = None if self._settlements is None else self._settlements.begin(settle)
        settled = partial(self._settled, (tenant, request_id), place)
        self._send(self._streams.to(tenant), quota_pb2.QuotaCall(settle=settle), settled, lazy=True)

    def settle_again(self, kept: bytes) -> None:
        """What a former life of this process had settled, and nobody acknowledged: see `Settlements`."""
        self.settle(quota_pb2.Settle.FromString(kept))

    def _reserved(self, reserve: quota_pb2.Reserve, reply: quota_pb2.QuotaReply, until: int) -> Reservation:
        if reply.HasField("rejected"):
            raise Refused.from_rejection(reply.rejected)
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
            report_of(reserved.requests), report_of(reserved.tokens), spend=report_of(reserved.spend)
        )

    def _reserve_locally(self, reserve: quota_pb2.Reserve, until: int) -> Reservation:
        """Out of what the owner last said to be this process's share: see `Bridge`."""
        now = self._now()
        outcome = self._bridge.reserve(
            ask_of(reserve, self._prices), reserve, lease_ns=until - now, until=until, now=now
        )
        if isinstance(outcome, Denied):
            raise error_of(outcome, outcome.retry_after_ns)
        if isinstance(outcome, SettledAlready):
            return Reservation(local=True)
        if self._streams.home(reserve.tenant).connected:
            # It was too slow, or is not the owner; what cannot be told now is told on the next stream.
            self._claim((reserve.tenant, reserve.request_id))
        return Reservation(
            outcome.requests,
            outcome.tokens,
            local=True,
            over_quota=outcome.over_quota,
            spend=outcome.spend,
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
                renew.lease.CopyFrom(self._lease)
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
            claimed = partial(self._claimed, reserve, self._say(reserve))
            self._send(self._streams.to(key[0]), quota_pb2.QuotaCall(reserve=reserve), claimed, lazy=lazy)

    def _claimed(
        self,
        reserve: quota_pb2.Reserve,
        question: Question,
        reply: quota_pb2.QuotaReply | None,
        error: WeirError | None,
    ) -> None:
        key = (reserve.tenant, reserve.request_id)
        if error is None:
            self._bridge.taken(key, ask_of(reserve, self._prices).tokens)
        elif error.reason is Reason.CONFLICT:
            self._bridge.taken(key)
        if reply is not None and reply.HasField("reserved"):
            self._report(reserve, reply.reserved)
        self._hear(question, reply)

    def _settled(self, key: tuple[str, str], place: int | None, reply: object, error: WeirError | None) -> None:
        """Settling is at-least-once. One that nobody takes in all its time is given up: the lease ends by itself."""
        if error is None:
            self._bridge.taken(key)
        if self._settlements is not None and (error is None or not self._stopping):
            self._settlements.end(place)

    def _send(self, mux: MuxClient, call: quota_pb2.QuotaCall, on_reply: OnReply, *, lazy: bool = False) -> None:
        """What cannot even be queued: the lease ends by itself, or the next digest says it."""
        tell(mux, call, deadline=Deadline.after(self._end_timeout, self._clock), on_reply=on_reply, lazy=lazy)

    def _now(self) -> int:
        return int(self._clock.monotonic() * _SECOND)
