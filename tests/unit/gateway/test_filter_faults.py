"""One choice's fault behind the output filter: the others of its batch get their text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.filter_link import GRACE, Output, rig


class Faulty(Output):
    """A choice that fails whenever it is told something."""

    faulted: int = 0

    def on_released(self, *told: Any, **more: Any) -> None:
        raise RuntimeError("its own fault")

    def on_filter_lost(self) -> None:
        raise RuntimeError("its own fault")

    def on_filter_skipped(self) -> None:
        raise RuntimeError("its own fault")

    def on_fault(self) -> None:
        self.faulted += 1


def test_e8_a_fault_of_one_choice_takes_no_text_of_the_others() -> None:
    made = rig()
    made.link.open()
    faulty, sound = Faulty(), Output()
    first, second = made.open(faulty), made.open(sound)
    made.client.feed(first, "one", last=True)
    made.client.feed(second, "two", last=True)
    made.client.flush()
    made.settle()
    assert (sound.text, sound.ended) == ("two", "last")
    assert faulty.faulted == 1


@pytest.mark.parametrize("fail_closed", [True, False])
def test_e8_a_fault_of_one_choice_when_the_filter_is_away(fail_closed: bool) -> None:
    made = rig(fail_closed=fail_closed)
    faulty, sound = Faulty(), Output()
    first, second = made.open(faulty), made.open(sound)
    made.client.feed(first, "one", last=True)
    made.client.feed(second, "two", last=True)
    made.client.flush()
    made.clock.advance(GRACE + 1)
    made.client.sweep()
    assert sound.lost if fail_closed else (sound.text, sound.ended) == ("two", "last")
    assert faulty.faulted == 1


def test_e8_a_finding_that_cannot_be_recorded_still_holds() -> None:
    made = rig()

    def broken(*told: Any) -> None:
        raise OSError("the disk is full")

    made.client.on_found = broken
    made.link.open()
    blocked, sound = Output(), Output()
    first, second = made.open(blocked), made.open(sound)
    made.client.feed(first, "STOP!", last=True)
    made.client.feed(second, "two", last=True)
    made.client.flush()
    made.settle()
    assert (blocked.text, blocked.ended) == ("", "test.block")
    assert (sound.text, sound.ended) == ("two", "last")


def test_e8_text_that_cannot_travel_keeps_nobody_else_from_theirs() -> None:
    made = rig()
    made.link.open()
    broken, sound = Output(), Output()
    first, second = made.open(broken), made.open(sound)
    made.client.feed(first, "\ud800", last=True)
    made.client.feed(second, "two", last=True)
    made.client.flush()
    made.client.sweep()
    while made.link.calls:
        made.link.answer()
    assert (sound.text, sound.ended) == ("two", "last")
    assert broken.text == ""
    made.clock.advance(GRACE + 1)
    made.client.sweep()
    assert broken.lost
