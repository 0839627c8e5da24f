"""Quota: reserve → settle with the tenant's owner. Fallback: the same limits on this gateway's part of what was left.

The limiter is sharded by tenant: one multiplexed stream per shard, whose `x-weir-shard` header picks the replica that
owns it (ring hash through xDS; a direct target serves all shards).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from asyncio import Future
from collections.abc import Sequence

from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import Clock
from libs.deadlines import Deadline, to_duration, to_seconds
from libs.errors import WeirError
from libs.mux import Codec, MuxClient, Semantics
from libs.quota import (
    MINUTE_NS,
    Denied,
    Ledger,
    LimitReport,
    PriceBook,
    SettledAlready,
    ask_of,
    error_of,
)
from libs.registry import RegistrySnapshot, budget_specs, limit_specs, price_book
from libs.rpc import make_channel
from libs.sharding import SHARD_HEADER, SHARDS, shard_of
from services.gateway.clients.decision import start_decision
from services.gateway.config import Settings
from services.gateway.ports import Reservation

_MAX_TOLD = 50_000
_SECOND = 1_000_000_000


def open_shards(settings: Settings, *, clock: Clock, rng: random.Random) -> list[MuxClient]:
    """One client per shard of the limiter, all on one channel. `QuotaClient.run` runs them."""
    target = settings.targets.ratelimit
    name = None if target.startswith("xds:") else "ratelimit.weir.internal"
    session = quota_pb2_grpc.QuotaServiceStub(make_channel(target, tls=settings.tls, server_name=name)).Session
    codec = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)
    hello = mux_pb2.Hello(service=settings.service, instance=settings.instance, zone=settings.zone)

    def shard(number: int) -> MuxClient:
        metadata = ((SHARD_HEADER, str(number)),)
        return MuxClient(
            open_stream=lambda: session(metadata=metadata, wait_for_ready=True),
            codec=codec,
            hello=hello,
            clock=clock,
            rng=rng,
        )

    return [shard(number) for number in range(SHARDS)]


class QuotaClient:
    """Implements `QuotaPort`.

    :param shards: by number.
    """

    def __init__(
        self,
        shards: Sequence[MuxClient],
        *,
        clock: Clock,
        decide_timeout: float,
        end_timeout: float,
        lease_seconds: float,
    ) -> None:
        self._shards = tuple(shards)
        self._clock = clock
        self._decide_timeout = decide_timeout
        self._end_timeout = end_timeout
        self._lease_seconds = lease_seconds
        self._local = Ledger()
        self._prices = PriceBook({})
        self._seen = RegistrySnapshot()
        self._gateways = 1
        self._told: dict[str, tuple[int, int, int]] = {}

    async def run(self) -> None:
        """Keeps the streams open until cancelled."""
        async with asyncio.TaskGroup() as group:
            for mux in self._shards:
                group.create_task(mux.run())

    async def wait_connected(self, timeout: float) -> None:  # noqa: ASYNC109 - the error is ours, not TimeoutError
        """Returns once every shard has a stream.

        :raises WeirError: DEPENDENCY_UNAVAILABLE after `timeout` seconds.
        """
        await asyncio.gather(*(mux.wait_connected(timeout) for mux in self._shards))

    @property
    def pending(self) -> int:
        """Calls that were not answered yet."""
        return sum(mux.queued + mux.in_flight for mux in self._shards)

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Takes new limits and budgets for the fallback, an equal share per gateway, and new prices; cheap when none of
        them changed, as while the levels of an overload do."""
        seen, self._seen = self._seen, snapshot
        gateways = max(1, sum(1 for service, _ in snapshot.endpoints if service == "gateway"))
        moved, self._gateways = gateways != self._gateways, gateways
        if moved or snapshot.budgets is not seen.budgets or snapshot.tenants is not seen.tenants:
            budgets = budget_specs(snapshot)
            self._local.apply_budgets({tenant: spec.shared(gateways) for tenant, spec in budgets.items()})
        if moved or snapshot.limits is not seen.limits:
            specs = {key: spec.shared(gateways) for key, spec in limit_specs(snapshot).items()}
            self._local.apply_limits(specs, self._now())
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
            over_quota_allowed=over_quota_allowed,
            request_counted=request_counted,
            lease=to_duration(self._lease_for(deadline)),
        )
        mux = self._mux(tenant)
        return start_decision(
            mux,
            quota_pb2.QuotaCall(reserve=reserve),
            deadline=Deadline.after(self._decide_timeout, self._clock).earlier(deadline),
            traceparent=traceparent,
            read=lambda reply: self._reserved(tenant, reply),
            fallback=lambda: self._reserve_locally(reserve),
            wait=mux.moving,  # to the tenant's next owner, which is a matter of milliseconds
        )

    def settle(
        self,
        *,
        tenant: str,
        model: str,
        request_id: str,
        tokens: int,
        prompt_tokens: int = 0,
        model_version: str = "",
    ) -> None:
        """See `QuotaPort`."""
        if self._local.holds(tenant, request_id):
            spend = self._prices.of(model_version, model).cost(tokens, prompt_tokens)
            self._local.settle(tenant, model, request_id, tokens, self._now(), spend=spend)
        settle = quota_pb2.Settle(
            tenant=tenant,
            model=model,
            request_id=request_id,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            model_version=model_version,
        )
        # A settle that cannot even be queued is covered by the lease's own end.
        with contextlib.suppress(WeirError):
            self._mux(tenant).call_nowait(
                quota_pb2.QuotaCall(settle=settle),
                deadline=Deadline.after(self._end_timeout, self._clock),
                semantics=Semantics.RETRY,
                on_reply=_ignore,
                lazy=True,
            )

    def _mux(self, tenant: str) -> MuxClient:
        return self._shards[shard_of(tenant, len(self._shards))]

    def _reserved(self, tenant: str, reply: quota_pb2.QuotaReply) -> Reservation:
        if reply.HasField("rejected"):
            raise WeirError.from_rejection(reply.rejected)
        reserved = reply.reserved
        if len(self._told) >= _MAX_TOLD:
            self._told.clear()
        self._told[tenant] = (reserved.local_tokens, reserved.local_requests, self._now())
        return Reservation(
            _limit(reserved.requests),
            _limit(reserved.tokens),
            over_quota=reserved.over_quota,
            spend=_limit(reserved.spend),
        )

    def _reserve_locally(self, reserve: quota_pb2.Reserve) -> Reservation:
        """This gateway's part of what the owner last said was left, for a minute from then; after that, and for a
        tenant that the owner was not asked about within a minute, an equal part of the limit."""
        tenant, now = reserve.tenant, self._now()
        self._local.budgets.set_wall(int(self._clock.time() * _SECOND), now)
        told = self._told.pop(tenant, None)
        if told is not None and told[2] + MINUTE_NS > now:
            self._local.leave(tenant, tokens=told[0], requests=told[1], now=told[2])
        outcome = self._local.reserve(
            ask_of(reserve, self._prices), lease_ns=int(to_seconds(reserve.lease) * _SECOND), now=now
        )
        if isinstance(outcome, Denied):
            raise error_of(outcome, outcome.retry_after_ns)
        if isinstance(outcome, SettledAlready):
            return Reservation(None, None, local=True)
        return Reservation(
            _report(outcome.requests),
            _report(outcome.tokens),
            local=True,
            over_quota=outcome.over_quota,
            spend=_report(outcome.spend),
        )

    def _lease_for(self, deadline: Deadline) -> float:
        """Seconds that a lease must live: what is delivered after its end would count for nothing."""
        return max(self._lease_seconds, deadline.remaining(self._clock) + self._end_timeout)

    def _now(self) -> int:
        return int(self._clock.monotonic() * _SECOND)


def _ignore(reply: object, error: WeirError | None) -> None:
    """Settling is at-least-once and harmless to lose: the lease ends by itself."""


def _limit(status: quota_pb2.LimitStatus) -> tuple[int, int, float] | None:
    return (status.limit, status.remaining, to_seconds(status.reset)) if status.limit else None


def _report(report: LimitReport) -> tuple[int, int, float] | None:
    return (report.limit, report.remaining, report.reset_ns / _SECOND) if report.limit else None
