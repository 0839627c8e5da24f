"""One pool's credits at the gateway: what its owner is told of them, and when."""

from __future__ import annotations

from typing import Any

import pytest
from weir.admission.v1 import admission_pb2 as pb

from libs.clock import ManualClock
from libs.deadlines import Deadline, to_duration
from libs.errors import Reason, WeirError
from services.gateway.clients.credits import PoolCredits, ask_of

ADMIT = pb.Admit(
    request_id="r0",
    tenant="acme",
    pool="fast",
    model_version="m@1",
    prompt_tokens=10,
    max_output_tokens=10,
    choices=1,
    queue_class=pb.QUEUE_CLASS_PAID,
)


class Stream:
    """Stands for the `MuxClient`: what is written on it."""

    def __init__(self) -> None:
        self.connected = True
        self.generation = 1
        self.full = False
        self.written: list[tuple[pb.AdmissionCall, bool]] = []
        self.replies: list[Any] = []

    def call_nowait(self, item: pb.AdmissionCall, *, on_reply: Any, lazy: bool, **more: Any) -> None:
        if self.full:
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "full")
        self.written.append((item, lazy))
        self.replies.append(on_reply)


class Gateway:
    def __init__(self, credits: int) -> None:
        self.clock = ManualClock()
        self.stream = Stream()
        self.credits = PoolCredits(self.stream, clock=self.clock, end_timeout=10.0)  # type: ignore[arg-type]
        ask = ask_of(ADMIT)
        assert ask is not None
        self.ask = ask
        for _ in range(3):  # often enough for credits to be wanted
            self.wanted = self.credits.asking(pb.AdmissionCall(admit=ADMIT), ask)
        self.credits.answered(ask, self.wanted, self.reply(credits))

    def reply(self, credits: int, **more: Any) -> pb.AdmissionReply:
        reply = pb.AdmissionReply(**more)
        for number in range(credits):
            reply.granted.credits.append(
                pb.Credit(
                    id=f"c{number}",
                    granted=pb.Granted(worker="w0", grant=pb.SignedGrant(grant=b"g", mac=b"m")),
                    prompt_tokens=16,
                    max_output_tokens=10,
                    lifetime=to_duration(1.0),
                )
            )
        return reply

    def run(self, seconds: float = 60.0) -> pb.Granted | None:
        return self.credits.run(ADMIT, self.ask, deadline=Deadline.after(seconds, self.clock), traceparent="")

    def released(self) -> list[tuple[str, bool]]:
        return [
            (call.release.request_id, lazy) for call, lazy in self.stream.written if call.WhichOneof("op") == "release"
        ]


def test_a_request_runs_on_a_credit_that_is_signed_over_to_it_and_told_lazily() -> None:
    gateway = Gateway(credits=3)
    granted = gateway.run()
    assert granted is not None
    assert (granted.grant.holder.request_id, granted.grant.holder.tenant) == ("r0", "acme")
    ((call, lazy),) = gateway.stream.written
    assert (call.admit.request_id, call.admit.credit, lazy) == ("r0", "c0", True)


def test_what_may_end_soon_is_told_of_at_once() -> None:
    gateway = Gateway(credits=3)
    gateway.run(seconds=0.5)
    assert [lazy for _, lazy in gateway.stream.written] == [False]


def test_a_use_is_told_at_once_when_the_next_request_would_find_none() -> None:
    gateway = Gateway(credits=1)
    gateway.run()
    ((call, lazy),) = gateway.stream.written
    assert (call.admit.credits, lazy) == (1, False)


def test_a_credit_that_has_run_out_goes_back_and_a_request_asks() -> None:
    gateway = Gateway(credits=2)
    gateway.clock.advance(0.75)
    assert gateway.run() is None
    assert gateway.released() == [("c0", True), ("c1", True)]


@pytest.mark.parametrize("rejected", [False, True])
def test_when_others_wait_all_go_back_at_once(rejected: bool) -> None:
    gateway = Gateway(credits=2)
    reply = gateway.reply(0, contended=True)
    if rejected:
        reply.rejected.SetInParent()
    gateway.credits.answered(gateway.ask, 0, reply)
    assert gateway.released() == [("c0", False), ("c1", False)]
    assert gateway.run() is None


def test_a_request_asks_when_its_use_cannot_be_told() -> None:
    gateway = Gateway(credits=2)
    gateway.stream.full = True
    assert gateway.run() is None


def test_without_a_stream_and_on_another_one_none_is_used() -> None:
    gateway = Gateway(credits=2)
    gateway.stream.connected = False
    assert gateway.run() is None
    gateway.stream.connected, gateway.stream.generation = True, 2
    assert gateway.run() is None
    gateway.credits.answered(gateway.ask, 0, gateway.reply(0))
    assert gateway.run() is None
    assert gateway.released() == [], "another process may own the pool now"
