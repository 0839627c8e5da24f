"""The log of changes behind `Watch`: every change once, whole, in order; and never a gap that nobody is told of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import KeyValue, Listing, MemoryStore, RegistryView, WatchBatch, WatchEvent, keys
from libs.resources.kinds import BY_PLURAL, KINDS
from services.registry import watching
from services.registry.listing import Listings, selector
from services.registry.watching import CHUNK, ChangeLog, Watch, require_known
from tests.support.registry_service import put, resource, tenant

JANE = Grant("operator:jane", frozenset())
TENANTS = BY_PLURAL["tenants"]
LIMITS = BY_PLURAL["limits"]


def key(name: str) -> str:
    return keys.key("tenants", name)


def event(name: str, revision: int, message: Message | None = None, **metadata: Any) -> WatchEvent:
    made = resource(message or pb.Tenant(id=name), **metadata)
    return WatchEvent(key(name), made.SerializeToString(), revision)


def gone(name: str, revision: int) -> WatchEvent:
    return WatchEvent(key(name), None, revision)


class Script:
    """A `Source` that says what it is told to, and lets the test wait until the view knows it."""

    available = True

    def __init__(self, *kvs: KeyValue, revision: int = 1) -> None:
        self._listing = Listing(kvs, revision)
        self._said: asyncio.Queue[WatchBatch] = asyncio.Queue()
        self.view = RegistryView(self)

    async def get_prefix(self, prefix: str, *, since: int = 0) -> Listing:
        return self._listing

    async def watch(
        self, prefix: str, start_revision: int, *, known: Mapping[str, int] | None = None
    ) -> AsyncGenerator[WatchBatch, None]:
        while True:
            yield await self._said.get()

    async def close(self) -> None:
        pass

    async def say(self, revision: int, *events: WatchEvent, merged: bool = False) -> None:
        self._said.put_nowait(WatchBatch(revision, events, merged))
        async with asyncio.timeout(5):
            await self.view.wait_until(lambda snapshot: snapshot.revision == revision)


@contextlib.asynccontextmanager
async def logged(script: Script, kept: int = 1000) -> AsyncIterator[tuple[ChangeLog, Listings]]:
    listings = Listings(script.view, lambda: "list")
    log = ChangeLog(script.view, listings, kept=kept)
    task = asyncio.create_task(script.view.run())
    async with asyncio.timeout(20):
        await script.view.wait_ready()
        yield log, listings
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def brief(response: pb.WatchResponse) -> tuple[int, list[str], list[str]]:
    return (
        response.revision,
        [each.metadata.name for each in response.resources],
        [each.name for each in response.deleted],
    )


async def taken(responses: Any, count: int) -> list[tuple[int, list[str], list[str]]]:
    async with asyncio.timeout(5):
        return [brief(await anext(responses)) for _ in range(count)]


async def ended(responses: Any) -> WeirError:
    with pytest.raises(WeirError) as caught:
        await taken(responses, 1)
    assert caught.value.reason is Reason.REVISION_GONE
    return caught.value


async def test_from_nothing_there_is_first_what_is_there_and_then_what_changes() -> None:
    script = Script(KeyValue(key("a"), event("a", 1).value or b"", 1), revision=4)
    async with logged(script) as (log, listings):
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(0)) as responses:
            assert await taken(responses, 1) == [(4, ["a"], [])]
            await script.say(5, event("b", 5), event("c", 5))
            await script.say(6, gone("a", 6))
            assert await taken(responses, 2) == [(5, ["b", "c"], []), (6, [], ["a"])]
        for start, expected in ((5, [5, 6]), (6, [6])):
            async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(start)) as responses:
                assert [revision for revision, _, _ in await taken(responses, len(expected))] == expected


async def test_a_batch_of_several_transactions_is_told_as_those() -> None:
    """A registry that was behind for a moment gets them in one; a worker that started anew is both gone and there."""
    script = Script()
    async with logged(script) as (log, listings):
        await script.say(9, event("a", 5), event("b", 5), gone("a", 7), event("a", 9))
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(2)) as responses:
            assert await taken(responses, 3) == [(5, ["a", "b"], []), (7, [], ["a"]), (9, ["a"], [])]
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(6)) as responses:
            assert await taken(responses, 2) == [(7, [], ["a"]), (9, ["a"], [])]


async def test_bookmarks_tell_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BOOKMARK", 0.01)
    script = Script(revision=3)
    async with (
        logged(script) as (log, listings),
        aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(0)) as responses,
    ):
        assert await taken(responses, 2) == [(3, [], [])] * 2
        # What is none of its business moves the revision on all the same.
        limits = pb.Limits(tenant="a", model="*")
        await script.say(8, WatchEvent(keys.key_of(limits), keys.encode(limits), 8))
        async with asyncio.timeout(5):
            while (answer := await anext(responses)).revision < 8:
                assert not answer.resources
        assert brief(answer) == (8, [], [])


async def test_only_the_kinds_that_are_asked_for() -> None:
    script = Script()
    async with logged(script) as (log, listings):
        limits = pb.Limits(tenant="a", model="*")
        told = WatchEvent(keys.key_of(limits), keys.encode(limits), 5)
        await script.say(5, event("a", 5), told, WatchEvent(keys.FENCE, b"x", 5))
        await script.say(6, WatchEvent(keys.AUDIT_OUTBOX + "1", None, 6))
        await script.say(7, gone("a", 7), WatchEvent(told.key, None, 7))
        for kinds, names in (([TENANTS], ["a"]), ([LIMITS], ["a/*"]), (KINDS, ["a", "a/*"])):
            async with aclosing(Watch(log, listings, kinds, grant=JANE).responses(2)) as responses:
                assert await taken(responses, 2) == [(5, names, []), (7, [], names)]


async def test_what_loses_its_label_is_deleted_for_those_who_asked_for_it() -> None:
    first = event("a", 2, labels={"team": "search"})
    script = Script(KeyValue(first.key, first.value or b"", 2), KeyValue(key("b"), event("b", 2).value or b"", 2))
    async with logged(script) as (log, listings):
        watch = Watch(log, listings, [TENANTS], grant=JANE, matches=selector("team=search"))
        async with aclosing(watch.responses(0)) as responses:
            assert await taken(responses, 1) == [(1, ["a"], [])]
            await script.say(5, event("b", 5, labels={"team": "search"}))
            await script.say(6, event("a", 6, labels={"team": "ads"}), event("c", 6))
            assert await taken(responses, 2) == [(5, ["b"], []), (6, [], ["a", "c"])]


async def test_secrets_are_for_those_who_are_trusted_with_them() -> None:
    script = Script()
    async with logged(script) as (log, listings):
        made = pb.ApiKey(id="k", tenant="acme", hash=b"secret")
        await script.say(5, WatchEvent(keys.key_of(made), keys.encode(made), 5))
        for trusted, expected in (("edge-auth", b"secret"), ("gateway", b""), ("", b""), ("edge-auth", b"secret")):
            for start in (0, 5):
                watch = Watch(log, listings, [BY_PLURAL["keys"]], grant=Grant(trusted, frozenset(), trusted=trusted))
                async with aclosing(watch.responses(start)) as responses:
                    assert (await anext(responses)).resources[0].key.hash == expected, (trusted, start)


async def test_what_is_kept_is_bounded_and_what_is_not_kept_is_said() -> None:
    script = Script(revision=1)
    async with logged(script, kept=10) as (log, listings):
        slow = Watch(log, listings, [TENANTS], grant=JANE).responses(0)
        assert await taken(slow, 1) == [(1, [], [])]
        # The fence and the outbox that change along are no reason to keep less.
        for revision in range(2, 102):
            others = (WatchEvent(keys.FENCE, b"x", revision), WatchEvent(keys.AUDIT_OUTBOX + "1", b"x", revision))
            await script.say(revision, event("a", revision), *others)
        assert [entry.revision for entry in log.behind(91)] == list(range(92, 102))
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(92)) as responses:
            assert [each[0] for each in await taken(responses, 10)] == list(range(92, 102))
        error = await ended(Watch(log, listings, [TENANTS], grant=JANE).responses(91))
        assert "from revision 92" in error.message
        # So is one that was here from the beginning, and did not read.
        await ended(slow)


async def test_one_transaction_larger_than_the_log_is_kept_whole() -> None:
    script = Script()
    async with logged(script, kept=10) as (log, listings):
        await script.say(5, *(event(f"t{number}", 5) for number in range(50)))
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(2)) as responses:
            assert len((await taken(responses, 1))[0][1]) == 50


@pytest.mark.parametrize("revision", [4, 9, 12])
async def test_a_merged_batch_ends_every_watch(revision: int) -> None:
    """Of what came and went in between nobody here knows; of a restored store the revisions are another history's."""
    script = Script(revision=1)
    async with logged(script) as (log, listings):
        await script.say(9, event("a", 9))
        open_one = Watch(log, listings, [TENANTS], grant=JANE).responses(0)
        assert await taken(open_one, 1) == [(9, ["a"], [])]
        waiting = asyncio.create_task(ended(open_one))
        await asyncio.sleep(0)
        await script.say(revision, event("b", 3), merged=True)
        await waiting
        await ended(Watch(log, listings, [TENANTS], grant=JANE).responses(min(revision, 9)))
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(0)) as responses:
            assert await taken(responses, 1) == [(revision, ["a", "b"], [])]
            await script.say(revision + 1, event("c", revision + 1))
            assert await taken(responses, 1) == [(revision + 1, ["c"], [])]


async def test_revisions_that_go_back_are_another_history_also_behind_what_nobody_followed() -> None:
    script = Script(revision=1)
    async with logged(script) as (log, listings):
        await script.say(5, event("a", 5))
        await script.say(9, WatchEvent(keys.FENCE, b"x", 9))
        watch = Watch(log, listings, [TENANTS], grant=JANE).responses(6)
        waiting = asyncio.create_task(ended(watch))
        await asyncio.sleep(0)
        await script.say(7, event("b", 7))
        await waiting


async def test_what_cannot_be_read_is_gone_for_watchers_as_for_everybody() -> None:
    script = Script()
    async with logged(script) as (log, listings):
        await script.say(5, event("a", 5), event("b", 5))
        await script.say(6, WatchEvent(key("a"), b"\xff", 6), WatchEvent(key("b"), event("x", 6).value, 6))
        assert not script.view.snapshot.tenants
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(5)) as responses:
            assert await taken(responses, 2) == [(5, ["a", "b"], []), (6, [], ["a", "b"])]
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(0)) as responses:
            assert await taken(responses, 1) == [(6, [], [])]


async def test_a_long_list_comes_in_messages_of_one_revision() -> None:
    kvs = [KeyValue(key(f"t{number:04}"), event(f"t{number:04}", 2).value or b"", 2) for number in range(CHUNK + 1)]
    script = Script(*kvs, revision=2)
    async with (
        logged(script) as (log, listings),
        aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(0)) as responses,
    ):
        first, last = await anext(responses), await anext(responses)
        assert [len(each.resources) for each in (first, last)] == [CHUNK, 1]
        assert [each.more for each in (first, last)] == [True, False]
        assert first.revision == last.revision == 2


async def test_a_revision_of_another_history_is_refused_and_one_to_come_is_waited_for() -> None:
    store, script = MemoryStore(), Script(revision=5)
    async with logged(script) as (log, _):
        await require_known(store, log, 6)
        with pytest.raises(WeirError) as caught:
            await require_known(store, log, 7)
        assert caught.value.reason is Reason.REVISION_GONE
        # The store is ahead of us: it will come.
        for _ in range(9):
            await put(store, tenant())
        await require_known(store, log, 8)
        store.set_available(False)
        await require_known(store, log, 1000)


STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=3, unique_by=lambda each: each[0]),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.data())
def test_whoever_comes_whenever_ends_with_the_same(steps: list[list[tuple[str, bool]]], data: st.DataObject) -> None:
    """What a watcher has at its revision, and what it is sent from there on, is what is there; batched at random."""

    async def play() -> None:
        script = Script(revision=1)
        states: dict[int, set[str]] = {1: set()}
        async with logged(script) as (log, listings):
            events: list[WatchEvent] = []
            for revision, step in enumerate(steps, start=2):
                there = set(states[revision - 1])
                for name, alive in step:
                    there = there | {name} if alive else there - {name}
                    events.append(event(name, revision) if alive else gone(name, revision))
                states[revision] = there
                if data.draw(st.booleans(), label="now") or revision == len(steps) + 1:
                    await script.say(revision, *events)
                    events = []
            end = len(steps) + 1
            for start, there in states.items():
                async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(start + 1)) as responses:
                    have, reached = set(there), start
                    while reached < end:
                        answer = await anext(responses)
                        assert answer.revision > reached
                        reached = answer.revision
                        have |= {each.metadata.name for each in answer.resources}
                        have -= {each.name for each in answer.deleted}
                    assert have == states[end]

    asyncio.run(play())
