"""Answers in the store of records, as who asks it sees them: sealed, claimed, kept in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.records.v1 import answers_pb2 as pb

from libs.clock import Clock, ManualClock
from libs.cursor import Keyring, KeyringFile, new_key
from libs.errors import Reason, WeirError
from libs.idempotency import Keyed, kept
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


class Ring(KeyringFile):
    """Keys that no file holds."""

    def __init__(self, keys: Keyring) -> None:
        super().__init__("")
        self.keys = keys


def answers(store: Store | None, ring: Keyring = RING, clock: Clock | None = None) -> KeptAnswers:
    clock = clock or ManualClock()
    return KeptAnswers(store, holder="g1", keys=Ring(ring), life=100.0, timeout=1.0, clock=clock)


async def given_for(one: KeptAnswers, key: str = "k", make: Callable[[], bytes] = lambda: b"said") -> bytes:
    """What a key stands for, or stands for from now on."""
    known = Keyed[asyncio.Future[bytes]](most_size=2**30, life=100.0)
    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with one.answering(known, known.put("acme", key, BODY, told, 0.0), told) as claim:
        answer = await claim.begin(bytes)
        if answer is None:
            await claim.keep(answer := make())
        told.set_result(answer)
    assert (known.find("acme", key, BODY) is told) is claim.kept
    return await told


def fails() -> bytes:
    raise WeirError(Reason.QUOTA_TOKENS, "none left")


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
    assert await given_for(answers(first)) == b"said"
    [request] = first.kept
    assert b"said" not in request.SerializeToString()
    running, ended = pb.BeginResponse.STATE_RUNNING, pb.BeginResponse.STATE_ENDED
    assert await given_for(answers(Store(running, running, ended, answer=request.answer)), make=fails) == b"said"
    with pytest.raises(WeirError, match="cannot be read"):
        await given_for(answers(Store(ended, answer=request.answer)), "another")


async def test_keys_of_a_process_alone_are_nobody_elses() -> None:
    alone = answers(None)
    assert await given_for(alone) == b"said"
    with pytest.raises(WeirError, match="none left"):
        await given_for(alone, make=fails)
    await alone.drain()


async def test_who_is_waited_for_in_vain_is_told_and_when_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)

    monkeypatch.setattr(kept.asyncio, "sleep", sleep)
    with pytest.raises(WeirError) as told:
        await given_for(answers(Store(pb.BeginResponse.STATE_RUNNING), clock=clock))
    assert (told.value.reason, told.value.retry_after) == (Reason.IDEMPOTENCY_CONFLICT, kept.LEASE)


async def test_what_is_too_large_is_said_to_be_and_nothing_runs_again() -> None:
    store = Store(pb.BeginResponse.STATE_BEGUN)
    await given_for(answers(store), make=lambda: bytes(MOST_ANSWER + 1))
    assert store.kept[0].answer == b""
    with pytest.raises(WeirError, match="too large"):
        await given_for(answers(Store(pb.BeginResponse.STATE_ENDED)), make=fails)


async def test_what_fails_stands_for_nothing_and_a_fault_of_ours_is_told_without_its_words() -> None:
    store = Store(pb.BeginResponse.STATE_BEGUN)
    one = answers(store)
    for make, reason in ((fails, Reason.QUOTA_TOKENS), (lambda: bytes.fromhex("secret"), Reason.INTERNAL)):
        with pytest.raises(WeirError) as told:
            await given_for(one, make=make)
        assert told.value.reason is reason
        assert "secret" not in str(told.value)
    await one.drain()
    assert (store.dropped, store.kept) == (2, [])


async def test_a_store_that_is_away_is_no_answer_and_what_it_missed_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "_HOLD_SECONDS", 0.001)
    store = Store(pb.BeginResponse.STATE_BEGUN)
    one = answers(store)

    def made_while_it_goes() -> bytes:
        store.away = True
        return b"said"

    assert await given_for(one, make=made_while_it_goes) == b"said"
    assert not store.kept
    with pytest.raises(WeirError) as told:
        await given_for(one, "other")
    assert (told.value.reason, told.value.limit) == (Reason.DEPENDENCY_UNAVAILABLE, "idempotency_key")
    store.away = False
    await one.drain()
    assert len(store.kept) == 1


async def test_claims_are_held_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_HOLD_SECONDS", 0.001)
    store = Store(pb.BeginResponse.STATE_BEGUN)
    one, going = answers(store), asyncio.Event()
    holding = asyncio.create_task(one.run())
    known = Keyed[asyncio.Future[bytes]](most_size=100, life=100.0)

    async def answer(told: asyncio.Future[bytes]) -> None:
        async with one.answering(known, known.put("acme", "k", BODY, told, 0.0), told) as claim:
            await claim.begin(bytes)
            await going.wait()

    told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    answering = asyncio.create_task(answer(told))
    async with asyncio.timeout(10):
        await store.held.wait()
    going.set()
    await answering
    assert told.cancelled()
    await one.drain()
    assert store.dropped == 1
    await asyncio.sleep(0.01)
    store.held.clear()
    await asyncio.sleep(0.01)
    assert not store.held.is_set()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding


async def test_keys_that_change_are_taken_up_and_broken_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "_HOLD_SECONDS", 0.001)
    path, new = tmp_path / "answers", new_key()
    path.write_text(f"{RING.signing.hex()}\n")
    ring = KeyringFile(str(path))
    one = KeptAnswers(None, holder="g1", keys=ring, life=100.0, timeout=1.0, clock=ManualClock())
    running = asyncio.create_task(one.run())
    path.write_text("no key\n")
    await asyncio.sleep(0.01)
    assert (ring.keys.signing, running.done()) == (RING.signing, False)
    path.write_text(f"{new.hex()}\n{RING.signing.hex()}\n")
    async with asyncio.timeout(10):
        while ring.keys.signing != new:  # noqa: ASYNC110 - a file is looked at
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
