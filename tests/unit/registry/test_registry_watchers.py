"""What watchers and readers may cost, and how they know that somebody is there."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import MemoryStore, Put, RegistryView, WatchEvent, keys
from libs.resources.kinds import BY_PLURAL
from services.registry import listing, watching
from services.registry.listing import selector
from services.registry.watching import ChangeLog, Watch, require_reached
from tests.unit.registry.test_registry_watching import Script, event, key, logged, taken

JANE = Grant("operator:jane", frozenset())
TENANTS = BY_PLURAL["tenants"]


async def test_a_watcher_of_what_rests_hears_of_it_while_others_change_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "BOOKMARK", 0.05)
    script = Script(revision=3)
    limits = pb.Limits(tenant="a", model="*")

    async def others() -> None:
        for revision in range(4, 10_000):
            await script.say(revision, WatchEvent(keys.key_of(limits), keys.encode(limits), revision))
            await asyncio.sleep(0.005)

    async with logged(script) as (log, listings):
        noise = asyncio.create_task(others())
        async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(0)) as responses:
            told = await taken(responses, 4)
        noise.cancel()
    assert [names for _, names, _ in told] == [[]] * 4
    assert told[-1][0] > told[1][0]


async def test_messages_are_bounded_in_bytes() -> None:
    script = Script(revision=1)
    async with logged(script) as (log, listings):
        large = [event(f"t{number}", 2, pb.Tenant(id=f"t{number}", display_name="x" * 400_000)) for number in range(7)]
        await script.say(2, *large)
        for start in (0, 2):
            async with aclosing(Watch(log, listings, [TENANTS], grant=JANE).responses(start)) as responses:
                found = []
                async with asyncio.timeout(5):
                    while len(found) < 7:
                        answer = await anext(responses)
                        assert answer.ByteSize() < 2 * watching.CHUNK_BYTES
                        found += [each.metadata.name for each in answer.resources]
                        assert answer.more == (len(found) < 7)
            assert sorted(found) == [f"t{number}" for number in range(7)]


async def test_what_is_kept_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "KEPT_BYTES", 3_000)
    script = Script(revision=1)
    async with logged(script) as (log, _):
        for revision in range(2, 12):
            await script.say(revision, event("t", revision, pb.Tenant(id="t", display_name="x" * 1_000)))
        with pytest.raises(WeirError) as caught:
            log.behind(1)
        assert caught.value.reason is Reason.REVISION_GONE
        assert 1 <= len(log.behind(9)) <= 2


async def test_a_watch_ends_with_the_right_to_it() -> None:
    script = Script(revision=1)
    allowed = True

    def still() -> None:
        if not allowed:
            raise WeirError(Reason.PERMISSION_DENIED, "no more")

    async with (
        logged(script) as (log, listings),
        aclosing(Watch(log, listings, [TENANTS], grant=JANE, still=still).responses(0)) as responses,
    ):
        await taken(responses, 1)
        await script.say(2, event("a", 2))
        assert await taken(responses, 1) == [(2, ["a"], [])]
        allowed = False
        await script.say(3, event("secretco", 3))
        with pytest.raises(WeirError) as caught:
            await taken(responses, 1)
    assert caught.value.reason is Reason.PERMISSION_DENIED


async def test_a_process_that_is_behind_tells_nothing_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BEHIND", 0.05)
    store = MemoryStore()
    script = Script(revision=1)
    async with logged(script) as (log, _):
        await store.txn(puts=[Put(key("a"), b"")])
        # The store has it, this process has not: whoever has seen it must ask another.
        with pytest.raises(WeirError) as caught:
            await require_reached(store, log, store.revision)
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        await script.say(store.revision, event("a", store.revision))
        await require_reached(store, log, store.revision)
        # A store that has not reached it was restored: what it has is what there is.
        await require_reached(store, log, store.revision + 1000)
        # Nobody can tell.
        store.set_available(False)
        with pytest.raises(WeirError):
            await require_reached(store, log, store.revision + 1)


async def test_a_view_with_a_cache_asks_for_nothing_older() -> None:
    script = Script(revision=5)
    asked = []
    original = script.get_prefix

    async def get_prefix(prefix: str, *, since: int = 0) -> object:
        asked.append(since)
        return await original(prefix)

    script.get_prefix = get_prefix  # type: ignore[method-assign,assignment]
    view = RegistryView(script)
    view._publish_listing(await original(""))
    task = asyncio.create_task(view.run())
    async with asyncio.timeout(5):
        while not asked:  # noqa: ASYNC110 - the view says nothing before
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert asked == [5]


def test_selectors_and_open_lists_are_bounded() -> None:
    with pytest.raises(WeirError) as caught:
        selector("a!=b," * 1000)
    assert caught.value.limit == "selector"
    script = Script(revision=1)
    lists = listing.Listings(script.view, iter(map(str, range(1000))).__next__)
    assert lists.held([TENANTS]) == []
    assert ChangeLog(script.view, lists).revision == 0


async def test_one_caller_does_not_push_out_the_lists_of_others() -> None:
    script = Script(revision=1)
    async with logged(script):
        await script.say(2, *(event(f"t{number}", 2) for number in range(4)))
        lists = listing.Listings(script.view, iter(map(str, range(1000))).__next__)
        request = pb.ListRequest(page_size=1)
        kept = lists.page(request, [TENANTS], Grant("operator:export", frozenset())).next_page_token
        for _ in range(listing.MAX_OPEN * 2):
            lists.page(request, [TENANTS], Grant("operator:viewer", frozenset()))
        assert lists.page(pb.ListRequest(page_token=kept), [TENANTS], Grant("operator:export", frozenset())).resources
