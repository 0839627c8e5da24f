"""A process's metrics as a page, in the form that whoever asks takes: Prometheus's text, OpenMetrics, which has
exemplars, or protobuf, the only one with native histograms.

However many ask at once, one page is made at a time, and all who came before it was begun share it: what a scrape costs
is taken from the requests that the process serves. Between two metrics, each millisecond, it gives way to the loop.
"""

from __future__ import annotations

import gzip
import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from weir.telemetry.v1 import exposition_pb2 as pb

from libs.telemetry.counter import Counts
from libs.telemetry.histogram import SCHEMA, ZERO, Child, FastFamily

PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_COUNTER, _GAUGE, _UNTYPED, _HISTOGRAM = 0, 1, 3, 4
_TYPES = {"counter": _COUNTER, "gauge": _GAUGE, "histogram": _HISTOGRAM}
_FIELD, _DOUBLE = struct.Struct("<Bd"), struct.Struct("<d")
_VALUES = {_COUNTER: b"\x1a\x09\x09", _GAUGE: b"\x12\x09\x09", _UNTYPED: b"\x2a\x09\x09"}
"""A `Metric`'s value without its number."""
_GAP = 4
"""Empty buckets that are told."""
_SCALE = bytes((0x28, 2 * SCHEMA)) + _FIELD.pack(0x31, ZERO)
"""Of a native `Histogram`: `schema` and `zero_threshold`."""
_TURN, _WAY = 0.001, 0.00005
"""Seconds. The interpreter lets a thread that asks for it wait 5 ms before it takes the turn from one that computes."""


class Rendered(NamedTuple):
    """A page."""

    content_type: str
    body: bytes
    compressed: bool
    """With gzip."""


class Exposition:
    """The page of a registry. Asked in any number of threads."""

    def __init__(self, registry: Collector = REGISTRY) -> None:
        self._registry = _Yielding(registry)
        self._making = threading.Lock()
        self._begun = 0
        """Pages."""
        self._last: dict[tuple[str, bool], tuple[int, Rendered]] = {}

    def render(self, accept: str = "", accept_encoding: str = "") -> Rendered:
        """The page as it is now: what was counted before the call is in it. The headers are of the question."""
        encode, content_type = encoder(accept)
        form = content_type, gzip_accepted(accept_encoding)
        came = self._begun
        with self._making:
            number, found = self._last.get(form, (0, None))
            if found is None or number <= came:
                self._begun += 1
                number, body = self._begun, encode(self._registry)
                found = Rendered(content_type, gzip.compress(body, 1) if form[1] else body, form[1])
                self._last = {form: (number, found)}
            return found


class _Yielding(Collector):
    """Gives way between two metrics, when it has had its turn."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        begun = time.perf_counter()
        for family in self._registry.collect():
            yield family
            if time.perf_counter() - begun > _TURN:
                time.sleep(_WAY)
                begun = time.perf_counter()


def encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """How a page is written for this `Accept`, and its `Content-Type`: protobuf where that is named, as by a Prometheus
    that wants native histograms."""
    if any(each.split(";")[0].strip() == "application/vnd.google.protobuf" for each in accept.split(",")):
        return protobuf, PROTOBUF
    return choose_encoder(accept)


def protobuf(registry: Collector) -> bytes:
    """All metrics, each message behind its length."""
    return b"".join(_varint(len(body)) + body for metric in registry.collect() for body in _families(metric))


def _families(metric: Metric) -> Iterator[bytes]:
    """Each a `MetricFamily`."""
    if isinstance(metric, FastFamily):
        yield from _both(metric)
    elif isinstance(metric, Counts):
        yield from _counts(metric)
    elif metric.type == "histogram":
        yield _classic(metric).SerializeToString()
    else:
        yield from _values(metric)


def _counts(metric: Counts) -> Iterator[bytes]:
    """Written like `_values`."""
    kind = _TYPES[metric.type]
    labels, value, pack = metric.labels, _VALUES[kind], _DOUBLE.pack
    if found := [_series(_labelled(labels, values) + value + pack(count)) for values, count in metric.series]:
        yield _family(metric.name + "_total" * (kind == _COUNTER), metric.documentation, kind, found)


def _values(metric: Metric) -> Iterator[bytes]:
    """Counters and gauges. Their series are written as they travel: as messages they would cost three times as much."""
    kind, by_name = _TYPES.get(metric.type, _UNTYPED), dict[str, list[bytes]]()
    value = _VALUES[kind]
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            told = _labelled(tuple(sample.labels), tuple(sample.labels.values())) + value + _DOUBLE.pack(sample.value)
            by_name.setdefault(sample.name, []).append(_series(told))
    for name, found in by_name.items():
        yield _family(name, metric.documentation, kind, found)


def _series(metric: bytes) -> bytes:
    """A `Metric` of a `MetricFamily`."""
    return b"\x22" + _varint(len(metric)) + metric


def _family(name: str, text: str, kind: int, series: list[bytes]) -> bytes:
    return pb.MetricFamily(name=name, help=text, type=kind).SerializeToString() + b"".join(series)


@lru_cache(16_384)
def _labelled(names: tuple[str, ...], values: tuple[str, ...]) -> bytes:
    """The labels of a `Metric`, in the order of their names."""
    return pb.Metric(label=_labels(dict(zip(names, values, strict=True)))).SerializeToString()


def _classic(metric: Metric) -> pb.MetricFamily:
    family = pb.MetricFamily(name=metric.name, help=metric.documentation, type=_HISTOGRAM)
    series = dict[tuple[tuple[str, str], ...], pb.Histogram]()
    for sample in metric.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(labels.items())
        if key not in series:
            series[key] = family.metric.add(label=_labels(labels)).histogram
        histogram = series[key]
        if sample.name.endswith("_bucket"):
            histogram.bucket.append(_bucket(sample))
        elif sample.name.endswith("_count"):
            histogram.sample_count = int(sample.value)
        elif sample.name.endswith("_sum"):
            histogram.sample_sum = sample.value
    return family


def _bucket(sample: Sample) -> pb.Bucket:
    bucket = pb.Bucket(cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"]))
    if (found := sample.exemplar) is not None:
        bucket.exemplar.value = found.value
        bucket.exemplar.label.extend(_labels(found.labels))
    return bucket


def _both(metric: FastFamily) -> Iterator[bytes]:
    """The classic histogram, and the native one where there is something to show. Written like `_values`."""
    classic, native, gaps = list[bytes](), list[bytes](), _gaps(metric.bounds)
    for values, child in metric.children:
        labels = _labelled(metric.labels, values)
        buckets, count = _cumulative(child.counts, gaps)
        histogram = _totals(count, child.total) + buckets
        if child.exemplars:
            histogram = _with_exemplars(histogram, child)
        classic.append(_series(labels + b"\x3a" + _varint(len(histogram)) + histogram))
        histogram = _native(child, count)
        native.append(_series(labels + b"\x3a" + _varint(len(histogram)) + histogram))
    yield _family(metric.name, metric.documentation, _HISTOGRAM, classic)
    if native:
        yield _family(f"{metric.name}_native", metric.documentation, _HISTOGRAM, native)


@lru_cache
def _gaps(bounds: tuple[float, ...]) -> list[list[bytes]]:
    """What stands before the count of each bucket and behind the last one's, by the bytes that a count takes: the end
    of the bucket before, and the begin of its own."""
    ends = [b"", *(_FIELD.pack(0x11, bound) for bound in (*bounds, math.inf))]
    return [[end + bytes((0x1A, 10 + size, 0x08)) for end in ends[:-1]] + ends[-1:] for size in range(11)]


def _cumulative(counts: list[int], gaps: list[list[bytes]]) -> tuple[bytes, int]:
    """The `Bucket`s of a classic `Histogram` with these counts, not cumulative ones, and all their observations.

    Buckets are most of a page. Many have the count of the one before: what lies between the counts is the same in every
    series, and is joined by the count.
    """
    written, count, begun = list[bytes](), 0, 0
    for place, number in enumerate(counts):
        if number and place > begun:
            told = _varint(count)
            written.append(told.join((*gaps[len(told)][begun:place], b"")))
            begun = place
        count += number
    told = _varint(count)
    written.append(told.join(gaps[len(told)][begun:]))
    return b"".join(written), count


def _totals(count: int, total: float) -> bytes:
    """Of a `Histogram`."""
    return (b"\x08" + _varint(count) if count else b"") + (_FIELD.pack(0x11, total) if total else b"")


def _with_exemplars(histogram: bytes, child: Child) -> bytes:
    made = pb.Histogram.FromString(histogram)
    for place, (trace_id, value) in list(child.exemplars.items()):
        exemplar = made.bucket[place].exemplar
        exemplar.value = value
        exemplar.label.add(name="trace_id", value=trace_id)
    return made.SerializeToString()


@lru_cache(4096)
def _varint(number: int) -> bytes:
    length = bytearray()
    while number > 127:
        length.append(number & 127 | 128)
        number >>= 7
    return bytes((*length, number))


def _native(child: Child, count: int) -> bytes:
    """A `Histogram`: its buckets in spans, counts as differences; a few empty ones are told."""
    spans, deltas = list[list[int]](), list[int]()
    end, before, held = 0, 0, 0
    for place, number in sorted(child.native.items()):
        held += number
        if spans and place - end <= _GAP:
            if place > end:
                deltas += [-before, *[0] * (place - end - 1)]
                before = 0
            spans[-1][1] += place + 1 - end
        else:
            spans.append([place - end, 1])
        deltas.append(number - before)
        end, before = place + 1, number
    count = max(held, count)  # there may have been one since those were counted
    told = _totals(count, child.total) + _SCALE
    if zeros := count - held:
        told += b"\x38" + _varint(zeros)
    for offset, length in spans:
        span = (b"\x08" + _signed(offset) if offset else b"") + b"\x10" + _varint(length)
        told += b"\x62" + _varint(len(span)) + span
    if deltas:
        packed = b"".join(map(_signed, deltas))
        told += b"\x6a" + _varint(len(packed)) + packed
    return told


@lru_cache(4096)
def _signed(number: int) -> bytes:
    """As protobuf's `sint64`."""
    return _varint(2 * number if number >= 0 else -2 * number - 1)


def _labels(labels: Mapping[str, str]) -> Iterator[pb.LabelPair]:
    """In the order of their names, as Prometheus wants them."""
    return (pb.LabelPair(name=name, value=value) for name, value in sorted(labels.items()))
