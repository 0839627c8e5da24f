"""The fast metrics tell what prometheus_client's tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from libs.telemetry.counter import FastCounter, FastGauge
from libs.telemetry.exposition import Exposition
from libs.telemetry.histogram import FastHistogram

BOUNDS = (0.001, 0.1, 1.0, 2.5)
values = st.sampled_from(BOUNDS) | st.floats(0, 5, allow_nan=False)


def told(registry: CollectorRegistry) -> set[str]:
    return {line for line in generate_latest(registry).decode().splitlines() if "_created" not in line}


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), values), max_size=30))
def test_it_is_read_as_the_original_is(observed: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = FastHistogram("seconds", "Of it", ["stage"], buckets=BOUNDS, registry=ours)
    slow = Histogram("seconds", "Of it", ["stage"], buckets=BOUNDS, registry=theirs)
    for stage, value in observed:
        fast.labels(stage).observe(value)
        slow.labels(stage).observe(value)
    assert told(ours) == told(theirs)


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    FastHistogram("seconds", "Of it", ["stage"], buckets=BOUNDS, registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("seconds", "Of it", ["stage"], registry=registry)


def test_labels_are_those_that_were_named() -> None:
    fast = FastHistogram("seconds", "Of it", ["stage"], buckets=BOUNDS, registry=CollectorRegistry())
    with pytest.raises(ValueError, match="labels"):
        fast.labels("a", "b")


@pytest.mark.parametrize("name", ["requests_total", "tokens"])
def test_a_counter_is_read_as_the_original_is(name: str) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = FastCounter(name, "Of them", ["tenant", "outcome"], registry=ours)
    slow = Counter(name, "Of them", ["tenant", "outcome"], registry=theirs)
    for metric in (fast, slow):
        metric.labels("a", "ok").inc()
        metric.labels("a", "ok").inc(2.5)
        metric.labels("b", 'said "no"').inc()
    assert told(ours) == told(theirs)
    with pytest.raises(ValueError, match="labels"):
        fast.labels("a")
    with pytest.raises(ValueError, match="Duplicated"):
        Counter(name, "Of them", registry=ours)


def test_a_gauge_is_read_as_the_original_is() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast, slow = (
        FastGauge("held_total", "Of it", ["model", "stage"], registry=ours),
        Gauge("held_total", "Of it", ["model", "stage"], registry=theirs),
    )
    for metric in (fast, slow):
        metric.labels("b", "read").set(2.0)
        for value in (3.0, -0.5):
            metric.labels("a", "read").set(value)
    slow.remove("b", "read")
    fast.forget("b")
    assert told(ours) == told(theirs)
    accept = "application/vnd.google.protobuf"
    assert Exposition(ours).render(accept) == Exposition(theirs).render(accept)
