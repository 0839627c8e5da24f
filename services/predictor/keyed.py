"""Predictions with an idempotency key: the first one is made, every other one joins it or is given it again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from inference import open_inference_pb2 as pb

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.idempotency import Entry, KeptAnswers, Keyed, check_key, conflict
from libs.telemetry import get_logger, place_of
from services.predictor import metrics

log = get_logger(__name__)
_WEIGHT = 1024
"""Bytes that an answer weighs beside its own."""
REPLAYED = ("idempotent-replayed", "true")


class Answered(NamedTuple):
    """A prediction, and what is told with it."""

    response: pb.ModelInferResponse
    told: tuple[tuple[str, str], ...]


class _Kept(msgspec.Struct, array_like=True):
    response: bytes
    told: tuple[tuple[str, str], ...]


_decode = msgspec.msgpack.Decoder(_Kept).decode


class KeyedPredictions:
    """One per process."""

    def __init__(self, kept: KeptAnswers | None, *, life: float, most_bytes: int, clock: Clock) -> None:
        """:param kept: what other predictors find; None: keys are this process's alone.
        :param life: seconds that a key stands for its request.
        """
        self._kept = kept
        self._clock = clock
        self._keyed: Keyed[asyncio.Future[Answered]] = Keyed(most_size=most_bytes, life=life, weight=_WEIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(
        self, tenant: str, key: str, request: pb.ModelInferRequest, make: Callable[[], Awaitable[Answered]]
    ) -> Answered:
        """What the key stands for; `make` is called where that is nothing yet, and is not ended by who leaves.

        :raises WeirError: INVALID_REQUEST, IDEMPOTENCY_CONFLICT, REJECTED_QUEUE_FULL; DEPENDENCY_UNAVAILABLE where
            nobody knows; what `make` raises, and then the key stands for nothing.
        """
        check_key(key)
        body = _digest(request)
        future = self._keyed.find(tenant, key, body)
        again = future is not None
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
            entry = self._keyed.put(tenant, key, body, future, self._clock.monotonic())
            task = asyncio.get_running_loop().create_task(self._make(entry, make))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        found = await asyncio.shield(future)
        if not again:
            metrics.IDEMPOTENCY.labels("replayed" if REPLAYED in found.told else "began").inc()
            return found
        metrics.IDEMPOTENCY.labels("joined").inc()
        return found if REPLAYED in found.told else Answered(found.response, (*found.told, REPLAYED))

    def sweep(self) -> None:
        """Forget what is too old."""
        self._keyed.expire(self._clock.monotonic())

    async def drain(self) -> None:
        """Until what runs has ended, and is kept."""
        await asyncio.gather(*self._tasks)
        if self._kept is not None:
            await self._kept.drain()

    async def _make(self, entry: Entry[asyncio.Future[Answered]], make: Callable[[], Awaitable[Answered]]) -> None:
        claimed, keep, future = False, False, entry.answer
        try:
            found = None
            if self._kept is not None:
                kept = await self._kept.begin(entry.tenant, entry.key, entry.body)
                found, claimed = None if kept is None else _restored(kept), kept is None
            if found is None:
                found = await make()
            packed = msgspec.msgpack.encode(_Kept(found.response.SerializeToString(), found.told))
            self._keyed.grew(entry, len(packed))
            keep = True
            if claimed and self._kept is not None:
                claimed = False
                await self._kept.keep(entry.tenant, entry.key, packed)
            future.set_result(found)
        except WeirError as error:
            future.set_exception(error)
        except Exception as error:
            log.error("keyed_prediction_failed", error=type(error).__name__, where=place_of(error))
            future.set_exception(WeirError(Reason.INTERNAL, "internal error"))
        finally:
            self._keyed.ended(entry, keep=keep)
            if claimed and self._kept is not None:
                self._kept.drop(entry.tenant, entry.key)
            future.cancel()  # of a process that ends: whoever waits is told so


def _digest(request: pb.ModelInferRequest) -> bytes:
    """Of all but the id, which is another one each time that a client asks."""
    same = pb.ModelInferRequest()
    same.CopyFrom(request)
    same.id = ""
    return hashlib.blake2b(same.SerializeToString(deterministic=True), digest_size=16).digest()


def _restored(kept: bytes) -> Answered:
    try:
        found = _decode(kept)
        return Answered(pb.ModelInferResponse.FromString(found.response), (*found.told, REPLAYED))
    except (msgspec.DecodeError, DecodeError) as error:
        raise conflict("its answer cannot be read any more") from error
