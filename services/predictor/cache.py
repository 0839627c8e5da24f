"""Answers that were given before, and those that are about to be: for versions that allow it, per tenant.

A key is everything that an answer follows from: the tenant (whose time to an answer tells no other tenant anything),
the version's digest, the outputs asked for and the canonical bytes of the inputs. Degraded answers are never kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from libs.clock import Clock
from services.predictor.port import Signature, Tensors

_LENGTH = 8
_OVERHEAD = 256
"""Bytes of an entry beside its tensors."""


def key_of(tenant: str, digest: str, signature: Signature, inputs: Tensors, outputs: frozenset[str] | None) -> bytes:
    """The key of an answer. Inputs are as decoded, so that raw and typed contents of the same values are the same."""
    found = hashlib.sha256()

    def add(part: bytes | memoryview) -> None:
        found.update(len(part).to_bytes(_LENGTH, "big"))
        found.update(part)

    add(tenant.encode())
    add(digest.encode())
    add(b"\0".join(sorted(name.encode() for name in outputs)) if outputs is not None else b"*")
    for tensor in signature.inputs:
        array = inputs[tensor.name]
        add(repr(array.shape).encode())
        if array.dtype == object:
            for element in array.flat:
                add(element)
        else:
            add(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return found.digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """Kept outputs; nobody writes to them."""

    outputs: Tensors
    until: float
    """Monotonic seconds; afterwards it is stale."""
    size: int


class Cache:
    """At most `max_bytes` of outputs, the least recently used of which go first."""

    def __init__(self, max_bytes: int, *, stale: float, clock: Clock) -> None:
        """:param stale: seconds for which an entry is kept beyond its time."""
        self.max_bytes = max_bytes
        self._stale = stale
        self._clock = clock
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._flights: dict[bytes, asyncio.Future[Tensors]] = {}
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def fresh(self, key: bytes) -> Tensors | None:
        """Outputs that may be given for the same question."""
        entry = self._entries.get(key)
        if entry is None or entry.until <= self._clock.monotonic():
            return None
        self._entries.move_to_end(key)
        return entry.outputs

    def stale(self, key: bytes) -> Tensors | None:
        """Outputs that may be given where nothing else is to be had."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until + self._stale <= self._clock.monotonic():
            self._drop(key)
            return None
        return entry.outputs

    async def flight(
        self, key: bytes, seconds: float, compute: Callable[[], Awaitable[Tensors]], deadline: float
    ) -> tuple[Tensors, bool]:
        """Outputs, computed once for all who ask at the same time, and whether they were computed for this one. When
        the computation of somebody else fails, or he leaves, the next one computes; nobody waits beyond his own
        `deadline` (monotonic seconds).

        :param seconds: for which they are kept.
        :raises TimeoutError: the deadline passed while another one computed.
        """
        while (flight := self._flights.get(key)) is not None:
            left = deadline - self._clock.monotonic()
            done, _ = await asyncio.wait((flight,), timeout=max(0.0, left))
            if not done:
                raise TimeoutError
            if not flight.cancelled() and flight.exception() is None:
                return flight.result(), False
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            outputs = await compute()
        except BaseException:
            flight.cancel()
            raise
        else:
            flight.set_result(outputs)
            self._keep(key, outputs, seconds)
            return outputs, True
        finally:
            del self._flights[key]

    def _keep(self, key: bytes, outputs: Tensors, seconds: float) -> None:
        # Of a batch's outputs these are a view: kept as they are, they would keep everybody's in memory.
        own = {name: array.copy() for name, array in outputs.items()}
        size = _OVERHEAD + sum(map(_size, own.values()))
        if size > self.max_bytes:
            return
        self._drop(key)
        self._entries[key] = Entry(own, self._clock.monotonic() + seconds, size)
        self.used_bytes += size
        while self.used_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry.size


def _size(array: np.ndarray) -> int:
    return sum(map(len, array.flat)) + array.nbytes if array.dtype == object else array.nbytes
