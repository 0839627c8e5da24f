"""A page of metrics says the same in every form, and ten who ask for it at once cost two."""

from __future__ import annotations

import gzip
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.registry import Collector
from weir.telemetry.v1 import exposition_pb2 as pb

from libs.diagnosis import parse
from libs.telemetry.counter import FastCounter
from libs.telemetry.exposition import Exposition
from libs.telemetry.histogram import MOST, SCHEMA, ZERO, Child, FastFamily, FastHistogram

PROTOBUF = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,*/*;q=0.1"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
BOUNDS = (0.1, 1.0, 10.0)
seconds = st.lists(st.sampled_from([0.0, ZERO, 0.5, 1.0, 2.0]) | st.floats(0, 2 * MOST), max_size=40)


def families(page: bytes) -> dict[str, pb.MetricFamily]:
    """What a page of protobuf says, by name."""
    found, place = dict[str, pb.MetricFamily](), 0
    while place < len(page):
        size = shift = 0
        while True:
            byte, place = page[place], place + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        family = pb.MetricFamily.FromString(page[place : place + size])
        assert family.name not in found
        found[family.name] = family
        place += size
    return found


def buckets(histogram: pb.Histogram) -> dict[int, int]:
    """Observations by bucket, as Prometheus reads spans and deltas."""
    found, place, count, deltas = dict[int, int](), 0, 0, iter(histogram.positive_delta)
    for span in histogram.positive_span:
        place += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[place] = count
            place += 1
    assert next(deltas, None) is None
    return found


@given(seconds)
def test_a_native_histogram_has_each_observation_in_the_bucket_whose_bounds_hold_it(observed: list[float]) -> None:
    registry = CollectorRegistry()
    histogram = FastHistogram("took_seconds", "Of it", ("stage",), buckets=BOUNDS, registry=registry)
    for value in observed:
        histogram.labels("queue").observe(value)
    page = families(Exposition(registry).render(PROTOBUF).body)
    if not observed:
        assert page.keys() == {"took_seconds"}
        return
    [series] = page["took_seconds_native"].metric
    told = series.histogram
    assert [(label.name, label.value) for label in series.label] == [("stage", "queue")]
    assert (told.schema, told.zero_threshold, told.sample_count) == (SCHEMA, ZERO, len(observed))
    assert told.sample_sum == sum(observed)
    found = buckets(told)
    assert all(span.length for span in told.positive_span)
    assert told.zero_count == sum(value <= ZERO for value in observed)
    assert told.zero_count + sum(found.values()) == len(observed)
    for place, count in found.items():
        low, high = 2.0 ** ((place - 1) / 8), 2.0 ** (place / 8)
        held = [min(value, MOST) for value in observed]
        assert sum(low * (1 + 1e-12) < value <= high * (1 - 1e-12) for value in held) <= count
        assert count <= sum(low * (1 - 1e-12) <= value <= high * (1 + 1e-12) for value in held)


counts = st.integers(0, 2) | st.integers(0, 2**61)


@given(
    st.lists(st.tuples(st.text(max_size=3), st.lists(counts, min_size=4, max_size=4), st.floats(0)), max_size=4),
    st.dictionaries(st.integers(-159, 240), st.integers(1, 2**40), max_size=12),
)
def test_histograms_are_written_as_their_messages_are(
    series: list[tuple[str, list[int], float]], native: dict[int, int]
) -> None:
    """Whatever their counts and however many series: they are written past the messages, which would cost more."""
    children, expected = [], pb.MetricFamily(name="took", help="Of it", type=4)
    for name, numbers, total in series:
        child = Child(BOUNDS)
        child.counts, child.total, child.native = numbers, total, native
        children.append(((name, "b"), child))
        metric = expected.metric.add(label=[pb.LabelPair(name="a", value="b"), pb.LabelPair(name="z", value=name)])
        metric.histogram.sample_sum = total
        for count, bound in zip(accumulate(child.counts), (*BOUNDS, math.inf), strict=True):
            metric.histogram.bucket.add(cumulative_count=count, upper_bound=bound)
            metric.histogram.sample_count = count
    registry = CollectorRegistry()
    registry.register(Given(FastFamily("took", "Of it", ("z", "a"), BOUNDS, children)))
    page = families(Exposition(registry).render(PROTOBUF).body)
    assert page["took"] == expected
    for (_, child), metric in zip(children, page["took_native"].metric if series else (), strict=True):
        told = metric.histogram
        assert buckets(told) == {place: native.get(place, 0) for place in buckets(told)}
        assert native.keys() <= buckets(told).keys()
        assert told.sample_count == max(sum(child.counts), sum(native.values()))
        assert told.zero_count == told.sample_count - sum(native.values())


@given(seconds, st.floats(allow_nan=False), st.integers(0, 10**6))
def test_protobuf_says_what_text_says(observed: list[float], level: float, count: int) -> None:
    registry = CollectorRegistry()
    Gauge("level", "Of it", ["name"], registry=registry).labels('a "b"\n').set(level)
    Counter("events", "Of them", ["name"], registry=registry).labels("a").inc(count)
    FastCounter("requests_total", "Of them", ("tenant",), registry=registry).labels("acme").inc(count)
    slow = Histogram("slow", "Of it", buckets=BOUNDS, registry=registry)
    fast = FastHistogram("fast", "Of it", ("stage",), buckets=BOUNDS, registry=registry)
    for value in observed:
        slow.observe(value)
        fast.labels("queue").observe(value)
    exposition = Exposition(registry)
    text = {
        (name, tuple(sorted(sample.labels.items()))): sample.value
        for name, samples in parse(exposition.render().body.decode()).items()
        for sample in samples
        if not name.endswith("_created")
    }
    assert told(families(exposition.render(PROTOBUF).body)) == text


def told(page: dict[str, pb.MetricFamily]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What is in both forms, as the text names it."""
    found = {}
    for name, family in page.items():
        for series in family.metric:
            labels = tuple((label.name, label.value) for label in series.label)
            kind = ("counter", "gauge", "", "untyped", "histogram")[family.type]
            if kind != "histogram":
                assert series.HasField(kind)
                found[name, labels] = getattr(series, kind).value
            elif not name.endswith("_native"):
                found[f"{name}_count", labels] = series.histogram.sample_count
                found[f"{name}_sum", labels] = series.histogram.sample_sum
                for bucket in series.histogram.bucket:
                    bound = "+Inf" if math.isinf(bucket.upper_bound) else str(bucket.upper_bound)
                    found[f"{name}_bucket", tuple(sorted([*labels, ("le", bound)]))] = bucket.cumulative_count
    return found


def test_the_last_trace_of_each_bucket_is_its_exemplar_in_both_forms_that_have_some() -> None:
    registry = CollectorRegistry()
    child = FastHistogram("took", "Of it", ("stage",), buckets=BOUNDS, registry=registry).labels("queue")
    for value, trace in ((0.05, "a" * 32), (0.06, "b" * 32), (0.07, ""), (5.0, "c" * 32), (0.5, "")):
        child.observe(value, trace)
    expected = {0.1: ("b" * 32, 0.06), 10.0: ("c" * 32, 5.0)}
    exposition = Exposition(registry)
    [family] = openmetrics(exposition.render(OPENMETRICS).body.decode())
    assert {
        float(sample.labels["le"]): (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for sample in family.samples
        if sample.exemplar is not None
    } == expected
    classic = families(exposition.render(PROTOBUF).body)["took"].metric[0].histogram
    assert {
        bucket.upper_bound: (bucket.exemplar.label[0].value, bucket.exemplar.value)
        for bucket in classic.bucket
        if bucket.HasField("exemplar")
    } == expected


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        (PROTOBUF, "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"),
        (f"{OPENMETRICS},*/*", "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"),
    ],
)
def test_the_form_is_what_is_asked_for(accept: str, content_type: str) -> None:
    exposition = Exposition(CollectorRegistry())
    assert exposition.render(accept).content_type == content_type
    packed = exposition.render(accept, "gzip, br")
    assert packed.compressed
    assert gzip.decompress(packed.body) == exposition.render(accept).body


class Given(Collector):
    """One metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Held(Collector):
    """A metric whose reading waits."""

    def __init__(self) -> None:
        self.pages = 0
        self.reading, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def collect(self) -> Iterator[Metric]:
        self.pages += 1
        self.reading.release()
        self.go_on.acquire(timeout=30)
        yield GaugeMetricFamily("page", "Which", value=self.pages)


class Queued:
    """A lock that says who has come to it."""

    def __init__(self, came: threading.Semaphore) -> None:
        self._lock, self._came = threading.Lock(), came

    def __enter__(self) -> None:
        self._came.release()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_who_asks_while_a_page_is_made_shares_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The present one was begun before they came: what they counted meanwhile is not in it."""
    held, came = Held(), threading.Semaphore(0)
    exposition = Exposition(held)
    monkeypatch.setattr(exposition, "_making", Queued(came))
    with ThreadPoolExecutor(10) as scrapers:
        first = scrapers.submit(exposition.render)
        assert held.reading.acquire(timeout=30)
        others = [scrapers.submit(exposition.render) for _ in range(9)]
        for _ in range(10):
            assert came.acquire(timeout=30)
        for _ in range(10):
            held.go_on.release()
        said = {page.result(30).body for page in others}
    assert said == {b"# HELP page Which\n# TYPE page gauge\npage 2.0\n"}
    assert first.result().body.endswith(b"page 1.0\n")
    assert held.pages == 2


def test_a_page_is_made_anew_for_who_comes_after_it() -> None:
    registry = CollectorRegistry()
    gauge, exposition = Gauge("level", "Of it", registry=registry), Exposition(registry)
    for value in (1.0, 2.0):
        gauge.set(value)
        assert exposition.render().body.endswith(f"level {value}\n".encode())


@given(st.lists(st.floats(0, 1e12), max_size=300))
def test_while_nobody_scrapes_nothing_grows_beyond_its_buckets(observed: list[float]) -> None:
    """An hour without Prometheus is as much as a minute."""
    histogram = FastHistogram("took", "Of it", ("stage",), buckets=BOUNDS, registry=CollectorRegistry())
    child = histogram.labels("queue")
    for number in range(-400, 400):
        child.observe(1.09**number, f"{number:032x}")
    before = len(child.native), len(child.exemplars), len(child.counts)
    assert before == (400, len(BOUNDS) + 1, len(BOUNDS) + 1)
    for number, value in enumerate(observed):
        child.observe(value, f"{number:032x}")
    assert (len(child.native), len(child.exemplars), len(child.counts)) == before


def test_an_observation_beside_a_scrape_may_be_in_one_kind_and_not_yet_in_the_other() -> None:
    registry = CollectorRegistry()
    child = FastHistogram("took", "Of it", ("stage",), buckets=BOUNDS, registry=registry).labels("queue")
    child.observe(0.0)
    child.native[3] = 2  # which came after the counts were read
    [series] = families(Exposition(registry).render(PROTOBUF).body)["took_native"].metric
    assert (series.histogram.sample_count, series.histogram.zero_count, buckets(series.histogram)) == (2, 0, {3: 2})
