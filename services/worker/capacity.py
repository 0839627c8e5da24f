"""The capacity streams: tells every admission process what this worker can take, receives its grant keys."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from weir.admission.v1 import admission_pb2, admission_pb2_grpc

from libs.clock import Clock
from libs.config import TlsFiles
from libs.deadlines import to_duration, to_seconds
from libs.grants import GrantVerifier
from libs.mux.backoff import Backoff
from libs.mux.wake import Wake
from libs.rpc import make_channel
from libs.telemetry import get_logger
from services.worker import metrics
from services.worker.engines.port import Capacity, EngineInfo

log = get_logger(__name__)

_FIRST_RETRY, _MAX_RETRY = 0.05, 2.0  # seconds
_STABLE_AFTER = 5.0  # seconds; a stream that lived this long resets the back-off
_CONNECT_TIMEOUT = 5.0
_MIN_HEARTBEAT = 0.05
_FAULTS = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError)


class CapacityReporter:
    """Keeps one stream to each admission process. Run `run()` for the worker's whole life."""

    def __init__(
        self,
        *,
        hello: Callable[[EngineInfo], admission_pb2.WorkerHello],
        info: Callable[[], EngineInfo],
        capacity: Callable[[], Capacity],
        progress: Callable[[], Mapping[str, int]],
        draining: Callable[[], bool],
        verifier: GrantVerifier,
        earlier: Callable[[int], tuple[int, int]],
        on_preempt: Callable[[list[str]], object],
        on_drain: Callable[[str], None],
        clock: Clock,
        rng: random.Random,
        tls: TlsFiles | None,
        report_interval: float,
        key_grace: float,
    ) -> None:
        """`info`, `capacity`, `draining` and `progress` (output tokens of requests that have come far) are read for
        each report: a worker that serves nothing says no Hello, one whose sizes change says it anew, and models that
        come and go travel with the reports. `earlier` gives blocks and sequences of what runs and began in terms before
        one. `on_preempt` gets request ids, `on_drain` a reason."""
        self.hello = hello
        self.info = info
        self.capacity = capacity
        self.progress = progress
        self.draining = draining
        self.verifier = verifier
        self.earlier = earlier
        self.on_preempt = on_preempt
        self.on_drain = on_drain
        self.clock = clock
        self.rng = rng
        self.tls = tls
        self.report_interval = report_interval
        self.key_grace = key_grace
        self._links: dict[str, tuple[CapacityLink, asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._wanted: frozenset[str] = frozenset()
        self.live = 0
        """Admission processes that know this worker at present."""
        self.taken_in = asyncio.Event()
        """Set once any admission process has welcomed this worker."""

    async def run(self) -> None:
        """Serve the streams until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._reconcile()
            await asyncio.Event().wait()

    def connect(self, addresses: Iterable[str]) -> None:
        """Keep streams to exactly these addresses from now on."""
        self._wanted = frozenset(addresses)
        self._reconcile()

    def changed(self) -> None:
        """The load may have changed; cheap, called once per step."""
        for link, _ in self._links.values():
            link.wake.set()

    def fence(self, epoch: int, admission: str) -> None:
        """An admission process says that it owns the pool since this term; all are to know."""
        if self.verifier.fence(epoch, admission):
            log.info("pool_owner", admission=admission, epoch=epoch)
            self.changed()

    def _reconcile(self) -> None:
        if self._group is None:
            return
        for address in self._links.keys() - self._wanted:
            self._links.pop(address)[1].cancel()
        for address in self._wanted - self._links.keys():
            link = CapacityLink(address, self)
            self._links[address] = (link, self._group.create_task(link.run(), name=f"capacity.{address}"))


class CapacityLink:
    """The stream to one admission process."""

    def __init__(self, address: str, reporter: CapacityReporter) -> None:
        self.wake = Wake()
        self._address = address
        self._reporter = reporter

    async def run(self) -> None:
        """Connect, report, reconnect, until cancelled."""
        reporter = self._reporter
        backoff = Backoff(first=_FIRST_RETRY, cap=_MAX_RETRY, uniform=reporter.rng.random)
        async with make_channel(self._address, tls=reporter.tls, server_name="admission.weir.internal") as channel:
            stub = admission_pb2_grpc.AdmissionServiceStub(channel)
            while True:
                while not reporter.info().models:
                    await self.wake.wait()
                began = reporter.clock.monotonic()
                try:
                    await self._serve(stub.ReportCapacity())
                except (*_FAULTS, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _cancelled_by_owner():
                        raise
                    code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
                    log.warning("capacity_stream_lost", admission=self._address, error=code)
                if reporter.clock.monotonic() - began >= _STABLE_AFTER:
                    backoff.reset()
                await asyncio.sleep(backoff.next())

    async def _serve(self, rpc: Any) -> None:
        """One stream, from Hello to its end. Its key outlives it by a grace: grants under it are on their way."""
        reporter = self._reporter
        key_id = ""
        info = reporter.info()
        writer: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                hello = reporter.hello(info)
                hello.epoch, hello.owner = reporter.verifier.epoch, reporter.verifier.owner
                await rpc.write(admission_pb2.ReportCapacityRequest(hello=hello))
                frame = await rpc.read()
            if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "welcome":
                return
            welcome = frame.welcome
            try:
                time = welcome.time.ToNanoseconds() / 1e9 if welcome.HasField("time") else None
                reporter.verifier.add_key(welcome.key_id, welcome.grant_key, time)
            except ValueError as error:
                log.error("grant_key_refused", admission=self._address, error=str(error))
                return
            key_id = welcome.key_id
            reporter.fence(welcome.epoch, welcome.admission)
            log.info("taken_in", admission=self._address, key_id=key_id)
            metrics.CAPACITY_STREAMS.inc()
            reporter.live += 1
            reporter.taken_in.set()
            writer = asyncio.create_task(self._report(rpc, info, to_seconds(welcome.heartbeat)))
            await self._listen(rpc, welcome.admission)
        finally:
            if key_id:
                metrics.CAPACITY_STREAMS.dec()
                reporter.live -= 1
                reporter.verifier.remove_key(key_id, after=reporter.key_grace)
            rpc.cancel()
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _listen(self, rpc: Any, admission: str) -> None:
        while (frame := await rpc.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind == "preempt":
                self._reporter.on_preempt(list(frame.preempt.request_ids))
            elif kind == "owns":
                self._reporter.fence(frame.owns.epoch, admission)
            elif kind == "drain":
                self._reporter.on_drain(frame.drain.reason)

    async def _report(self, rpc: Any, told: EngineInfo, silence: float) -> None:
        """Report on change, at most once per `report_interval`, and often enough never to seem lost. Ends the stream
        when Hello must be said anew."""
        reporter = self._reporter
        heartbeat = max(_MIN_HEARTBEAT, silence / 3) if silence else 1.0
        sent: tuple[object, ...] | None = None
        far: dict[str, int] = {}  # told
        due = 0.0
        try:
            while True:
                load = reporter.capacity()
                info = reporter.info()
                if info.models and _sizes(info) != _sizes(told):
                    rpc.cancel()
                    return
                changed = info.models if info.models != told.models else ()
                draining = reporter.draining() or not info.models
                epoch = reporter.verifier.epoch
                term = Term(epoch, reporter.verifier.owner, *reporter.earlier(epoch))
                state = (
                    term,
                    load.free_blocks,
                    load.running,
                    load.waiting,
                    load.queued_prefill_tokens,
                    load.swapped,
                    load.preemptions_total,
                    load.resident,
                    draining,
                    changed,
                )
                now = reporter.clock.monotonic()
                progress = dict(reporter.progress())  # it goes on while this is written
                further = [each for each in progress.items() if far.get(each[0]) != each[1]]
                if state != sent or further or now >= due:
                    await rpc.write(report_frame(load, term, draining, changed, further))
                    sent, far, due = state, progress, now + heartbeat
                    await asyncio.sleep(reporter.report_interval)
                    continue
                try:
                    async with asyncio.timeout(due - now):
                        await self.wake.wait()
                except TimeoutError:
                    continue
        except _FAULTS:
            rpc.cancel()  # the reader sees the stream's status


def _sizes(info: EngineInfo) -> tuple[int, ...]:
    return info.block_size, info.total_blocks, info.max_running, info.max_context


class Term(NamedTuple):
    """As in `CapacityReport`: the newest term of the pool's owners, and what still runs of older ones."""

    epoch: int = 0
    owner: str = ""
    earlier_blocks: int = 0
    earlier_sequences: int = 0


def report_frame(
    load: Capacity,
    term: Term,
    draining: bool,
    versions: Iterable[str] = (),
    further: Iterable[tuple[str, int]] = (),
) -> admission_pb2.ReportCapacityRequest:
    """The load as admission is told it: every field of the port's `Capacity` and of the term, whether work is still
    taken, what is served now where that is not what Hello said, and the output tokens of requests that have come
    further."""
    return admission_pb2.ReportCapacityRequest(
        report=admission_pb2.CapacityReport(
            free_blocks=load.free_blocks,
            running=load.running,
            waiting=load.waiting,
            queued_prefill_tokens=load.queued_prefill_tokens,
            last_step=to_duration(max(0.0, load.last_step_seconds)),
            draining=draining,
            decode_step=to_duration(max(0.0, load.decode_step_seconds)),
            prefill_tokens_per_second=load.prefill_tokens_per_second,
            cached_blocks=load.cached_blocks,
            swapped=load.swapped,
            fragmentation=load.fragmentation,
            prefix_queried_total=load.prefix_queried_total,
            prefix_hit_total=load.prefix_hit_total,
            preemptions_total=load.preemptions_total,
            spilled_blocks=load.spilled_blocks,
            resident_models=load.resident or (),
            model_versions=versions,
            progress=[
                admission_pb2.Progress(request_id=request_id, output_tokens=tokens) for request_id, tokens in further
            ],
            **term._asdict(),
        )
    )


def _cancelled_by_owner() -> bool:
    """Whether this task was asked to stop; otherwise the cancellation came out of a dead RPC."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
