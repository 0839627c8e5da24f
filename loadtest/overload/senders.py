"""How a request of the load reaches the mesh: as a browser's client would, or natively like an internal workload."""

from __future__ import annotations

import abc
import asyncio
import json
import random
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any

import grpc
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.config import TlsFiles
from libs.errors import Reason, WeirError, from_rpc_error, http_status
from libs.rpc import make_channel
from loadtest.http_client import Connection, Reply, post
from loadtest.overload.samples import CANCELLED, CLIENT_TIMEOUT, CONNECTION_LOST, OK, itl_p95
from simulation.workload import Arrival

PATH = "/v1/completions"
TOKEN_IDS = range(300, 2000)
"""Ids that prompts are made of: words of the demo tokenizer, no special tokens."""
_REASONS = {reason.name for reason in Reason}
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_PROMPT_TOKENS = re.compile(rb'"prompt_tokens":(\d+)')
_QUEUED = re.compile(rb'"queue":([0-9.]+)')
_DEGRADED = re.compile(rb'"degraded":\[([^\]]*)\]')


@dataclass(slots=True)
class Answer:
    """The end of one request. Times in seconds since it was sent."""

    outcome: str = OK
    status: int = 200
    ended: float = 0.0
    events: tuple[float, ...] = ()
    tokens: int = 0
    """Output tokens by its usage, or events when there was none."""
    prompt_tokens: int = 0
    retry_after: float | None = None
    degraded: tuple[str, ...] = ()
    zone: str = ""
    version: str = ""
    """The model version that answered."""
    queued: float | None = None
    """Seconds in admission's queue, as the answer says."""

    @property
    def itl_p95(self) -> float | None:
        """Of its events."""
        gap = itl_p95(self.events)
        return None if gap is None else round(gap, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where one tenant's load goes."""

    address: str = ""
    """Over HTTP: the edge's "host:port"."""
    key: str = ""
    target: str = ""
    """Natively: "host:port" of a gateway, or "xds:///…"."""
    tls: TlsFiles | None = None
    """Natively: the workload's identity."""
    abandon: float = 0.0
    """Share of the requests whose client goes away, at a random moment of up to `abandon_within`."""
    abandon_within: float = 1.0
    """Seconds."""
    pause: float = 0.0
    """Closed loops: mean seconds after a refusal before the next try (uniform)."""
    tricks: bool = False
    """Vary what is asked for the same tokens: several choices, no max_tokens."""

    def sender(self, *, model: str, seed: str) -> Sender:
        """A sender for this process."""
        rng = random.Random(seed)
        return NativeSender(self, model, rng) if self.target else HttpSender(self, model, rng)


class Sender(abc.ABC):
    """Sends requests of one load."""

    def __init__(self, route: Route, model: str, rng: random.Random) -> None:
        self.route = route
        self.model = model
        self._rng = rng

    @abc.abstractmethod
    async def open(self) -> None:
        """Prepare, so that the first request is no slower than others."""

    async def send(self, arrival: Arrival, *, timeout: float) -> Answer:  # noqa: ASYNC109 - it is the caller's deadline
        """Send one request and wait for its end; failures are answers too."""
        leaves = self._rng.random() < self.route.abandon
        patience = self._rng.uniform(0.0, self.route.abandon_within) if leaves else timeout
        return await self._send(arrival, patience, CANCELLED if leaves else CLIENT_TIMEOUT)

    @abc.abstractmethod
    async def _send(self, arrival: Arrival, patience: float, gone: str) -> Answer:
        """Send; leave after `patience` seconds with the outcome `gone`."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Let go of connections."""

    def prompt(self, tokens: int) -> list[int]:
        """A prompt that no other one begins like."""
        return self._rng.choices(TOKEN_IDS, k=tokens)

    def trick(self, arrival: Arrival) -> dict[str, int]:
        """Parameters of the output's length, with `tricks` in one of several guises."""
        if not self.route.tricks:
            return {"max_tokens": arrival.max_tokens}
        guises: list[dict[str, int]] = [
            {"max_tokens": arrival.max_tokens},
            {"max_tokens": max(1, arrival.max_tokens // 4), "n": 4},
            {},
            {"max_tokens": 1},
        ]
        return self._rng.choice(guises)


class HttpSender(Sender):
    """The OpenAI API over the edge, streamed, keep-alive connections."""

    path = PATH

    def __init__(self, route: Route, model: str, rng: random.Random, tls: ssl.SSLContext | None = None) -> None:
        """Plaintext without `tls`."""
        super().__init__(route, model, rng)
        self._host, _, port = route.address.rpartition(":")
        self._port = int(port)
        self._tls = tls
        self._idle: list[Connection] = []

    async def open(self) -> None:
        """Nothing: connections are opened as they are needed, and kept."""

    def asked(self, arrival: Arrival) -> dict[str, Any]:
        """What the body says beside how the answer is to come."""
        return {"prompt": self.prompt(arrival.prompt_tokens), **self.trick(arrival)}

    async def _send(self, arrival: Arrival, patience: float, gone: str) -> Answer:
        body = {
            "model": self.model,
            **self.asked(arrival),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = post(self._host, self.path, self.route.key, json.dumps(body, separators=(",", ":")).encode())
        connection = self._idle.pop() if self._idle else Connection(self._host, self._port, self._tls)
        start = time.perf_counter()
        left = False

        def leave() -> None:
            nonlocal left
            left = True
            connection.close()

        timer = asyncio.get_running_loop().call_later(patience, leave)
        reply = Reply()
        try:
            await connection.send(request, reply=reply)
        except asyncio.CancelledError:
            connection.close()
            raise
        except OSError:
            connection.close()
            events = tuple(at - start for at in reply.events)
            outcome = gone if left else CONNECTION_LOST
            return Answer(
                outcome,
                reply.status,
                time.perf_counter() - start,
                events,
                len(events),
                zone=reply.header("x-weir-zone"),
            )
        finally:
            timer.cancel()
        self._idle.append(connection)
        return answer_of(reply, start)

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def answer_of(reply: Reply, start: float) -> Answer:
    """What a whole HTTP answer says. Pure."""
    answer = Answer(
        status=reply.status,
        ended=reply.ended - start,
        zone=reply.header("x-weir-zone"),
        version=reply.header("x-weir-model-version"),
    )
    error: dict[str, Any] | None = None
    if reply.status != 200:
        try:
            error = json.loads(reply.body)["error"]
        except (ValueError, KeyError, TypeError):
            error = {}
    elif reply.streamed:
        if (at := reply.body.find(b'data: {"error":')) >= 0:
            error = json.loads(reply.body[at + 6 :].partition(b"\n")[0])["error"]
        elif b"data: [DONE]" not in reply.body:
            answer.outcome = CONNECTION_LOST
        # The last JSON event of a whole stream is the usage, of a failed one the error.
        answer.events = tuple(at - start for at in reply.events[:-1])
    if error is not None:
        answer.outcome = _reason(reply, error)
        millis = reply.header("retry-after-ms")
        seconds = reply.header("retry-after")
        answer.retry_after = float(millis) / 1e3 if millis else float(seconds) if seconds else None
    if found := _COMPLETION_TOKENS.search(reply.body):
        answer.tokens = int(found[1])
        answer.prompt_tokens = int(prompt[1]) if (prompt := _PROMPT_TOKENS.search(reply.body)) else 0
    else:
        answer.tokens = len(answer.events)
    if found := _QUEUED.search(reply.body):
        answer.queued = float(found[1]) / 1e3
    flags = reply.header("x-weir-degraded")
    if found := _DEGRADED.search(reply.body):
        flags = found[1].decode().replace('"', "")
    answer.degraded = tuple(flag.strip() for flag in flags.split(",") if flag.strip())
    return answer


def _reason(reply: Reply, error: dict[str, Any]) -> str:
    """The mesh's own reason, from the header or the envelope; the status where neither tells it."""
    told = (reply.header("x-weir-reason") or str(error.get("code") or "")).upper()
    return told if told in _REASONS else f"HTTP_{reply.status}"


class NativeSender(Sender):
    """gRPC with a workload's certificate, past the edge."""

    def __init__(self, route: Route, model: str, rng: random.Random) -> None:
        super().__init__(route, model, rng)
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    async def open(self) -> None:
        name = None if self.route.target.startswith("xds:") else "gateway.weir.internal"
        self._channel = make_channel(self.route.target, tls=self.route.tls, server_name=name)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        await asyncio.wait_for(self._channel.channel_ready(), 20)

    async def _send(self, arrival: Arrival, patience: float, gone: str) -> Answer:
        spec = inference_pb2.GenerationSpec(
            model=self.model,
            token_ids=inference_pb2.TokenIds(ids=self.prompt(arrival.prompt_tokens)),
            parameters=inference_pb2.GenerationParameters(**self.trick(arrival), temperature=0, ignore_eos=True),
        )
        start = time.perf_counter()
        # Beyond the client's own patience, so that it is the client that leaves.
        call = self._stub.Generate(timeout=max(arrival.timeout, patience + 1.0))
        timer = asyncio.get_running_loop().call_later(patience, call.cancel)
        events: list[float] = []
        answer = Answer()
        try:
            await call.write(inference_pb2.GenerateRequest(start=spec))
            await self._read(call, start, events, answer)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._failed(call, answer, gone)
        except asyncio.CancelledError:  # of the call, by the timer
            answer.outcome, answer.status = gone, 0
        finally:
            timer.cancel()
        answer.ended = time.perf_counter() - start
        answer.events = tuple(events)
        answer.tokens = answer.tokens or len(events)
        return answer

    async def _read(self, call: Any, start: float, events: list[float], answer: Answer) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind == "delta":
                events.append(time.perf_counter() - start)
            elif kind == "accepted":
                answer.zone, answer.version = frame.accepted.zone, frame.accepted.model_version
            elif kind == "end":
                end = frame.end
                answer.tokens = end.usage.completion_tokens
                answer.prompt_tokens = end.usage.prompt_tokens
                answer.queued = end.breakdown.queue.ToMicroseconds() / 1e6
                answer.degraded = tuple(end.degraded)
                if end.finish_reason == inference_pb2.FINISH_REASON_ERROR:
                    reason = Reason.parse(end.error_reason)
                    answer.outcome, answer.status = reason.name, http_status(reason)
                elif end.finish_reason == inference_pb2.FINISH_REASON_DEADLINE:
                    answer.outcome = Reason.DEADLINE_EXCEEDED.name
                return
        await self._failed(call, answer, CONNECTION_LOST)

    async def _failed(self, call: Any, answer: Answer, gone: str) -> None:
        code = await call.code()
        if code is grpc.StatusCode.CANCELLED and call.cancelled():
            answer.outcome, answer.status = gone, 0
            return
        error: WeirError = from_rpc_error(
            grpc.aio.AioRpcError(
                code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
        )
        answer.outcome, answer.status = error.reason.name, http_status(error.reason)
        answer.retry_after = error.retry_after

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
