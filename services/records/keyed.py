"""`weir.records.v1.AnswersService`: what idempotency keys stand for, asked by gateways and predictors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from weir.records.v1 import answers_pb2 as pb
from weir.records.v1 import answers_pb2_grpc

from libs.clock import Clock
from libs.errors import Reason, WeirError
from services.records import metrics
from services.records.answers import MOST_RUNNING, Answers, Claim, FullError, State
from services.records.store import StoreAwayError

SERVICE = "weir.records.v1.AnswersService"
MOST_ANSWER = 2**20
"""Bytes."""
_MOST_LEASE, _MOST_LIFE = 600.0, 7 * 86_400.0
_STATES = {
    State.BEGUN: pb.BeginResponse.STATE_BEGUN,
    State.RUNNING: pb.BeginResponse.STATE_RUNNING,
    State.ENDED: pb.BeginResponse.STATE_ENDED,
    State.CONFLICT: pb.BeginResponse.STATE_CONFLICT,
}
T = TypeVar("T")


class AnswersServicer(answers_pb2_grpc.AnswersServiceServicer):
    """The RPCs."""

    def __init__(self, answers: Answers, threads: Executor, *, clock: Clock) -> None:
        """:param threads: in which the database is asked."""
        self._answers = answers
        self._threads = threads
        self._clock = clock

    async def Begin(  # noqa: N802 - the name on the wire
        self, request: pb.BeginRequest, context: grpc.aio.ServicerContext
    ) -> pb.BeginResponse:
        """Claims a key.

        :raises WeirError: INVALID_REQUEST; REJECTED_QUEUE_FULL, the tenant has too many claims; DEPENDENCY_UNAVAILABLE,
            the database is away.
        """
        tenant, key = _key(request.key)
        if not 8 <= len(request.body) <= 64:
            raise WeirError(Reason.INVALID_REQUEST, "body: 8 to 64 bytes", limit="body")
        lease = _milliseconds(request.lease, "lease", _MOST_LEASE)
        life = _milliseconds(request.life, "life", _MOST_LIFE)
        claim = Claim(tenant, key, request.body, _holder(request.holder), lease, life, request.take_over)
        now = self._now()
        try:
            state, answer = await self._asked(lambda: self._answers.begin(claim, now))
        except FullError:
            message = f"{MOST_RUNNING} requests with idempotency keys run already"
            raise WeirError(Reason.REJECTED_QUEUE_FULL, message, limit="idempotency_keys", retry_after=1.0) from None
        metrics.ANSWERS.labels(state.value).inc()
        return pb.BeginResponse(state=_STATES[state], answer=answer)

    async def Keep(  # noqa: N802
        self, request: pb.KeepRequest, context: grpc.aio.ServicerContext
    ) -> pb.KeepResponse:
        """Keeps an answer.

        :raises WeirError: INVALID_REQUEST; DEPENDENCY_UNAVAILABLE.
        """
        tenant, key = _key(request.key)
        if len(request.answer) > MOST_ANSWER:
            raise WeirError(Reason.INVALID_REQUEST, f"answer: at most {MOST_ANSWER} bytes", limit="answer")
        holder, answer = _holder(request.holder), request.answer
        return pb.KeepResponse(kept=await self._asked(lambda: self._answers.keep(tenant, key, holder, answer)))

    async def Drop(  # noqa: N802
        self, request: pb.DropRequest, context: grpc.aio.ServicerContext
    ) -> pb.DropResponse:
        """Gives a key up.

        :raises WeirError: INVALID_REQUEST; DEPENDENCY_UNAVAILABLE.
        """
        tenant, key = _key(request.key)
        holder = _holder(request.holder)
        await self._asked(lambda: self._answers.drop(tenant, key, holder))
        return pb.DropResponse()

    async def Hold(  # noqa: N802
        self, request: pb.HoldRequest, context: grpc.aio.ServicerContext
    ) -> pb.HoldResponse:
        """Goes on with a process's claims.

        :raises WeirError: INVALID_REQUEST; DEPENDENCY_UNAVAILABLE.
        """
        holder, until = _holder(request.holder), self._now() + _milliseconds(request.lease, "lease", _MOST_LEASE)
        return pb.HoldResponse(claims=await self._asked(lambda: self._answers.hold(holder, until)))

    async def sweep(self, most_bytes: int) -> None:
        """Forgets what is over, and the oldest beyond so many bytes.

        :raises WeirError: DEPENDENCY_UNAVAILABLE.
        """
        now = self._now()
        await self._asked(lambda: self._answers.sweep(now, most_bytes=most_bytes))

    def _now(self) -> int:
        return int(self._clock.time() * 1000)

    async def _asked(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except StoreAwayError as error:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, "the database of records is away", limit="database", retry_after=1.0
            ) from error


def _key(key: pb.AnswerKey) -> tuple[str, bytes]:
    if not key.tenant:
        raise WeirError(Reason.INVALID_REQUEST, "key.tenant: missing", limit="key.tenant")
    if len(key.key) != 32:
        raise WeirError(Reason.INVALID_REQUEST, "key.key: 32 bytes", limit="key.key")
    return key.tenant, key.key


def _holder(holder: str) -> str:
    if not 0 < len(holder) <= 255:
        raise WeirError(Reason.INVALID_REQUEST, "holder: 1 to 255 characters", limit="holder")
    return holder


def _milliseconds(duration: Duration, name: str, most: float) -> int:
    seconds = duration.ToNanoseconds() / 1e9
    if not 0 < seconds <= most:
        raise WeirError(Reason.INVALID_REQUEST, f"{name}: more than 0 and at most {most:g} seconds", limit=name)
    return max(1, round(seconds * 1000))
