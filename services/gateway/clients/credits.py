"""One pool's credits at this gateway (`libs.credits`), between its requests and the stream to the pool's owner."""

from __future__ import annotations

import math

from weir.admission.v1 import admission_pb2 as pb

from libs.clock import Clock
from libs.credits import Ask, Credit, Purse
from libs.deadlines import Deadline, to_seconds
from libs.errors import WeirError
from libs.mux import MuxClient, Semantics, tell

_USABLE = 0.75
"""Of a credit's time: the rest is for the way to its worker."""
_SOON = 1.0
"""Seconds: what may end as soon is told of at once, or its end would be heard of first."""
_CLASSES = frozenset({pb.QUEUE_CLASS_PAID, pb.QUEUE_CLASS_FREE})


def ask_of(request: pb.Admit) -> Ask | None:
    """What the request needs of a credit; None where only the owner may decide: a budget or an earlier worker counts,
    or nobody is in a hurry."""
    only_the_owner = (
        request.queue_class not in _CLASSES
        or request.choices != 1
        or request.kv_share
        or request.version_share
        or request.resumed_tokens
        or request.exclude_workers
    )
    if only_the_owner:
        return None
    return Ask(
        (request.model_version, request.queue_class, tuple(request.zones)),
        request.prompt_tokens,
        request.max_output_tokens,
        request.prefix_hashes,
        request.prefix_block,
        to_seconds(request.ttft_target) if request.HasField("ttft_target") else math.inf,
    )


class PoolCredits:
    """See the module. Each `asking` is followed by one `answered`."""

    def __init__(self, mux: MuxClient, *, clock: Clock, end_timeout: float) -> None:
        self._mux = mux
        self._clock = clock
        self._end_timeout = end_timeout
        self._purse: Purse[pb.Credit] = Purse()
        self._generation = 0  # of the stream that the credits came on

    def run(self, request: pb.Admit, ask: Ask, *, deadline: Deadline, traceparent: str) -> pb.Granted | None:
        """The grant of a credit that suits the request, of which the owner is told; None: it is to be asked."""
        credit = self._take(ask)
        self._release(self._purse.run_out(), lazy=True)
        if credit is None:
            return None
        call = pb.AdmissionCall(admit=request)
        call.admit.credit = credit.id
        wanted = self.asking(call, ask)
        try:
            self._mux.call_nowait(
                call,
                deadline=deadline,
                semantics=Semantics.RETRY,
                on_reply=lambda reply, _: self.answered(ask, wanted, reply),
                traceparent=traceparent,
                lazy=not self._purse.low(ask) and deadline.remaining(self._clock) > _SOON,
            )
        except WeirError:
            self.answered(ask, wanted, None)
            return None
        granted = credit.granted
        granted.grant.holder.request_id, granted.grant.holder.tenant = request.request_id, request.tenant
        self._purse.placed(ask, granted.worker)
        return granted

    def asking(self, call: pb.AdmissionCall, ask: Ask) -> int:
        """The call about this request is going to be written: it asks for so many credits."""
        wanted = self._purse.wanted(ask, self._clock.monotonic())
        if wanted:
            call.admit.credits = wanted
        return wanted

    def answered(self, ask: Ask, wanted: int, reply: pb.AdmissionReply | None) -> None:
        """What came of it; None: nothing."""
        purse, now = self._purse, self._clock.monotonic()
        if reply is None:
            purse.put(ask, wanted)
            return
        if self._generation != self._mux.generation:
            self._generation = self._mux.generation
            purse.empty()  # another process may own the pool
        granted = reply.granted
        if granted.grant.mac:
            purse.placed(ask, granted.worker)
        purse.put(ask, wanted, [_credit(each, now) for each in granted.credits])
        self.released(reply, None)

    def released(self, reply: pb.AdmissionReply | None, error: WeirError | None) -> None:
        """A share was given back, or nobody heard of it."""
        if reply is not None and reply.contended:
            self.give_back()

    def give_back(self) -> None:
        """Somebody waits for the room, or what was granted is not taken any more. What is not taken back runs out."""
        self._release(self._purse.empty(), lazy=False)

    def _release(self, credits: list[pb.Credit], *, lazy: bool) -> None:
        for credit in credits:
            call = pb.AdmissionCall(release=pb.Release(request_id=credit.id, unused=True))
            tell(self._mux, call, deadline=Deadline.after(self._end_timeout, self._clock), lazy=lazy)

    def _take(self, ask: Ask) -> pb.Credit | None:
        if not self._mux.connected or self._generation != self._mux.generation:
            return None
        return self._purse.take(ask, self._clock.monotonic())


def _credit(given: pb.Credit, now: float) -> Credit[pb.Credit]:
    return Credit(
        given,
        given.granted.worker,
        given.prompt_tokens,
        given.max_output_tokens,
        now + _USABLE * to_seconds(given.lifetime),
        given.indifferent_tokens,
        to_seconds(given.granted.predicted_first_token),
    )
