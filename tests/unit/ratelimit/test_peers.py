"""A replica that missed something hears of it again, also when nothing more is decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2

from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.quota import Ledger, Replica
from services.ratelimit.peers import Peers

OTHER = {"b": registry_pb2.Endpoint(service="ratelimit", instance="b", address="10.0.0.1:1")}


class Line:
    """A `Link` and its `MuxClient`: remembers what was told and how to answer it."""

    def __init__(self) -> None:
        self.mux = self
        self.connected = True
        self.full = False
        self.told: list[int] = []
        self.answer: Callable[[Any, WeirError | None], None]

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def call(self, item: Any, **_: Any) -> Any:
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "no state here")

    def call_nowait(self, item: Any, *, on_reply: Callable[[Any, WeirError | None], None], **_: Any) -> None:
        if self.full:
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "full")
        self.told.append(item.replicate.sequence)
        self.answer = on_reply


class One:
    """A replica with one peer."""

    def __init__(self) -> None:
        self.line = Line()
        self.clock = ManualClock(start=100.0)
        self.replica = Replica(Ledger(part=("a", "1"), track_changes=True))
        self.peers = Peers(
            instance="a",
            replica=self.replica,
            open_link=lambda address: self.line,  # type: ignore[arg-type, return-value]
            now=lambda: 0,
            clock=self.clock,
            peer_seconds=5.0,
            join_seconds=1.0,
            hear_seconds=1.0,
        )

    def decide(self) -> None:
        self.replica.ledger.admit_edge("acme", requests=1, tokens=0, now=0)
        logged = self.replica.flush(0)
        assert logged is not None
        self.peers.send(logged)


@pytest.fixture
async def one() -> AsyncIterator[One]:
    made = One()
    running = asyncio.create_task(made.peers.run())
    await asyncio.sleep(0)
    made.peers.update(OTHER)
    yield made
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_who_was_away_is_told_the_last_batch_when_it_is_back(one: One) -> None:
    one.line.connected = False
    one.decide()
    one.decide()
    one.peers.remind()
    assert one.line.told == []
    one.line.connected = True
    one.peers.remind()
    one.peers.remind()
    assert one.line.told == [2]


@pytest.mark.parametrize("full", [True, False])
async def test_who_could_not_be_told_in_time_is_told_again_until_it_answers(one: One, full: bool) -> None:
    one.line.full = full
    one.decide()
    if not full:
        one.line.answer(None, WeirError(Reason.DEADLINE_EXCEEDED, "hung"))
    one.line.full = False
    one.peers.remind()
    assert one.line.told[-1:] == [1]
    one.line.answer(None, WeirError(Reason.DEADLINE_EXCEEDED, "hung"))
    one.line.told.clear()
    one.peers.remind()
    assert one.line.told == [1]
    one.line.answer(object(), None)
    one.peers.remind()
    assert one.line.told == [1]


async def test_nobody_waits_for_who_has_left(one: One) -> None:
    one.decide()
    one.peers.update({})
    one.line.answer(None, WeirError(Reason.DEADLINE_EXCEEDED, "gone"))
    one.peers.remind()
    one.decide()
    assert one.line.told == [1]


async def test_d4_who_hears_no_majority_knows_it_and_who_does_again(one: One) -> None:
    assert one.peers.sides == 1
    one.decide()
    one.clock.advance(0.9)
    assert one.peers.sides == 1
    one.clock.advance(0.2)  # no answer to what was told
    assert one.peers.sides == 2
    one.line.answer(object(), None)
    assert one.peers.sides == 1
    one.line.connected = False
    assert one.peers.sides == 1
    one.clock.advance(1.1)
    assert one.peers.sides == 2
    one.line.connected = True
    assert one.peers.sides == 1
