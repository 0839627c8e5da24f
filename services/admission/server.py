"""The servicer of weir.admission.v1: frames in, frames out; decisions are the coordinator's."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.mux import CallContext, Codec, MuxServer
from libs.mux import Session as MuxSession
from libs.registry import RegistryView
from libs.registry.roles import require_role
from libs.rpc import peer_identity, require_own
from services.admission.coordinator import Coordinator, Waiter
from services.admission.owners import Owners
from services.admission.policy.regions import ZoneRegions
from services.admission.worker_session import WorkerSession

SERVICE = pb.DESCRIPTOR.services_by_name["AdmissionService"].full_name
_HELLO_SECONDS = 10.0
POOL_HEADER = "x-weir-pool"
BEYOND_HEADER = "x-weir-beyond"
"""A term whose owner cannot serve the gateway that opens the stream, in hexadecimal."""


class AdmissionServicer(admission_pb2_grpc.AdmissionServiceServicer):
    """Sessions of gateways, capacity streams of workers."""

    def __init__(
        self,
        coordinator: Coordinator,
        owners: Owners,
        *,
        roles: RegistryView,
        instance: str,
        clock: Clock,
        max_in_flight: int,
        heartbeat: float,
        tls: bool,
    ) -> None:
        """`roles` knows who operates. `heartbeat`, in seconds, is told to workers. `tls`: peers show who they are."""
        self._coordinator = coordinator
        self._owners = owners
        owners.on_lost(self._send_away)
        self._roles = roles
        self._instance = instance
        self._heartbeat = heartbeat
        self._tls = tls
        self._regions = ZoneRegions()
        self._mux = MuxServer(
            codec=Codec.of(pb.SessionRequest, pb.SessionResponse),
            handler=self._handle,
            instance=instance,
            clock=clock,
            max_in_flight=max_in_flight,
        )

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        """One gateway's multiplexed stream.

        :raises WeirError: NOT_OWNER when the pool of its header is another process's; see `Owners.require`.
        """
        headers = dict(context.invocation_metadata() or ())
        if pool := str(headers.get(POOL_HEADER, "")):
            self._owners.require(pool, beyond=_number(str(headers.get(BEYOND_HEADER, ""))))
        await self._mux.serve(request_iterator, context)

    async def ReportCapacity(  # noqa: N802
        self, request_iterator: Any, context: grpc.aio.ServicerContext
    ) -> None:
        """One worker's capacity stream. Lost the moment that it breaks, or when the same worker opens a newer one.

        :raises WeirError: PERMISSION_DENIED for a worker, pool or zone that is not the certificate's, or a certificate
            of another region than those of its zone.
        """
        hello = await _hello(context)
        require_own(context, instance=hello.worker, pool=hello.pool, zone=hello.zone)
        shown = peer_identity(context)
        region = shown.region if shown else ""
        self._regions.join(hello.zone, region)
        try:
            await self._report_capacity(hello, context)
        finally:
            self._regions.leave(hello.zone, region)

    async def _report_capacity(self, hello: pb.WorkerHello, context: grpc.aio.ServicerContext) -> None:
        self._owners.met(hello.pool, hello.epoch, hello.owner)
        session = self._coordinator.worker_joined(hello)
        try:
            epoch = self._coordinator.epoch(session.pool)
            await context.write(session.welcome(self._instance, epoch, heartbeat=self._heartbeat))
            reader = asyncio.create_task(self._read(session, context))
            writer = asyncio.create_task(_write(session, context))
            try:
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)
            if reader.done() and not reader.cancelled():
                reader.result()
        finally:
            self._coordinator.worker_left(session, "stream")

    async def ListWorkers(  # noqa: N802
        self, request: pb.ListWorkersRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListWorkersResponse:
        """The workers that report here, for operators."""
        require_role("admission.ListWorkers", context, self._roles.snapshot, tls=self._tls)
        return self._coordinator.workers(request.pool)

    async def drain(self) -> None:
        """Sends waiting requests elsewhere, then lets the gateways' streams end."""
        self._coordinator.drain()
        await self._mux.drain()

    def _handle(self, call: Any, context: CallContext) -> pb.AdmissionReply | Waiter:
        session = context.session
        op = call.WhichOneof("op")
        if op == "admit":
            self._uses(session, call.admit.pool)
            self._require(session, call.admit.pool)
            return self._coordinator.admit(call.admit, deadline=context.deadline.at, owner=session.caller)
        if op == "release":
            if not session.state:  # a stream opened anew, for which no Admit came yet
                self._uses(session, self._coordinator.pool_of(call.release.request_id))
            return self._coordinator.release(call.release)
        raise WeirError(Reason.INVALID_REQUEST, "The call asks for nothing.", limit="op")

    def _require(self, session: MuxSession, pool: str) -> None:
        try:
            self._owners.require(pool)
        except WeirError:
            self._mux.rebalance("not the pool's owner", which=lambda each: each is session)
            raise

    def _send_away(self, pool: str) -> None:
        """The pool has another owner: who asked for it here is to ask there."""
        self._mux.rebalance("not the pool's owner", which=lambda each: pool in each.state)

    def _uses(self, session: MuxSession, pool: str) -> None:
        """The gateway asks for this pool on this stream."""
        if pool and pool not in session.state:
            session.state[pool] = True
            gateway = session.caller
            self._coordinator.gateway_opened(gateway, pool)
            session.on_close(lambda: self._coordinator.gateway_closed(gateway, pool))

    async def _read(self, session: WorkerSession, context: Any) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            if frame.WhichOneof("frame") != "report":
                raise WeirError(Reason.INVALID_REQUEST, "Only reports follow Hello.", limit="frame")
            self._coordinator.worker_reported(session, frame.report)


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


async def _write(session: WorkerSession, context: Any) -> None:
    while (frame := await session.next_frame()) is not None:
        await context.write(frame)


async def _hello(context: Any) -> pb.WorkerHello:
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            frame = await context.read()
    except TimeoutError:
        raise WeirError(Reason.INVALID_REQUEST, "No Hello came.", limit="hello") from None
    if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
        raise WeirError(Reason.INVALID_REQUEST, "The first frame must be Hello.", limit="hello")
    hello: pb.WorkerHello = frame.hello
    return hello
