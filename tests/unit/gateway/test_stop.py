"""Stop strings are found wherever the chunks are cut, and nothing after them or of them gets out."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.policy.stop import StopScanner

ALPHABET = "ab\n"
texts = st.text(ALPHABET, max_size=40)
stops = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4).map(tuple)


def chunked(text: str, cuts: list[int]) -> list[str]:
    points = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(points)]


@given(texts, stops, st.lists(st.integers(0, 40), max_size=12))
def test_chunking_changes_nothing(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    scanner = StopScanner(stop)
    out = "".join(scanner.feed(chunk) for chunk in chunked(text, cuts))
    if not scanner.stopped:
        out += scanner.flush()
    ends = [text.find(s) for s in stop if s in text]
    # Fed in pieces, the first stop string to be complete ends the output; it may not be the one that begins first.
    if ends:
        assert scanner.stopped
        assert any(out == text[:end] for end in {text.find(s) for s in stop if s in text})
    else:
        assert out == text


@given(texts, stops)
def test_only_a_possible_beginning_is_held_back(text: str, stop: tuple[str, ...]) -> None:
    scanner = StopScanner(stop)
    out = scanner.feed(text)
    if scanner.stopped:
        return
    held = text[len(out) :]
    assert held == "" or any(s.startswith(held) for s in stop)


def test_without_stop_strings_text_passes() -> None:
    assert StopScanner(()).feed("anything") == "anything"
