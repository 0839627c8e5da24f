"""Admission over multiplexed streams, one per pool: admission is sharded by pool, and the shard is chosen by the
stream's `x-weir-pool` metadata (ring hash through xDS)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from weir.admission.v1 import admission_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import WeirError
from libs.mux import MuxClient, Semantics


class AdmissionClient:
    """Implements `AdmissionPort`."""

    def __init__(self, open_pool: Callable[[str], MuxClient], *, clock: Clock, end_timeout: float) -> None:
        self._open_pool = open_pool
        self._clock = clock
        self._end_timeout = end_timeout
        self._pools: dict[str, MuxClient] = {}
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
            if self._group is not None:
                self._group.create_task(mux.run())
        return mux

    async def admit(
        self, request: admission_pb2.Admit, *, deadline: Deadline, traceparent: str
    ) -> admission_pb2.Granted:
        """See `AdmissionPort`."""
        reply = await self.pool(request.pool).call(
            admission_pb2.AdmissionCall(admit=request),
            deadline=deadline,
            semantics=Semantics.RETRY,
            traceparent=traceparent,
        )
        if reply.HasField("rejected"):
            raise WeirError.from_rejection(reply.rejected)
        return reply.granted

    def release(self, request_id: str, *, pool: str, output_tokens: int, unused: bool = False) -> None:
        """See `AdmissionPort`."""
        release = admission_pb2.Release(request_id=request_id, output_tokens=output_tokens, unused=unused)
        # A release that cannot be queued is made good by the worker's own capacity reports.
        with contextlib.suppress(WeirError):
            self.pool(pool).call_nowait(
                admission_pb2.AdmissionCall(release=release),
                deadline=Deadline.after(self._end_timeout, self._clock),
                semantics=Semantics.RETRY,
                on_reply=_ignore,
            )


def _ignore(reply: object, error: WeirError | None) -> None:
    """See `release`."""
