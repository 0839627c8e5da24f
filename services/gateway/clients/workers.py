"""Streams to workers: submissions and cancels out, step frames in.

One stream per worker, shared by all generations on it. Submissions made in one tick travel in one frame. A frame's
tokens are handed out in one loop, and the safety filter is flushed once per frame, whatever the number of sequences.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.deadlines import to_seconds
from libs.mux.pacer import Pacer
from libs.rpc import make_channel
from libs.telemetry import get_logger, place_of
from services.gateway import metrics
from services.gateway.config import Settings
from services.gateway.policy.events import Finish
from services.gateway.ports import RunningSequence

log = get_logger(__name__)
_FINISH = {
    worker_pb2.FINISH_REASON_STOP: Finish.STOP,
    worker_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    worker_pb2.FINISH_REASON_CANCELLED: Finish.CANCELLED,
    worker_pb2.FINISH_REASON_DEADLINE: Finish.DEADLINE,
    worker_pb2.FINISH_REASON_ERROR: Finish.ERROR,
}
_LONGEST_HOLD = 0.003  # seconds; submissions that come faster than this travel together


class WorkerStreams:
    """Streams to workers, opened at first use, or ahead of it by `warm`."""

    def __init__(self, settings: Settings, *, flush: Callable[[], None]) -> None:
        self._settings = settings
        self._flush = flush
        # One count for all streams: a late cancel for a stream that is gone cannot hit a sequence of the next one.
        self._handles = itertools.count(1)
        self._links: dict[tuple[str, str], WorkerLink] = {}  # by worker and address: a restarted one may move
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the streams' tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    def warm(self, workers: Sequence[tuple[str, str]]) -> None:
        """Open streams to live workers `(id, address)` and forget idle ones that are gone."""
        for worker, address in workers:
            self._link(worker, address)
        gone = set(self._links) - set(workers)
        for key in gone:
            if not self._links[key].busy:
                self._links.pop(key).close()

    def submit(
        self,
        granted: admission_pb2.Granted,
        submissions: Sequence[tuple[worker_pb2.Submit, RunningSequence]],
    ) -> list[int]:
        """Send sequences to the granted worker; returns their handles. A stream that cannot be opened is reported
        through `on_worker_lost`."""
        return self._link(granted.worker, granted.address).submit(submissions)

    def cancel(self, worker: str, handles: Sequence[int]) -> None:
        """End sequences; nothing more is reported of them."""
        for (name, _), link in self._links.items():
            if name == worker:
                link.cancel(handles)

    def channel(self, worker: str, address: str) -> grpc.aio.Channel:
        """The channel to a worker, for unary calls."""
        return self._link(worker, address).channel

    def _link(self, worker: str, address: str) -> WorkerLink:
        link = self._links.get((worker, address))
        if link is None or link.closed:
            if self._group is None:
                raise RuntimeError("WorkerStreams.run is not running")
            link = self._links[worker, address] = WorkerLink(
                self._settings, worker, address, handles=self._handles, flush=self._flush
            )
            link.task = self._group.create_task(link.run(), name=f"worker.{worker}")
        return link


class WorkerLink:
    """One stream. It lives until it breaks; the next use opens a new one."""

    def __init__(
        self, settings: Settings, worker: str, address: str, *, handles: Iterator[int], flush: Callable[[], None]
    ) -> None:
        self.worker = worker
        self.channel = make_channel(address, tls=settings.tls, server_name="worker.weir.internal")
        self.closed = False
        self.task: asyncio.Task[None] | None = None
        self._hello = mux_pb2.Hello(service=settings.service, instance=settings.instance, zone=settings.zone)
        self._flush = flush
        self._handles = handles
        self._sequences: dict[int, RunningSequence] = {}
        self._submissions: list[worker_pb2.Submit] = []
        self._cancels: list[int] = []
        self._wake = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Sequences run on it, or it has something to send."""
        return bool(self._sequences or self._cancels or self._submissions)

    def submit(self, submissions: Sequence[tuple[worker_pb2.Submit, RunningSequence]]) -> list[int]:
        """Queue sequences for the next frame."""
        handles = []
        for message, sequence in submissions:
            handle = message.handle = next(self._handles)
            self._sequences[handle] = sequence
            self._submissions.append(message)
            handles.append(handle)
        self._wake.set()
        return handles

    def cancel(self, handles: Sequence[int]) -> None:
        """End sequences; what the worker still says of them is dropped."""
        known = [handle for handle in handles if self._sequences.pop(handle, None) is not None]
        if known:
            self._cancels += known
            self._wake.set()

    def close(self) -> None:
        """End the stream."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Serve the stream until it breaks, then report every sequence that ran on it."""
        call = worker_pb2_grpc.WorkerServiceStub(self.channel).Session()
        reader: asyncio.Task[None] | None = None
        try:
            await call.write(worker_pb2.SessionRequest(hello=self._hello))
            reader = asyncio.get_running_loop().create_task(self._read(call))
            metrics.WORKER_STREAMS.inc()
            await self._write(call, reader)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else "CLOSED"
            log.warning("worker_stream_lost", worker=self.worker, code=code, sequences=len(self._sequences))
        except Exception as error:  # a fault while handling one worker's frames must not end the other workers' streams
            log.error("worker_stream_failed", worker=self.worker, error=type(error).__name__, where=place_of(error))
        finally:
            self.closed = True
            if reader is not None:
                metrics.WORKER_STREAMS.dec()
                reader.cancel()
                await asyncio.wait((reader,))  # whatever ended it was told above
            call.cancel()
            lost, self._sequences = self._sequences, {}
            for sequence in lost.values():
                self._tell(sequence, sequence.on_worker_lost)
            self._flush()
            await self.channel.close()

    async def _write(self, call: grpc.aio.StreamStreamCall, reader: asyncio.Task[None]) -> None:
        """Send what is queued until the reader ends; raises what ended it."""
        reader.add_done_callback(lambda _: self._wake.set())
        pacer = Pacer(longest=_LONGEST_HOLD)
        clock = asyncio.get_running_loop()
        while not reader.done():
            await self._wake.wait()
            if (hold := pacer.hold(clock.time())) > 0:
                await asyncio.sleep(hold)
            self._wake.clear()
            if self._submissions:
                pacer.wrote(len(self._submissions), clock.time())
                items, self._submissions = self._submissions, []
                await call.write(worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=items)))
            if self._cancels:
                handles, self._cancels = self._cancels, []
                await call.write(worker_pb2.SessionRequest(cancel=worker_pb2.CancelSequences(handles=handles)))
        reader.result()

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        async for frame in call:
            kind = frame.WhichOneof("frame")
            if kind == "step":
                self._step(frame.step)
            elif kind == "refusals":
                for refusal in frame.refusals.items:
                    sequence = self._sequences.pop(refusal.handle, None)
                    if sequence is not None:
                        self._tell(sequence, sequence.on_refused, refusal)
                self._flush()

    def _step(self, frame: worker_pb2.StepFrame) -> None:
        sequences = self._sequences
        for first in frame.first:
            sequence = sequences.get(first.handle)
            if sequence is not None:
                after = to_seconds(first.after)
                self._tell(sequence, sequence.on_first, first.cached_prompt_tokens, after, first.numerics)
        logprobs = {entry.handle: entry for entry in frame.logprobs} if frame.logprobs else {}
        tokens = list(frame.tokens)
        at = 0
        for handle, count in zip(frame.handles, frame.counts, strict=True):
            sequence = sequences.get(handle)
            if sequence is not None and count:
                try:  # not by `_tell`, which costs a tenth of a microsecond for each token
                    sequence.on_tokens(tokens[at : at + count], logprobs.get(handle))
                except Exception as error:
                    self._faulted(sequence, error)
            at += count
        for finished in frame.finished:
            sequence = sequences.pop(finished.handle, None)
            if sequence is not None:
                finish = _FINISH.get(finished.reason, Finish.ERROR)
                self._tell(sequence, sequence.on_finished, finish, finished.message)
        self._flush()

    def _tell(self, sequence: RunningSequence, what: Callable[..., None], *told: Any) -> None:
        try:
            what(*told)
        except Exception as error:
            self._faulted(sequence, error)

    def _faulted(self, sequence: RunningSequence, error: Exception) -> None:
        """One request's fault ends that request: the others of its frame go on, and none moves to another worker."""
        log.error("sequence_failed", worker=self.worker, error=type(error).__name__, where=place_of(error))
        sequence.on_fault()
