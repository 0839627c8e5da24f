"""Which names stand as labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.telemetry.named import OTHER, Named

NAMES = st.integers(0, 40).map(str)
HEARD = st.lists(st.tuples(NAMES, st.floats(0, 100)), max_size=300)


class Page:
    """The labels that stand on a page of metrics."""

    def __init__(self, most: int) -> None:
        self.stands: set[str] = set()
        self.named = Named(most, self.stands.remove)
        self.ever = 0

    def heard(self, name: str, now: float) -> str:
        label = self.named.label(name, now)
        if label != OTHER and label not in self.stands:
            self.stands.add(label)
            self.ever += 1
        return label


@given(st.integers(1, 8), HEARD)
def test_never_more_than_so_many_stand_and_a_name_stands_for_itself(most: int, heard: list[tuple[str, float]]) -> None:
    page, now = Page(most), 0.0
    for name, passed in heard:
        now += passed
        assert page.heard(name, now) in (name, OTHER)
        assert len(page.stands) <= most
        assert len(page.named._counts) <= 8 * most + 1


@given(st.integers(1, 8), HEARD)
def test_one_a_minute_takes_anothers_place(most: int, heard: list[tuple[str, float]]) -> None:
    page, now = Page(most), 0.0
    for name, passed in heard:
        now += passed
        page.heard(name, now)
    assert page.ever <= most + now / 60 + 1


def test_whoever_is_heard_of_twice_as_often_is_shown() -> None:
    page = Page(2)
    for name in ("a", "b", "b", "b"):
        page.heard(name, 0.0)
    assert [page.heard("c", 61.0) for _ in range(3)] == [OTHER, OTHER, "c"]
    assert page.stands == {"b", "c"}


def test_a_million_names_make_no_series() -> None:
    page = Page(16)
    for number in range(100_000):
        page.heard(f"stranger-{number}", number / 1000)
        page.heard("heavy", number / 1000)
    assert page.heard("heavy", 100.0) == "heavy"
    assert page.ever <= 16 + 2


def test_who_was_heavy_long_ago_gives_way() -> None:
    page = Page(1)
    for _ in range(1000):
        page.heard("before", 0.0)
    for hour in range(1, 30):
        for _ in range(10):
            page.heard("now", hour * 3600.0)
    assert page.stands == {"now"}
