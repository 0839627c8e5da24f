"""Where a pool's stream is opened: at the admission process that owns the pool.

The mesh's ring picks one; if it does not own the pool it refuses the stream and names the owner, to which the next
stream goes directly. If that one does not take it, another process is asked, and told that the owner of that term
cannot serve this gateway: then it begins a term of its own (services/admission).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weir.admission.v1 import admission_pb2, admission_pb2_grpc

from libs.errors import Reason, WeirError
from libs.mux import Dialer, MuxClient

_CHANNELS = 8
"""Direct ones that are kept; the longest unused goes."""
_OWNER_SECONDS = 2.0
"""From opening a stream to an owner's Welcome: after that another process is asked."""


def open_pool(dialer: Dialer, target: str, pool: str, *, replicas: Callable[[], Sequence[str]]) -> MuxClient:
    """A client of whoever owns a pool; `replicas` gives the addresses of the admission processes that are known."""

    def session(where: str) -> Callable[..., Any]:
        return dialer.session(where, "admission", admission_pb2_grpc.AdmissionServiceStub)

    streams = OwnerStreams(pool, ring=session(target), direct=session, replicas=replicas)
    return dialer.client(
        streams.open,
        admission_pb2,
        connect_timeout=_OWNER_SECONDS,
        on_stream=streams.opened,
        on_refused=streams.refused,
    )


class OwnerStreams:
    """Opens the streams of one pool, one after the other; `libs.mux.MuxClient` says when and what came of it."""

    def __init__(
        self,
        pool: str,
        *,
        ring: Callable[..., Any],
        direct: Callable[[str], Callable[..., Any]],
        replicas: Callable[[], Sequence[str]],
    ) -> None:
        """:param ring: starts a stream where the mesh's ring says: `stub.Session`.

        :param direct: likewise, of a channel to an address.
        :param replicas: addresses of the admission processes that are known.
        """
        self._pool = pool
        self._ring = ring
        self._direct = direct
        self._replicas = replicas
        self._stubs: dict[str, Callable[..., Any]] = {}
        self._opened = True
        self._target = ""  # of the last attempt; empty: the ring's choice
        self._epoch = 0  # of the owner as which that target was named; 0: it was not
        self._beyond = 0  # the newest term whose owner did not take us
        self._named: tuple[str, int] | None = None  # by the last refusal: address and term of the owner

    def open(self) -> Any:
        """Starts the next stream."""
        self._choose()
        metadata = [("x-weir-pool", self._pool)]
        if self._beyond:
            metadata.append(("x-weir-beyond", f"{self._beyond:x}"))
        return self._start(self._target)(metadata=tuple(metadata))  # where nobody listens it fails at once

    def opened(self, generation: int) -> None:
        """The last stream that was started is open."""
        self._opened = True

    def refused(self, error: WeirError) -> None:
        """The last stream that was started was not taken."""
        if error.reason is Reason.NOT_OWNER:
            epoch, _, address = error.limit.partition("@")
            try:
                self._named = address, int(epoch, 16)
            except ValueError:
                self._named = None

    def _start(self, target: str) -> Callable[..., Any]:
        if not target:
            return self._ring
        start = self._stubs.pop(target, None) or self._direct(target)
        self._stubs[target] = start
        if len(self._stubs) > _CHANNELS:
            del self._stubs[next(iter(self._stubs))]
        return start

    def _choose(self) -> None:
        named, self._named = self._named, None
        if self._opened:
            self._opened, self._target, self._epoch, self._beyond = False, "", 0, 0
            return
        self._beyond = max(self._beyond, self._epoch)
        if named is not None and named[0]:
            self._target, self._epoch = named
            return
        if named is not None:  # nobody knows where it is
            self._beyond = max(self._beyond, named[1])
        places = ["", *self._replicas()]  # in turn, each after the one that has just failed
        after = places.index(self._target) + 1 if self._target in places else 0
        self._target, self._epoch = places[after % len(places)], 0
