"""Kept answers: whose, for how long, computed how often, and in how much memory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from libs.clock import ManualClock
from services.predictor.cache import Cache, key_of
from services.predictor.port import Signature, Tensor, Tensors

TEXTS = Signature((Tensor("x", "FP32", (-1, 2)), Tensor("t", "BYTES", (-1,))), (), 8)


def inputs(x: list[list[float]], *texts: bytes) -> Tensors:
    array = np.empty(len(texts), object)
    array[:] = texts
    return {"x": np.array(x, np.float32), "t": array}


def key(
    tenant: str = "a", digest: str = "d", given: Tensors | None = None, outputs: frozenset[str] | None = None
) -> bytes:
    return key_of(tenant, digest, TEXTS, given or inputs([[1, 2]], b"ab"), outputs)


def test_whatever_an_answer_follows_from_makes_another_key() -> None:
    known = [
        key(),
        key(tenant="b"),
        key(digest="e"),
        key(outputs=frozenset({"p"})),
        key(outputs=frozenset({"p", "q"})),
        key(given=inputs([[1, 3]], b"ab")),
        key(given=inputs([[1, 2], [0, 0]], b"a", b"b")),
        key(given=inputs([[1, 2], [0, 0]], b"", b"ab")),
        key(given=inputs([[1, 2], [0, 0]], b"ab", b"")),
    ]
    assert len(set(known)) == len(known)
    assert key(outputs=frozenset({"q", "p"})) == key(outputs=frozenset({"p", "q"}))


def outputs(size: int = 4) -> Tensors:
    return {"p": np.ones(size, np.float32)}


async def filled(cache: Cache, name: bytes, seconds: float = 10.0, size: int = 4) -> Tensors:
    async def compute() -> Tensors:
        return outputs(size)

    return (await cache.flight(name, seconds, compute, deadline=1e9))[0]


async def test_an_answer_is_fresh_then_stale_then_gone() -> None:
    clock = ManualClock()
    cache = Cache(10_000, stale=5.0, clock=clock)
    await filled(cache, b"k", seconds=10.0)
    assert cache.fresh(b"k") is not None
    clock.advance(10.0)
    assert cache.fresh(b"k") is None
    assert cache.stale(b"k") is not None
    clock.advance(5.0)
    assert cache.stale(b"k") is None
    assert (len(cache), cache.used_bytes) == (0, 0)


async def test_memory_is_bounded_and_the_least_used_goes_first() -> None:
    cache = Cache(3 * 656, stale=0.0, clock=ManualClock())
    for name in (b"1", b"2", b"3"):
        await filled(cache, name, size=100)
    assert cache.fresh(b"1") is not None
    await filled(cache, b"4", size=100)
    assert cache.fresh(b"2") is None
    assert cache.fresh(b"1") is not None
    assert cache.used_bytes == 3 * 656
    await filled(cache, b"huge", size=1000)
    assert cache.fresh(b"huge") is None
    assert cache.fresh(b"1") is not None


async def test_what_is_kept_holds_no_batch_in_memory() -> None:
    cache = Cache(10_000, stale=0.0, clock=ManualClock())
    batch = np.arange(1000, dtype=np.float32)

    async def compute() -> Tensors:
        return {"p": batch[3:5]}

    await cache.flight(b"k", 10.0, compute, deadline=1e9)
    kept = cache.fresh(b"k")
    assert kept is not None
    assert kept["p"].base is None
    np.testing.assert_array_equal(kept["p"], [3, 4])


async def test_who_asks_the_same_at_once_shares_one_computation() -> None:
    cache, computed, go = Cache(10_000, stale=0.0, clock=ManualClock()), 0, asyncio.Event()

    async def compute() -> Tensors:
        nonlocal computed
        computed += 1
        await go.wait()
        return outputs()

    asking = [asyncio.create_task(cache.flight(b"k", 10.0, compute, deadline=1e9)) for _ in range(5)]
    await asyncio.sleep(0)
    go.set()
    own = [each for _, each in await asyncio.gather(*asking)]
    assert (computed, sorted(own)) == (1, [False] * 4 + [True])


async def test_when_the_first_fails_or_leaves_the_next_one_computes() -> None:
    cache = Cache(10_000, stale=0.0, clock=ManualClock())
    began = asyncio.Event()

    async def hang() -> Tensors:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def fine() -> Tensors:
        return outputs()

    first = asyncio.create_task(cache.flight(b"k", 10.0, hang, deadline=1e9))
    await began.wait()
    second = asyncio.create_task(cache.flight(b"k", 10.0, fine, deadline=1e9))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[1]

    async def broken() -> Tensors:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await cache.flight(b"other", 10.0, broken, deadline=1e9)
    assert cache.fresh(b"other") is None


async def test_nobody_waits_for_another_ones_computation_beyond_his_own_time() -> None:
    clock = ManualClock()
    cache, began = Cache(10_000, stale=0.0, clock=clock), asyncio.Event()

    async def hang() -> Tensors:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    first = asyncio.create_task(cache.flight(b"k", 10.0, hang, deadline=1e9))
    await began.wait()
    with pytest.raises(TimeoutError):
        await cache.flight(b"k", 10.0, hang, deadline=clock.monotonic())
    first.cancel()
