"""The collector's files stay within their bounds."""

from pathlib import Path

import pytest

from libs.traces import Span, read_trace
from services.collector.store import TraceStore


def span(trace: int, number: int = 0) -> Span:
    return Span(trace_id=f"{trace:032x}", span_id=f"{number:016x}", name="n", start_ns=1, end_ns=2)


def store(folder: Path, traces: int = 100, size: int = 10**6, spans: int = 100) -> TraceStore:
    return TraceStore(folder, max_traces=traces, max_bytes=size, max_spans_per_trace=spans)


def names(folder: Path) -> list[int]:
    return sorted(int(path.stem, 16) for path in folder.glob("*.jsonl"))


def test_spans_go_to_their_traces(tmp_path: Path) -> None:
    kept = store(tmp_path)
    assert kept.add([span(1, 1), span(2, 2), span(1, 3)]) == (3, 0)
    assert [each.span_id[-1] for each in read_trace(tmp_path, f"{1:032x}")] == ["1", "3"]
    assert kept.traces == 2


def test_the_oldest_traces_go_when_there_are_too_many(tmp_path: Path) -> None:
    kept = store(tmp_path, traces=3)
    for number in range(1, 6):
        kept.add([span(number)])
    assert names(tmp_path) == [3, 4, 5]
    assert kept.evicted == 2


def test_a_trace_that_still_grows_is_not_the_oldest(tmp_path: Path) -> None:
    kept = store(tmp_path, traces=2)
    for number in (1, 2, 1, 3):
        kept.add([span(number)])
    assert names(tmp_path) == [1, 3]


def test_bytes_are_bounded(tmp_path: Path) -> None:
    kept = store(tmp_path, size=2000)
    for number in range(1, 60):
        kept.add([span(number)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == kept.size <= 2000


def test_a_trace_has_a_bounded_number_of_spans(tmp_path: Path) -> None:
    kept = store(tmp_path, spans=3)
    assert kept.add([span(1, n) for n in range(5)]) == (3, 2)
    assert kept.add([span(1, 9)]) == (0, 1)


@pytest.mark.parametrize("limit", [2, 10])
def test_a_restart_takes_over_what_is_there_and_keeps_the_bounds(tmp_path: Path, limit: int) -> None:
    before = store(tmp_path)
    for number in range(1, 5):
        before.add([span(number)])
    after = store(tmp_path, traces=limit)
    assert after.traces == min(4, limit)
    assert after.size == sum(path.stat().st_size for path in tmp_path.iterdir())
