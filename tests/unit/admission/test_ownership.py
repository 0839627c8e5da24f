"""Who owns a pool, by cases; any history of it is in test_ownership_histories.py."""

from __future__ import annotations

import random

from weir.admission.v1 import admission_pb2 as pb

from services.admission.policy.ownership import Elsewhere, Ownership, Owns, World, home

POOL = "fast"
ALONE = World(others=(), registered=True, workers=True, listed=True)
BESIDE = World(others=("b",), registered=True, workers=True, listed=True)


def ownership(instance: str = "a", seed: int = 1) -> Ownership:
    return Ownership(instance, tenure=5.0, patience=2.0, draw=random.Random(seed).getrandbits)


def test_terms_grow_and_differ() -> None:
    one, other = ownership("a", 1), ownership("b", 2)
    first, second = one.claim(POOL, 0.0), other.claim(POOL, 0.0)
    assert first != second
    other.told(POOL, first, "a", 0.0)
    assert other.claim(POOL, 0.0) > max(first, second)


def test_the_owner_decides_until_it_hears_of_a_newer_term() -> None:
    one = ownership()
    assert one.ask(POOL, ALONE, 0.0) is Owns.CLAIM
    epoch = one.claim(POOL, 0.0)
    assert one.ask(POOL, BESIDE, 1e9) is Owns.DECIDE  # no clock ends a term
    assert not one.told(POOL, epoch, "a", 1.0)
    assert not one.told(POOL, epoch - 1, "b", 1.0)
    assert one.epoch(POOL) == epoch
    assert one.told(POOL, epoch + 1, "b", 1.0)
    assert one.epoch(POOL) == 0
    assert one.ask(POOL, BESIDE, 1.0) == Elsewhere("b", epoch + 1)


def test_a_pool_is_taken_from_who_seems_gone_once_the_term_has_lasted() -> None:
    one = ownership()
    one.claim(POOL, 0.0)
    one.told(POOL, 1 << 40, "b", 10.0)
    for world, beyond in ((ALONE, 0), (BESIDE, 1 << 40)):  # not in the registry; a gateway cannot be served by it
        assert one.ask(POOL, world, 14.9, beyond=beyond) == Elsewhere("b", 1 << 40)
        assert one.ask(POOL, world, 15.0, beyond=beyond) is Owns.CLAIM
    assert one.ask(POOL, BESIDE, 15.0, beyond=(1 << 40) - 1) == Elsewhere("b", 1 << 40)  # of an older term
    unknown = World(
        others=None, registered=False, workers=True, listed=False
    )  # the registry was never read: nobody counts as gone
    assert one.ask(POOL, unknown, 15.0) == Elsewhere("b", 1 << 40)


def test_a_process_that_starts_takes_over_from_its_predecessor_and_from_who_is_gone_at_once() -> None:
    for owner, world in (("a", BESIDE), ("c", BESIDE)):
        one = ownership()
        assert one.told(POOL, 7, owner, 0.0)
        assert one.ask(POOL, world, 0.0) is Owns.CLAIM
        assert one.claim(POOL, 0.0) > 7


def test_an_owner_that_no_worker_reaches_gives_the_pool_up() -> None:
    one = ownership()
    epoch = one.claim(POOL, 0.0)
    cut = World(others=("b",), registered=True, workers=False, listed=True)
    assert not one.useless(POOL, cut, 10.0)
    assert not one.useless(POOL, BESIDE, 11.0)  # one is back
    for world in (
        World(others=("b",), registered=True, workers=False, listed=False),
        World(others=(), registered=True, workers=False, listed=True),
    ):
        assert not one.useless(POOL, world, 1e6)  # nobody has any; nobody else could serve
    assert not one.useless(POOL, cut, 20.0)
    assert one.useless(POOL, cut, 22.0)
    assert one.ask(POOL, cut, 22.0) == Elsewhere("b", epoch)
    assert one.ask(POOL, BESIDE, 22.0) is Owns.CLAIM


def test_pools_spread_and_stay_where_they_are_when_another_process_comes() -> None:
    pools = [f"pool-{number}" for number in range(100)]
    before = {pool: home(pool, ("a", "b")) for pool in pools}
    assert set(before.values()) == {"a", "b"}
    after = {pool: home(pool, ("c", "b", "a")) for pool in pools}
    assert {pool for pool in pools if after[pool] != before[pool]} == {p for p in pools if after[p] == "c"}


def test_a_pool_is_not_at_home_on_whom_the_registry_takes_for_gone() -> None:
    pools = [f"pool-{number}" for number in range(20)]
    gone = World(others=("b",), registered=False, workers=True, listed=True)
    early = World(others=(), registered=False, workers=True, listed=True)
    assert any(ownership().at_home(pool, BESIDE) for pool in pools)
    assert not any(ownership().at_home(pool, gone) for pool in pools)
    assert all(ownership().at_home(pool, early) for pool in pools)  # the first process of all, not registered yet


def test_a_number_that_cannot_grow_breaks_nothing() -> None:
    one = ownership()
    assert one.told(POOL, (1 << 64) - 1, "b", 0.0)
    assert pb.Owns(epoch=one.claim(POOL, 0.0)).epoch == (1 << 64) - 1
