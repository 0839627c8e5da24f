"""Admission over multiplexed streams, one per pool: admission is sharded by pool, and the shard is chosen by the
stream's `x-weir-pool` metadata (ring hash through xDS).

While nobody waits in a pool, answers bring credits: a request that finds one of its kind runs on it at once, and the
pool's owner is told lazily that it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weir.admission.v1 import admission_pb2

from libs.catalog import Catalog
from libs.clock import Clock
from libs.deadlines import Deadline, to_duration
from libs.errors import WeirError
from libs.mux import MuxClient, Semantics, tell
from libs.routing import WORKER_SERVICE
from services.gateway.clients.credits import PoolCredits, ask_of


class AdmissionClient:
    """A worker and a grant. Fallback: a small number of requests without a grant, which workers take only while they
    hear nothing from admission either."""

    def __init__(
        self, open_pool: Callable[[str], MuxClient], local: LocalGrants, *, clock: Clock, end_timeout: float
    ) -> None:
        self._open_pool = open_pool
        self._local = local
        self._clock = clock
        self._end_timeout = end_timeout
        self._pools: dict[str, MuxClient] = {}
        self._credits: dict[str, PoolCredits] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Keep the pools' streams open until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for mux in self._pools.values():
                group.create_task(mux.run())
            await asyncio.Event().wait()

    def pool(self, name: str) -> MuxClient:
        """The stream of a pool; opened at first use (pools come from the registry: a bounded number)."""
        mux = self._pools.get(name)
        if mux is None:
            mux = self._pools[name] = self._open_pool(name)
            self._credits[name] = PoolCredits(mux, clock=self._clock, end_timeout=self._end_timeout)
            if self._group is not None:
                self._group.create_task(mux.run())
        return mux

    @property
    def pending(self) -> int:
        """Calls that were not answered yet."""
        return sum(mux.queued + mux.in_flight for mux in self._pools.values())

    async def admit(
        self,
        request: admission_pb2.Admit,
        *,
        deadline: Deadline,
        traceparent: str,
        may_be_local: bool = False,
        patience: float | None = None,
    ) -> admission_pb2.Granted:
        """Wait for a worker. With `may_be_local` the answer may be the fallback's: its grant has no proof. While
        admission is away it waits for `patience` seconds, None: as long as the deadline allows.

        Nothing is held when it raises, cancellation included.

        :raises WeirError: the rejection or eviction; DEPENDENCY_UNAVAILABLE while admission is away.
        """
        mux = self.pool(request.pool)
        # Lost, and not merely never reached: right after a start the first stream is worth waiting for.
        if may_be_local and mux.generation and not mux.connected and (granted := self._local.grant(request)):
            return granted
        credits, ask, reply = self._credits[request.pool], ask_of(request), None
        if ask is not None:
            granted = credits.run(request, ask, deadline=deadline, traceparent=traceparent)
            if granted is not None:
                return granted
        if patience is not None and not mux.connected:
            await mux.wait_connected(min(patience, deadline.timeout(self._clock)))
        call = admission_pb2.AdmissionCall(admit=request)
        wanted = credits.asking(call, ask) if ask is not None else 0
        try:
            reply = await mux.call(call, deadline=deadline, semantics=Semantics.RETRY, traceparent=traceparent)
        except BaseException:
            # Nobody will hear the answer: what was asked for may have been granted by now, or still will be.
            self.release(request.request_id, pool=request.pool, unused=True)
            raise
        finally:
            if ask is not None:
                credits.answered(ask, wanted, reply)
        if reply.HasField("rejected"):
            raise WeirError.from_rejection(reply.rejected)
        return reply.granted

    def release(
        self,
        request_id: str,
        *,
        pool: str,
        output_tokens: int = 0,
        unused: bool = False,
        failed: bool = False,
        first_token: float | None = None,
        cached_prompt_tokens: int = 0,
        cut_short: bool = False,
    ) -> None:
        """Give the share back, and tell what came of it: tokens generated on this grant, whether it failed through the
        worker's fault, seconds from the grant to the first token (None: there was none), prompt tokens it had cached,
        and whether it was cut short. Never raises.
        """
        if self._local.release(request_id):
            return
        mux = self.pool(pool)
        if unused:
            self._credits[pool].give_back()  # a worker that did not take one will not take the others
        release = admission_pb2.Release(
            request_id=request_id,
            output_tokens=output_tokens,
            unused=unused,
            failed=failed,
            first_token=None if first_token is None else to_duration(first_token),
            cached_prompt_tokens=cached_prompt_tokens,
            cut_short=cut_short,
        )
        # A release that cannot be queued is made good by the worker's own capacity reports.
        call, deadline = admission_pb2.AdmissionCall(release=release), Deadline.after(self._end_timeout, self._clock)
        tell(mux, call, deadline=deadline, on_reply=self._credits[pool].released, lazy=True)


class LocalGrants:
    """Stands in while admission is away: at most `limit` requests of this gateway at a time, to workers in turn."""

    def __init__(self, catalog: Catalog, *, limit: int) -> None:
        self._catalog = catalog
        self._limit = limit
        self._running: set[str] = set()
        self._turn = 0

    def grant(self, request: admission_pb2.Admit) -> admission_pb2.Granted | None:
        """A worker without a proof, or None when the cap is reached or no worker is known."""
        if len(self._running) >= self._limit:
            return None
        live = [
            endpoint
            for (service, _), endpoint in self._catalog.snapshot.endpoints.items()
            if service == WORKER_SERVICE and request.model_version in endpoint.model_versions
        ]
        if not live:
            return None
        self._turn += 1
        endpoint = live[self._turn % len(live)]
        self._running.add(request.request_id)
        return admission_pb2.Granted(
            worker=endpoint.instance, address=endpoint.address, zone=endpoint.zone, simulated=endpoint.simulated
        )

    def release(self, request_id: str) -> bool:
        """Give a share back; False when it was not from here."""
        if request_id not in self._running:
            return False
        self._running.discard(request_id)
        return True
