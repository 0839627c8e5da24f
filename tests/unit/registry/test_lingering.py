"""Endpoints whose keys end: those that say so are gone, others stay for a while in which they may come back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import EndpointRegistration, MemoryStore, Put, RegistryView, keys
from libs.registry.lingering import TOGETHER, Lingering
from libs.registry.ports import WatchEvent
from libs.registry.snapshot import apply_events
from libs.resources.snapshot import RegistrySnapshot

NAMES = ("gateway-0", "gateway-1", "gateway-2")
SECONDS = 3.0


def put(instance: str, *, port: int = 7, leaving: bool = False) -> Put:
    endpoint = pb.Endpoint(service="gateway", instance=instance, address=f"127.0.0.1:{port}", leaving=leaving)
    return Put(keys.key_of(endpoint), keys.encode(endpoint))


def key(instance: str) -> str:
    return keys.key("endpoints", f"gateway/{instance}")


async def seen(view: RegistryView, store: MemoryStore) -> set[str]:
    """The instances that the view shows once it is where the store is."""
    snapshot = await view.wait_until(lambda snapshot: snapshot.revision == store.revision)
    return {instance for _, instance in snapshot.endpoints}


async def test_f2_endpoints_that_end_all_at_once_stay_until_they_come_back() -> None:
    store = MemoryStore()
    view = RegistryView(store, linger=3600)
    counts: list[int] = []
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        following = group.create_task(view.run())
        await store.txn(puts=[put(name) for name in NAMES])
        assert await seen(view, store) == {*NAMES}
        view.on_change(lambda snapshot: counts.append(len(snapshot.endpoints)))
        await store.txn(deletes=[key(name) for name in NAMES])
        assert await seen(view, store) == {*NAMES}
        assert view.under(keys.key("endpoints", "")) == [], "what the store has is told as it is"
        for name in NAMES:
            await store.txn(puts=[put(name, port=8)])
        assert await seen(view, store) == {*NAMES}
        assert {each.address for each in view.snapshot.endpoints_of("gateway")} == {"127.0.0.1:8"}
        assert set(counts) == {3}
        following.cancel()


def silent(names: Sequence[str], known: int, now: float = 0.0) -> tuple[Lingering, RegistrySnapshot]:
    """Of so many endpoints, those of these names have ended without a word."""
    lingering, others = Lingering(SECONDS), [f"other-{number}" for number in range(known - len(names))]
    puts = [WatchEvent(each.key, each.value, 1) for each in map(put, (*names, *others))]
    snapshot = apply_events(RegistrySnapshot(revision=1), puts, 1)
    assert lingering.sift(snapshot, [WatchEvent(key(name), None, 2) for name in names], now) == []
    return lingering, snapshot


MOST = [f"gateway-{number}" for number in range(4)]


def test_when_most_are_silent_it_is_the_way_to_them_and_all_are_given_longer() -> None:
    lingering, snapshot = silent(MOST, known=7)
    assert lingering.next == SECONDS * TOGETHER
    assert lingering.over(3, SECONDS * TOGETHER - 0.1) == []
    # Who has not come back with the others is gone.
    back = [WatchEvent(key(name), put(name).value, 3) for name in MOST[1:]]
    assert lingering.sift(snapshot, back, SECONDS + 1) == back
    assert lingering.next == SECONDS
    assert [event.key for event in lingering.over(4, SECONDS + 1)] == [key(MOST[0])]


def test_the_longest_that_most_are_waited_for() -> None:
    lingering, _ = silent(MOST, known=7)
    assert [event.key for event in lingering.over(3, SECONDS * TOGETHER)] == [key(name) for name in MOST]
    assert lingering.next is None


@pytest.mark.parametrize(("names", "known"), [(MOST, 8), (MOST[:3], 3)], ids=["half", "few"])
def test_half_of_them_or_a_few_may_well_be_gone(names: list[str], known: int) -> None:
    lingering, _ = silent(names, known)
    assert lingering.next == SECONDS
    assert len(lingering.over(3, SECONDS)) == len(names)


async def test_f2_an_endpoint_that_never_comes_back_is_gone_in_the_end() -> None:
    store = MemoryStore()
    view = RegistryView(store, linger=0.01)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        following = group.create_task(view.run())
        for name in NAMES:
            await store.txn(puts=[put(name)])
            await store.txn(deletes=[key(name)])
            await view.wait_until(lambda snapshot: snapshot.revision == store.revision and not snapshot.endpoints)
        following.cancel()


async def test_f2_one_that_leaves_is_gone_at_once() -> None:
    store = MemoryStore()
    view = RegistryView(store, linger=3600)
    registration = EndpointRegistration(store, pb.Endpoint(service="gateway", instance="gateway-0", address="::1:7"))
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        following = group.create_task(view.run())
        run = group.create_task(registration.run())
        await registration.wait_registered()
        assert await seen(view, store) == {"gateway-0"}
        registration.close()
        await run
        assert await seen(view, store) == set()
        following.cancel()


class Away(MemoryStore):
    """A store that seems to be away; `asked` is set when somebody has looked three times."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.looks, self.asked = False, 0, asyncio.Event()

    @property
    def available(self) -> bool:
        self.looks += self.away
        if self.looks == 3:
            self.asked.set()
        return not self.away


async def test_f2_while_the_store_is_away_nobody_is_given_up() -> None:
    store = Away()
    view = RegistryView(store, linger=0.01)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        following = group.create_task(view.run())
        await store.txn(puts=[put("gateway-0")])
        assert await seen(view, store) == {"gateway-0"}
        store.away = True
        await store.txn(deletes=[key("gateway-0")])
        await store.asked.wait()
        assert await seen(view, store) == {"gateway-0"}
        store.away = False
        await view.wait_until(lambda snapshot: not snapshot.endpoints)
        following.cancel()


CHANGES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("pld")), max_size=4)
STEPS = st.lists(st.tuples(st.floats(0, 4), CHANGES), max_size=12)


@given(STEPS)
def test_f2_who_is_shown_and_for_how_long(steps: list[tuple[float, list[tuple[str, str]]]]) -> None:
    """Against the rule: there, or gone without a word for less than the time."""
    lingering, snapshot, now, revision = Lingering(SECONDS), RegistrySnapshot(revision=1), 0.0, 1
    there: set[str] = set()
    unready: set[str] = set()
    until: dict[str, float] = {}
    for passed, changes in steps:
        now += passed
        until = {name: end for name, end in until.items() if end > now}
        snapshot = apply_events(snapshot, lingering.over(revision, now), revision)
        assert {instance for _, instance in snapshot.endpoints} == there | until.keys()
        for name, change in changes:
            revision += 1
            value = None if change == "d" else put(name, leaving=change == "l").value
            events = lingering.sift(snapshot, [WatchEvent(key(name), value, revision)], now)
            snapshot = apply_events(snapshot, events, revision)
            if change == "d" and name in there:
                until[name] = now + SECONDS
            elif change != "d":
                until.pop(name, None)
            there = there | {name} if change == "p" else there - {name}
            unready = unready | {name} if change == "l" else unready - {name}
            assert {instance for _, instance in snapshot.endpoints} == there | until.keys()
            assert {instance for _, instance in snapshot.unready} == unready
    assert (lingering.next is None) == (not until)
    now += SECONDS
    snapshot = apply_events(snapshot, lingering.over(revision, now), revision)
    assert {instance for _, instance in snapshot.endpoints} == there
    assert lingering.next is None
