"""What is known of the memory that versions take."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.clock import ManualClock
from libs.versions.errors import RefusedError
from libs.versions.memory import Memory
from libs.versions.plan import Fault, Wanted

VERSION = pb.ModelVersion(name="a", version="1", digest="d", artifacts=[pb.Artifact(bytes=3), pb.Artifact(bytes=4)])


@pytest.mark.parametrize(("measured", "cost"), [(0, 7), (6, 7), (50, 50)])
def test_a_version_takes_what_was_measured_and_its_files_at_least(measured: int, cost: int) -> None:
    memory = Memory(100, cost=lambda _: measured, clock=ManualClock())
    assert memory.takes(VERSION) == 7
    assert memory.measured("a@1", VERSION) == cost
    assert memory.takes(VERSION) == cost, "what was measured was forgotten"


def test_what_takes_more_than_all_may_is_refused_and_that_is_remembered() -> None:
    memory = Memory(100, cost=lambda _: 101, clock=ManualClock())
    with pytest.raises(
        RefusedError, match="a@1 takes 101 bytes of memory; all versions together may take 100"
    ) as caught:
        memory.measured("a@1", VERSION)
    assert caught.value.fault is Fault.MEMORY
    assert memory.takes(VERSION) == 101


def test_without_a_bound_there_is_no_room_to_be_kept_and_without_a_measure_nothing_is_told() -> None:
    clock = ManualClock()
    unmeasured = Memory(clock=clock)
    assert unmeasured.room(quiet=1.0, leaving=0) is None
    assert unmeasured.measured("a@1", VERSION) == 0
    assert Memory(cost=lambda _: 10**12, clock=clock).measured("a@1", VERSION) == 10**12


def test_to_come_to_be_wanted_counts_as_being_asked_for_once() -> None:
    clock, asked = ManualClock(), {"b@1": 0.0, "c@1": 0.0}
    memory = Memory(100, asked=lambda: asked, clock=clock)
    began = clock.monotonic()
    memory.want([Wanted("a@1", "d", "x"), Wanted("b@1", "d", "x")])
    clock.advance(5.0)
    asked["b@1"] = clock.monotonic()
    memory.want([Wanted("a@1", "d", "x"), Wanted("b@1", "d", "x")])
    room = memory.room(quiet=1.0, leaving=3)
    assert room is not None
    assert room.used == {"a@1": began, "b@1": began + 5.0, "c@1": 0.0}
    assert (room.bound, room.quiet, room.leaving) == (100, 1.0, 3)


def test_who_asks_on_and_on_has_it_looked_at_once_a_second() -> None:
    clock = ManualClock()
    memory = Memory(100, clock=clock)
    assert [memory.look("a@1"), memory.look("a@1"), memory.look("b@1")] == [True, False, True]
    clock.advance(1.0)
    assert memory.look("a@1")
