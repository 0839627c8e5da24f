"""Answers in the store of records, as who asks it sees them: sealed, claimed, kept in the end."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.records.v1 import answers_pb2 as pb

from libs.clock import ManualClock
from libs.cursor import Keyring, new_key
from libs.errors import Reason, WeirError
from libs.idempotency import kept
from libs.idempotency.kept import MOST_ANSWER, KeptAnswers, Sealer

BODY = b"b" * 16
RING = Keyring([new_key()])


class Store:
    """Answers as it is told to, and remembers what it was asked."""

    def __init__(self, *states: pb.BeginResponse.State, answer: bytes = b"") -> None:
        self.states, self.answer = list(states), answer
        self.away = False
        self.kept: list[pb.KeepRequest] = []
        self.held = asyncio.Event()
        self.dropped = 0

    async def Begin(self, request: pb.BeginRequest, timeout: float) -> pb.BeginResponse:  # noqa: ASYNC109, N802
        self._here()
        return pb.BeginResponse(
            state=self.states.pop(0) if len(self.states) > 1 else self.states[0], answer=self.answer
        )

    async def Keep(self, request: pb.KeepRequest, timeout: float) -> pb.KeepResponse:  # noqa: ASYNC109, N802
        self._here()
        self.kept.append(request)
        return pb.KeepResponse(kept=True)

    async def Drop(self, request: pb.DropRequest, timeout: float) -> pb.DropResponse:  # noqa: ASYNC109, N802
        self.dropped += 1
        return pb.DropResponse()

    async def Hold(self, request: pb.HoldRequest, timeout: float) -> pb.HoldResponse:  # noqa: ASYNC109, N802
        self.held.set()
        return pb.HoldResponse()

    def _here(self) -> None:
        if self.away:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())


def answers(store: Store, ring: Keyring = RING) -> KeptAnswers:
    return KeptAnswers(store, holder="g1", keys=lambda: ring, life=100.0, timeout=1.0, clock=ManualClock())


@given(st.binary(max_size=200), st.binary(max_size=20), st.binary(max_size=20))
def test_what_is_sealed_opens_for_what_it_is_bound_to_and_with_any_key_of_the_ring(
    plain: bytes, bound: bytes, other: bytes
) -> None:
    sealed = Sealer(lambda: RING).seal(plain, bound)
    rotated = Keyring([new_key(), RING.signing])
    assert Sealer(lambda: rotated).open(sealed, bound) == plain
    if other != bound:
        assert Sealer(lambda: RING).open(sealed, other) is None
    assert Sealer(lambda: Keyring([new_key()])).open(sealed, bound) is None
    assert Sealer(lambda: RING).open(sealed[:-1], bound) is None
    if len(plain) > 4:
        assert plain not in sealed


async def test_it_is_waited_for_who_answers_and_his_answer_is_given() -> None:
    first = Store(pb.BeginResponse.STATE_BEGUN)
    one = answers(first)
    assert await one.begin("acme", "k", BODY) is None
    await one.keep("acme", "k", b"said")
    [request] = first.kept
    assert b"said" not in request.SerializeToString()
    running, ended = pb.BeginResponse.STATE_RUNNING, pb.BeginResponse.STATE_ENDED
    assert await answers(Store(running, running, ended, answer=request.answer)).begin("acme", "k", BODY) == b"said"
    with pytest.raises(WeirError, match="cannot be read"):
        await answers(Store(ended, answer=request.answer)).begin("acme", "another", BODY)


async def test_who_is_waited_for_in_vain_is_told_and_when_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    monkeypatch.setattr(kept.asyncio, "sleep", sleep)
    store = Store(pb.BeginResponse.STATE_RUNNING)
    waiting = KeptAnswers(store, holder="g1", keys=lambda: RING, life=100.0, timeout=1.0, clock=clock)
    with pytest.raises(WeirError) as told:
        await waiting.begin("acme", "k", BODY)
    assert (told.value.reason, told.value.retry_after) == (Reason.IDEMPOTENCY_CONFLICT, kept.LEASE)


async def test_what_is_too_large_is_said_to_be_and_nothing_runs_again() -> None:
    store = Store(pb.BeginResponse.STATE_BEGUN)
    one = answers(store)
    await one.begin("acme", "k", BODY)
    await one.keep("acme", "k", bytes(MOST_ANSWER + 1))
    assert store.kept[0].answer == b""
    with pytest.raises(WeirError, match="too large"):
        await answers(Store(pb.BeginResponse.STATE_ENDED)).begin("acme", "k", BODY)


async def test_a_store_that_is_away_is_no_answer_and_what_it_missed_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "_HOLD_SECONDS", 0.001)
    store = Store(pb.BeginResponse.STATE_BEGUN)
    one = answers(store)
    await one.begin("acme", "k", BODY)
    store.away = True
    with pytest.raises(WeirError) as told:
        await one.begin("acme", "other", BODY)
    assert (told.value.reason, told.value.limit) == (Reason.DEPENDENCY_UNAVAILABLE, "idempotency_key")
    await one.keep("acme", "k", b"said")
    assert not store.kept
    store.away = False
    await one.drain()
    assert len(store.kept) == 1


async def test_claims_are_held_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_HOLD_SECONDS", 0.001)
    store = Store(pb.BeginResponse.STATE_BEGUN)
    one = answers(store)
    holding = asyncio.create_task(one.run())
    await asyncio.sleep(0)
    assert not store.held.is_set()
    await one.begin("acme", "k", BODY)
    async with asyncio.timeout(10):
        await store.held.wait()
    one.drop("acme", "k")
    await one.drain()
    assert store.dropped == 1
    await asyncio.sleep(0.01)
    store.held.clear()
    await asyncio.sleep(0.01)
    assert not store.held.is_set()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
