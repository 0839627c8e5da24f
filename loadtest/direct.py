"""A worker called directly, for comparison with the way through the mesh: same service, same engine, same mTLS.

The worker runs in a process of its own with a mesh worker's configuration. This process is its only admission: a small
`AdmissionService` hands it a grant key over the capacity stream, and grants are signed here. Sequences travel over one
`Session`, as a gateway's do.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2, admission_pb2_grpc
from weir.mux.v1 import mux_pb2
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.authority.identity import Identity
from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.deadlines import to_duration
from libs.grants import KEY_BYTES, GrantSigner
from libs.pki import issue
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind
from libs.supervisor.leash import leashed
from loadtest.scenarios import LoadError

_WORKER = "worker-direct"
_KEY_ID = "bench"
_HEARTBEAT = 30.0  # seconds of silence: this admission never gives its worker up
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_REQUEST_SECONDS = 30.0


class _Admission(admission_pb2_grpc.AdmissionServiceServicer):
    """Takes in one worker and never asks anything of it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.hello: asyncio.Future[admission_pb2.WorkerHello] = asyncio.get_running_loop().create_future()

    async def ReportCapacity(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        """Give the key, then read reports until the worker goes."""
        frame = await context.read()
        welcome = admission_pb2.WorkerWelcome(grant_key=self._key, key_id=_KEY_ID, heartbeat=to_duration(_HEARTBEAT))
        await context.write(admission_pb2.ReportCapacityResponse(welcome=welcome))
        if not self.hello.done():
            self.hello.set_result(frame.hello)
        while await context.read() is not grpc.aio.EOF:
            pass


class DirectWorker:
    """A running worker and the one session to it; calling it sends a sequence and gives seconds to its first token."""

    def __init__(self, *, config: Path, pki: Path, folder: Path, prompt_tokens: int, max_tokens: int) -> None:
        """`config` is the configuration file of a mesh's worker, `pki` the mesh's certificates, `folder` where this
        worker's own files go."""
        self._config = config
        self._pki = pki
        self._folder = folder
        self._prompt = [300 + n for n in range(prompt_tokens)]
        self._max_tokens = max_tokens
        self._handles = 0
        self._first: dict[int, asyncio.Future[float]] = {}
        self._counts: dict[int, int] = {}
        self._ended: dict[int, asyncio.Future[str]] = {}
        self._queue: list[worker_pb2.Submit] = []
        self._wake = asyncio.Event()
        self._model = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None
        self._tasks: list[asyncio.Task[None]] = []
        key = os.urandom(KEY_BYTES)
        self._admission = _Admission(key)
        self._signer = GrantSigner(
            worker=_WORKER, key_id=_KEY_ID, key=key, clock=SystemClock(), random_bytes=os.urandom
        )

    async def __aenter__(self) -> DirectWorker:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def pid(self) -> int:
        """The worker's process."""
        if self._process is None:
            raise RuntimeError("the worker does not run")
        return self._process.pid

    async def __call__(self) -> float:
        """Send one sequence and wait for its end; seconds from here to its first token.

        :raises LoadError: it was refused, failed, or is not as long as asked.
        """
        started = time.perf_counter()
        self._handles += 1
        handle, request_id = self._handles, f"direct-{self._handles}"
        grant = self._signer.sign(
            request_id=request_id,
            model_version=self._model,
            tenant="bench",
            prompt_tokens=len(self._prompt),
            max_output_tokens=self._max_tokens,
            choices=1,
        )
        loop = asyncio.get_running_loop()
        self._first[handle], self._ended[handle] = loop.create_future(), loop.create_future()
        self._counts[handle] = 0
        self._queue.append(
            worker_pb2.Submit(
                handle=handle,
                grant=grant,
                request_id=request_id,
                model_version=self._model,
                prompt=self._prompt,
                sampling=worker_pb2.Sampling(max_tokens=self._max_tokens, ignore_eos=True),
                remaining=to_duration(_REQUEST_SECONDS),
            )
        )
        self._wake.set()
        async with asyncio.timeout(_REQUEST_SECONDS):
            fault = await self._ended[handle]
        count = self._counts.pop(handle)
        first, _ = self._first.pop(handle), self._ended.pop(handle)
        if fault or count != self._max_tokens or not first.done():
            raise LoadError(f"the worker, called directly: {fault or f'{count} tokens'}")
        return first.result() - started

    async def _start(self) -> None:
        server = self._server = make_server()
        admission_pb2_grpc.add_AdmissionServiceServicer_to_server(self._admission, server)
        port = bind(server, "127.0.0.1:0", tls=self._tls("admission"))
        await server.start()
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = json.loads(self._config.read_text())
        own = issue(self._pki, Identity("worker", _WORKER, settings["pool"], settings["zone"]))
        settings |= {
            "instance": _WORKER,
            "tls": {"ca": own.ca, "cert": own.cert, "key": own.key},
            "port": 0,
            "metrics_port": 0,
            "etcd": [],
            "admission": [f"127.0.0.1:{port}"],
            "state_dir": str(self._folder),
            "trace_endpoint": "",
        }
        path = self._folder / "worker.json"
        path.write_text(json.dumps(settings, indent=2))
        # Not asyncio's subprocess: the event loop's fork would run gRPC's fork handlers, Popen's vfork does not.
        with (self._folder / "worker.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - once, before anything is measured
                leashed(sys.executable, "-m", "services.worker", "--config", str(path)),
                stdout=log,
                stderr=log,
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                hello = await self._admission.hello
        except TimeoutError:
            log_text = (self._folder / "worker.log").read_text()[-2000:]
            raise LoadError(f"the worker to call directly did not come up:\n{log_text}") from None
        self._model = next(iter(hello.model_versions))
        self._channel = make_channel(hello.address, tls=self._tls("gateway"), server_name="worker.weir.internal")
        call = worker_pb2_grpc.WorkerServiceStub(self._channel).Session()
        await call.write(
            worker_pb2.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="gateway", zone="zone-a"))
        )
        welcome = await call.read()
        if not welcome.HasField("welcome"):
            raise LoadError("the worker did not welcome its caller")
        self._tasks = [asyncio.create_task(self._write(call)), asyncio.create_task(self._read(call))]
        for task in self._tasks:
            task.add_done_callback(self._broken)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(_wait, self._process)
        if self._server is not None:
            await self._server.stop(grace=0)

    def _tls(self, name: str) -> TlsFiles:
        return TlsFiles(
            ca=str(self._pki / "ca.pem"),
            cert=str(self._pki / f"{name}.pem"),
            key=str(self._pki / f"{name}.key"),
        )

    async def _write(self, call: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._queue:
                items, self._queue = self._queue, []
                await call.write(worker_pb2.SessionRequest(submissions=worker_pb2.Submissions(items=items)))

    async def _read(self, call: Any) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            now = time.perf_counter()
            for handle, count in zip(frame.step.handles, frame.step.counts, strict=True):
                self._counts[handle] += count
                first = self._first[handle]
                if count and not first.done():
                    first.set_result(now)
            for finished in frame.step.finished:
                right = finished.reason == worker_pb2.FINISH_REASON_LENGTH
                self._end(finished.handle, "" if right else f"ended with reason {finished.reason} {finished.message}")
            for refusal in frame.refusals.items:
                self._end(refusal.handle, f"refused: {refusal.rejection.message}")

    def _broken(self, task: asyncio.Task[None]) -> None:
        """The stream's end, whatever caused it, ends every sequence."""
        cause = "stopped" if task.cancelled() else repr(task.exception() or "the worker ended the stream")
        for handle in self._ended:
            self._end(handle, cause)

    def _end(self, handle: int, fault: str) -> None:
        ended = self._ended[handle]
        if not ended.done():
            ended.set_result(fault)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
