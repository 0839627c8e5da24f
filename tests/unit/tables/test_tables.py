"""Tables at any width: whole words, no line too long where that can be, nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.tables import layout

WORDS = st.text("abcXYZ012@./:-", min_size=1, max_size=20)
CELLS = st.lists(WORDS, max_size=6).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    columns = draw(st.integers(1, 7))
    headings = draw(st.lists(CELLS.filter(bool), min_size=columns, max_size=columns, unique=True))
    return [headings, *draw(st.lists(st.lists(CELLS, min_size=columns, max_size=columns), max_size=5))]


@given(tables(), st.integers(1, 160), st.data())
def test_every_word_is_whole_and_every_line_fits(rows: list[list[str]], width: int, data: st.DataObject) -> None:
    least = data.draw(st.lists(st.sampled_from(rows[0]), unique=True))
    found = layout(rows, width, least)
    assert found.gone == [name for name in least if name in found.gone], "in the order that was asked"
    kept = [index for index, name in enumerate(rows[0]) if name not in found.gone]
    lines = [*found.headings, *found.body]
    shown = sorted(word for line in lines for word in line.split())
    assert shown == sorted(word for row in rows for index in kept for word in row[index].split())
    narrowest = [max(len(word) for row in rows for word in ("", *row[index].split())) for index in kept]
    room = sum(narrowest) + 2 * (len(kept) - 1)
    assert all(len(line) <= max(width, room) for line in lines)
    assert not found.gone or len(found.gone) == len(least) or room <= width, "no more is left out than has to be"


def test_the_widest_columns_give_first() -> None:
    rows = [["NAME", "WHAT IT IS"], ["weir-fast@1", "a model that " + "is " * 20 + "small"], ["b", "short"]]
    found = layout(rows, 40)
    assert found.headings == ["NAME         WHAT IT IS"]
    assert found.body[0] == "weir-fast@1  a model that is is is is is"
    assert found.body[1].startswith(" " * 13)
    assert layout(rows, None).body[1] == "b            short"


def test_the_least_important_go_first_and_only_where_they_must() -> None:
    rows = [["WORKER", "ZONE", "MODELS", "AGE"], ["worker-a-0123456789", "zone-a", "weir-fast@1", "0.4"]]
    assert layout(rows, 80, ("AGE", "ZONE")).gone == []
    assert layout(rows, 44, ("AGE", "ZONE")).gone == ["AGE"]
    assert layout(rows, 38, ("AGE", "ZONE")).gone == ["AGE", "ZONE"]
    assert max(map(len, layout(rows, 10, ("AGE", "ZONE")).body)) > 10, "what is left is never cut"
