"""Whole answers under idempotency keys: made once, joined, given again, and counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from weir.records.v1 import answers_pb2 as pb

from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.idempotency import KeptAnswers, Keyed, KeyedCalls
from tests.unit.idempotency.test_kept import BODY, RING, Ring, Store

OTHER = b"o" * 16


class Made:
    """How often it was asked to make an answer, which comes when `going` is set."""

    def __init__(self) -> None:
        self.times = 0
        self.going = asyncio.Event()
        self.going.set()
        self.error: WeirError | None = None

    async def __call__(self) -> str:
        self.times += 1
        await self.going.wait()
        if self.error is not None:
            raise self.error
        return f"made {self.times}"


class Calls:
    """Of a process whose store is told what to say."""

    def __init__(self, store: Store | None = None, keyed: Keyed[Any] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.made = Made()
        self.calls: KeyedCalls[str] = KeyedCalls(
            Keyed(most_size=2**20, life=100.0) if keyed is None else keyed,
            KeptAnswers(store, holder="g1", keys=Ring(RING), life=100.0, timeout=1.0, clock=ManualClock()),
            str.encode,
            bytes.decode,
            outcomes=Counter("keyed", "Calls.", ["outcome"], registry=self.registry),
            clock=ManualClock(),
        )

    async def answer(self, key: str = "k", body: bytes = BODY) -> tuple[str, bool]:
        return await self.calls.answer("acme", key, body, self.made)

    @property
    def counted(self) -> dict[str, float]:
        names = ("began", "joined", "replayed", "conflict")
        found = {name: self.registry.get_sample_value("keyed_total", {"outcome": name}) for name in names}
        return {name: value for name, value in found.items() if value}


async def test_it_is_made_once_whoever_joins_whoever_leaves_and_whoever_comes_back() -> None:
    calls = Calls()
    calls.made.going.clear()
    first, second = (asyncio.create_task(calls.answer()) for _ in "ab")
    while not calls.made.times:  # noqa: ASYNC110 - the loop's turns are what is waited for
        await asyncio.sleep(0)
    first.cancel()
    calls.made.going.set()
    assert await second == ("made 1", True)
    assert await calls.answer() == ("made 1", True)
    assert calls.made.times == 1
    assert calls.counted == {"joined": 1, "replayed": 1}
    await calls.calls._kept.drain()


async def test_another_request_is_a_conflict_and_counted_here_and_in_the_store() -> None:
    calls = Calls()
    assert await calls.answer() == ("made 1", False)
    elsewhere = Calls(Store(pb.BeginResponse.STATE_CONFLICT))
    for one, body in ((calls, OTHER), (elsewhere, BODY)):
        with pytest.raises(WeirError) as told:
            await one.answer(body=body)
        assert told.value.reason is Reason.IDEMPOTENCY_CONFLICT
    assert calls.counted == {"began": 1, "conflict": 1}
    assert elsewhere.counted == {"conflict": 1}


async def test_a_key_is_no_other_kinds_meanwhile() -> None:
    keyed: Keyed[Any] = Keyed(most_size=2**20, life=100.0)
    one, other = Calls(keyed=keyed), Calls(keyed=keyed)
    await one.answer()
    with pytest.raises(WeirError, match="another request"):
        await other.answer(body=OTHER)


async def test_what_failed_is_made_anew_and_what_another_process_gave_is_given_again() -> None:
    store = Store(pb.BeginResponse.STATE_BEGUN)
    calls = Calls(store)
    calls.made.error = WeirError(Reason.QUOTA_TOKENS, "none left")
    with pytest.raises(WeirError, match="none left"):
        await calls.answer()
    calls.made.error = None
    assert await calls.answer() == ("made 2", False)
    assert store.dropped == 1
    after = Calls(Store(pb.BeginResponse.STATE_ENDED, answer=store.kept[0].answer))
    assert await after.answer() == ("made 2", True)
    assert (after.made.times, after.counted) == (0, {"replayed": 1})


async def test_an_answer_in_a_form_that_is_not_ours_is_a_conflict_and_not_remembered() -> None:
    store = Store(pb.BeginResponse.STATE_BEGUN)
    calls = Calls(store)
    calls.calls._pack = lambda _: b"\xff"
    await calls.answer()
    keyed: Keyed[Any] = Keyed(most_size=2**20, life=100.0)
    after = Calls(Store(pb.BeginResponse.STATE_ENDED, answer=store.kept[0].answer), keyed)
    with pytest.raises(WeirError, match="cannot be read"):
        await after.answer()
    assert not len(keyed)
