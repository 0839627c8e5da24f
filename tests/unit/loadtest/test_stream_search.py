"""The search for the most streams that a mesh carries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.stream_search import CLOSE, Probe, most, next_count, search


class Mesh:
    """Carries so many streams; trouble makes single probes fail below that."""

    def __init__(self, capacity: int, trouble: Iterator[bool] | None = None) -> None:
        self.capacity = capacity
        self._trouble = trouble or iter(())
        self.now = 0.0

    async def probe(self, streams: int) -> Probe:
        self.now += 1.0
        late = streams > self.capacity or next(self._trouble, False)
        return Probe(streams, itl_p99=0.2 if late else 0.02, pace=1.0)


@given(capacity=st.integers(1, 5000), first=st.integers(1, 500))
async def test_what_it_finds_holds_and_lies_close_to_the_capacity(capacity: int, first: int) -> None:
    mesh = Mesh(capacity)
    found = most(await search(mesh.probe, first=first, budget=1e9))
    assert found.streams <= capacity
    assert capacity + 1 <= max(found.streams * CLOSE, found.streams + 1) or found.streams == capacity


async def test_one_bad_probe_is_not_believed() -> None:
    mesh = Mesh(400, iter([False, True]))
    assert most(await search(mesh.probe, first=100, budget=1e9)).streams == 400


async def test_it_ends_in_time_with_what_it_has() -> None:
    mesh = Mesh(10_000)
    probes = await search(mesh.probe, first=10, budget=3.0, clock=lambda: mesh.now)
    assert [each.streams for each in probes] == [10, 20, 40]
    assert most(probes).streams == 40


async def test_a_mesh_that_carries_none_is_told_as_such() -> None:
    assert most(await search(Mesh(0).probe, first=64, budget=1e9)) == Probe(0)


@pytest.mark.parametrize(
    "probe",
    [Probe(8, itl_p99=0.101, pace=1.0), Probe(8, itl_p99=0.02, pace=0.94), Probe(8, 0.02, 1.0, fault="1 was refused")],
    ids=["late", "slow", "refused"],
)
def test_streams_that_are_late_slow_or_refused_do_not_hold(probe: Probe) -> None:
    assert not probe.holds
    assert Probe(8, itl_p99=0.1, pace=0.95).holds


def test_it_doubles_until_one_fails_and_then_halves() -> None:
    assert next_count(0, None, 64) == 64
    assert next_count(64, None, 64) == 128
    assert next_count(64, 128, 64) == 96
    assert next_count(120, 127, 64) is None
    assert next_count(0, 1, 64) is None
