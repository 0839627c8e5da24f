"""One leader at a time, and none that can write after its term: over memory and a real etcd."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.election import Election, Leadership
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, MemoryStore, Put, Store, TxnResult, keys
from tests.support.etcd import EtcdServer

ROOT = Path(__file__).resolve().parents[3]
BOUND = 20.0


@pytest.fixture(params=["memory", "etcd"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        made: Store = MemoryStore()
    else:
        made = EtcdStore([request.getfixturevalue("etcd_shared").endpoint])
    yield made
    await made.close()


@pytest.fixture
def service() -> str:
    return f"s-{uuid.uuid4().hex}"


class Group:
    """What candidates for the same service do together."""

    def __init__(self) -> None:
        self.leading: set[str] = set()
        self.most = 0
        self.wins: asyncio.Queue[Candidate] = asyncio.Queue()

    async def next(self) -> Candidate:
        """Who won next."""
        async with asyncio.timeout(BOUND):
            return await self.wins.get()


class Candidate:
    """An election whose terms a test can wait for."""

    def __init__(self, store: Store, service: str, name: str, group: Group | None = None) -> None:
        self.election = Election(store=store, service=service, instance=name, ttl=2.0)
        self.name = name
        self.terms: list[Leadership] = []
        self._group = group or Group()
        self._events: asyncio.Queue[str] = asyncio.Queue()

    async def lead(self, term: Leadership) -> None:
        self.terms.append(term)
        self._group.leading.add(self.name)
        self._group.most = max(self._group.most, len(self._group.leading))
        self._group.wins.put_nowait(self)
        self._events.put_nowait("won")
        try:
            await asyncio.Event().wait()
        finally:
            # An instance that starts again has the name of its dead self.
            self._group.leading.discard(self.name)
            self._events.put_nowait("ended")

    async def next(self, what: str) -> None:
        async with asyncio.timeout(BOUND):
            assert await self._events.get() == what

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Candidate]:
        task = asyncio.create_task(self.election.run(self.lead))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def changed(election: Election, condition: Any) -> None:
    seen = asyncio.Event()
    election.on_change(seen.set)
    async with asyncio.timeout(BOUND):
        while not condition():
            await seen.wait()
            seen.clear()


async def write(store: Store, term: Leadership, key: str) -> bool:
    return (await store.txn(compares=[term.guard], puts=[Put(key, b"x")])).succeeded


async def test_the_first_leads_and_its_guard_holds(store: Store, service: str) -> None:
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        assert a.election.leadership is a.terms[0]
        assert a.terms[0].held
        assert await a.terms[0].confirm()
        assert await write(store, a.terms[0], f"/test/{service}")
        await changed(a.election, lambda: a.election.leader == "a")


async def test_resigning_hands_over_at_once(store: Store, service: str) -> None:
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        async with Candidate(store, service, "b").running() as b:
            await changed(b.election, lambda: b.election.leader == "a")
            assert not b.terms
            a.election.resign()
            await a.next("ended")
            await b.next("won")
            assert not a.terms[0].held
            assert not await write(store, a.terms[0], f"/test/{service}")
            assert await write(store, b.terms[0], f"/test/{service}")


async def test_cancelling_gives_the_key_back(store: Store, service: str) -> None:
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
    assert await store.get(keys.LEADERS + service) is None


async def test_never_two_at_once(store: Store, service: str) -> None:
    group = Group()
    candidates = [Candidate(store, service, f"c{n}", group) for n in range(4)]
    tasks = {each.name: asyncio.create_task(each.election.run(each.lead)) for each in candidates}
    while tasks:
        winner = await group.next()
        winner.election.resign()
        async with asyncio.timeout(BOUND):
            await tasks.pop(winner.name)
    assert group.most == 1
    assert all(len(each.terms) == 1 for each in candidates)


async def test_a_deleted_key_ends_the_term_and_a_new_one_begins(store: Store, service: str) -> None:
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        await store.txn(deletes=[keys.LEADERS + service])
        await a.next("ended")
        await a.next("won")
        first, second = a.terms
        assert not first.held
        assert not await first.confirm()
        assert not await write(store, first, f"/test/{service}")
        assert await write(store, second, f"/test/{service}")


async def test_an_ended_lease_ends_the_term(store: Store, service: str) -> None:
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        await store.lease_revoke(a.terms[0].lease)
        await a.next("ended")
        await a.next("won")
        assert a.terms[0].guard != a.terms[1].guard


async def test_services_with_a_common_beginning_do_not_mix(store: Store, service: str) -> None:
    async with Candidate(store, service + "-longer", "other").running() as other:
        await other.next("won")
        async with Candidate(store, service, "a").running() as a:
            await a.next("won")
            assert a.terms[0].held
            assert other.terms[0].held


async def test_an_instance_that_starts_again_takes_over_from_its_dead_self(store: Store, service: str) -> None:
    lease = await store.lease_grant(60.0)
    dead = await store.txn(puts=[Put(keys.LEADERS + service, b"a", lease)])
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        assert a.terms[0].guard.mod_revision > dead.revision
        # The dead one's lease is not the key's any more.
        await store.lease_revoke(lease)
        assert await a.terms[0].confirm()
        assert await write(store, a.terms[0], f"/test/{service}")


async def test_two_of_one_name_do_not_take_the_key_from_one_another_for_ever(store: Store, service: str) -> None:
    group = Group()
    async with Candidate(store, service, "a", group).running() as first:
        await first.next("won")
        async with Candidate(store, service, "a", group).running() as second:
            await second.next("won")
            await first.next("ended")
            assert await second.terms[0].confirm()
            # The first one has had its turn: it waits like anybody.
            await changed(first.election, lambda: first.election.leader == "a")
            assert len(first.terms) == 1
            assert not await write(store, first.terms[0], f"/test/{service}")


async def test_what_lead_raises_comes_out_and_the_key_goes(store: Store, service: str) -> None:
    async def fails(term: Leadership) -> None:
        raise LookupError("no such thing")

    with pytest.raises(ExceptionGroup) as caught:
        await Election(store=store, service=service, instance="a").run(fails)
    assert caught.group_contains(LookupError)
    assert await store.get(keys.LEADERS + service) is None


async def test_a_candidate_that_resigns_returns(store: Store, service: str) -> None:
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        b = Candidate(store, service, "b")
        task = asyncio.create_task(b.election.run(b.lead))
        await changed(b.election, lambda: b.election.leader == "a")
        b.election.resign()
        async with asyncio.timeout(BOUND):
            await task
        assert not b.terms
        assert a.terms[0].held


async def test_an_outage_ends_the_term_before_the_key_does(service: str) -> None:
    store = MemoryStore()
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        store.set_available(False)
        await a.next("ended")
        assert not a.terms[0].held
        store.set_available(True)
        # Nobody else could have won by then.
        held = await store.get(keys.LEADERS + service)
        assert held is None or held.mod_revision == a.terms[0].guard.mod_revision
        await a.next("won")
    await store.close()


class Unclear(MemoryStore):
    """Carries out transactions and loses the answers of some."""

    lose = 1

    async def txn(self, **what: Any) -> TxnResult:
        result = await super().txn(**what)
        if self.lose and result.succeeded:
            self.lose -= 1
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the answer was lost")
        return result


async def test_a_campaign_whose_answer_was_lost_is_won_all_the_same(service: str) -> None:
    store = Unclear()
    async with Candidate(store, service, "a").running() as a:
        await a.next("won")
        assert store.lose == 0
        assert await write(store, a.terms[0], "/test/x")
        assert len(a.terms) == 1
    await store.close()


async def test_a_paused_leader_that_wakes_up_cannot_write(etcd: EtcdServer, service: str) -> None:
    key = f"/test/{service}"
    store = EtcdStore([etcd.endpoint])
    command = (sys.executable, "-m", "tests.contract.election.paused_candidate", etcd.endpoint, service, key)
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            assert await child.stdout.readline() == b"leads\n"
        os.kill(child.pid, signal.SIGSTOP)
        async with Candidate(store, service, "b").running() as b:
            await b.next("won")
            assert await write(store, b.terms[0], key)
            child.stdin.write(b"write\n")
            await child.stdin.drain()
            os.kill(child.pid, signal.SIGCONT)
            async with asyncio.timeout(BOUND):
                assert (await child.stdout.readline()).startswith(b"fenced ")
            found = await store.get(key)
            assert found is not None
            assert found.value == b"x"
            assert b.terms[0].held
    finally:
        child.stdin.close()
        async with asyncio.timeout(BOUND):
            await child.wait()
        await store.close()


async def test_etcd_restarting_leaves_one_leader(etcd: EtcdServer, service: str) -> None:
    stores = [EtcdStore([etcd.endpoint]) for _ in range(2)]
    group = Group()
    candidates = [Candidate(store, service, f"c{n}", group) for n, store in enumerate(stores)]
    async with candidates[0].running(), candidates[1].running():
        winner = await group.next()
        etcd.restart()
        async with asyncio.timeout(BOUND):
            # Either the term lived through it, or a new one begins.
            while not await confirmed(winner.terms[-1]):
                winner = await group.next()
        assert await write(stores[0], winner.terms[-1], f"/test/{service}")
        assert group.most == 1
    for store in stores:
        await store.close()


async def confirmed(term: Leadership) -> bool:
    while True:
        try:
            return await term.confirm()
        except WeirError as error:
            if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
