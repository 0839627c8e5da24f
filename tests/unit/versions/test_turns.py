"""A lock that its most urgent waiter gets next."""

from __future__ import annotations

import asyncio

from libs.versions.turns import Turns


async def test_e5_the_most_urgent_goes_next_and_who_gives_up_holds_nobody_up():
    turns, order = Turns(), list[int]()
    go_on = asyncio.Event()

    async def take(place: int) -> None:
        async with turns.taken((place,)):
            order.append(place)
            await go_on.wait()

    tasks = {place: asyncio.create_task(take(place)) for place in (5, 9, 3, 1, 7)}
    await asyncio.sleep(0)
    assert order == [5]
    tasks[3].cancel()
    tasks[5].cancel()
    await asyncio.wait((tasks[3], tasks[5]))
    tasks[1].cancel()  # the turn is its own, or on its way to it
    await asyncio.wait((tasks[1],))
    go_on.set()
    await asyncio.gather(tasks[9], tasks[7])
    assert [place for place in order if place != 1] == [5, 7, 9]
    async with turns.taken((0,)):
        pass


async def test_e5_only_one_holds_the_turn():
    turns, inside, most = Turns(), 0, 0

    async def take(place: int) -> None:
        nonlocal inside, most
        async with turns.taken((place,)):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(take(place % 3) for place in range(20)))
    assert most == 1
