"""Which traces are kept: the failed, the slow and a share of the rest, within bounds, and every span one way only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.traces import Span
from services.collector.policy.tail import Fate, TailPolicy, TailSampler

NOTHING = TailPolicy(share=0.0, slow=5.0)
ROOT = ""


def span(trace: int, number: int = 0, *, parent: str = "f" * 16, seconds: float = 0.1, error: str = "") -> Span:
    return Span(
        trace_id=f"{trace:032x}",
        span_id=f"{number:016x}",
        parent_id=parent,
        name="n",
        start_ns=10**9,
        end_ns=10**9 + int(seconds * 1e9),
        error=error,
    )


def fates(decided: object) -> list[tuple[Fate, int]]:
    return [(fate, len(spans)) for fate, spans in decided]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("of", "fate"),
    [
        ([span(1), span(1, 2, parent=ROOT)], Fate.LEFT_OUT),
        ([span(1, error="ENGINE_ERROR"), span(1, 2, parent=ROOT)], Fate.KEPT),
        ([span(1), span(1, 2, parent=ROOT, seconds=5.0)], Fate.KEPT),
    ],
)
def test_the_failed_and_the_slow_are_kept_whatever_the_share(of: list[Span], fate: Fate) -> None:
    sampler = TailSampler(NOTHING)
    assert fates(sampler.take(of, 0.0)) == []
    assert fates(sampler.due(NOTHING.settle - 0.1)) == []
    assert fates(sampler.due(NOTHING.settle)) == [(fate, 2)]
    assert sampler.held == 0


def test_an_error_that_comes_shortly_after_the_root_still_counts() -> None:
    sampler = TailSampler(NOTHING)
    fates(sampler.take([span(1, parent=ROOT)], 0.0))
    fates(sampler.take([span(1, 2, error="WORKER_LOST")], 1.0))
    assert fates(sampler.due(NOTHING.settle)) == [(Fate.KEPT, 2)]


def test_a_trace_whose_root_never_comes_is_decided_after_a_while() -> None:
    sampler = TailSampler(NOTHING)
    fates(sampler.take([span(1)], 0.0))
    fates(sampler.take([span(1, 2)], 20.0))
    assert fates(sampler.due(NOTHING.patience - 0.1)) == []
    assert fates(sampler.due(NOTHING.patience)) == [(Fate.LEFT_OUT, 2)]


@pytest.mark.parametrize("error", ["", "ENGINE_ERROR"])
def test_late_spans_follow_the_decision(error: str) -> None:
    sampler = TailSampler(NOTHING)
    fates(sampler.take([span(1, parent=ROOT, error=error)], 0.0))
    [(fate, _)] = fates(sampler.due(60.0))
    assert fates(sampler.take([span(1, 2, error="LATE")], 61.0)) == [(fate, 1)]


def test_a_share_of_the_rest_is_drawn_by_the_id() -> None:
    """As OpenTelemetry draws it, so that two collectors with parts of one trace agree."""
    for share, low, high in ((0.0, 0, 0), (0.25, 20, 30), (1.0, 100, 100)):
        sampler = TailSampler(TailPolicy(share=share, slow=0.0))
        traces = [n * (2**64 // 100) for n in range(100)]
        fates(sampler.take([span(trace, parent=ROOT) for trace in traces], 0.0))
        kept = Counter(fate for fate, _ in fates(sampler.due(60.0)))[Fate.KEPT]
        assert low <= kept <= high


def test_when_there_is_no_room_the_oldest_is_decided_by_what_is_known() -> None:
    sampler = TailSampler(TailPolicy(share=0.0, slow=5.0, max_waiting=3))
    assert fates(sampler.take([span(1), span(1, 2), span(2, error="X")], 0.0)) == []
    assert fates(sampler.take([span(3)], 1.0)) == [(Fate.HURRIED, 2)]
    assert fates(sampler.take([span(3, 2), span(3, 3)], 1.0)) == [(Fate.KEPT, 1)]
    assert sampler.held == 3


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans(), st.floats(0, 40)), max_size=60))
def test_memory_is_bounded_and_every_span_leaves_once_one_way_for_its_trace(
    steps: list[tuple[int, bool, bool, float]],
) -> None:
    policy = TailPolicy(share=0.5, slow=5.0, max_waiting=5, max_decided=100)
    sampler = TailSampler(policy)
    now, gone = 0.0, []
    for number, (trace, root, failed, pause) in enumerate(steps):
        now += pause
        gone += list(sampler.due(now))
        each = span(trace, number, parent=ROOT if root else "f" * 16, error="X" if failed else "")
        gone += list(sampler.take([each], now))
        assert sampler.held <= policy.max_waiting
    gone += list(sampler.rest())
    left = [each.span_id for _, spans in gone for each in spans]
    assert sorted(left) == [f"{n:016x}" for n in range(len(steps))]
    ways: dict[str, set[bool]] = {}
    for fate, spans in gone:
        for each in spans:
            ways.setdefault(each.trace_id, set()).add(fate is Fate.KEPT)
    assert all(len(each) == 1 for each in ways.values())


@pytest.mark.parametrize("wrong", [{"share": 1.1}, {"share": -0.1}, {"slow": -1.0}, {"max_waiting": 0}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        TailPolicy(**{"share": 0.5, "slow": 1.0, **wrong})  # type: ignore[arg-type]
