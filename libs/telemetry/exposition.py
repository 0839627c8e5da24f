"""A process's metrics as a page, in the form that whoever asks takes: Prometheus's text, OpenMetrics, which has
exemplars, or protobuf, the only one with native histograms.

However many ask at once, one page is made at a time, and all who came before it was begun share it: what a scrape costs
is taken from the requests that the process serves. Between two metrics it gives way to the event loop.
"""

from __future__ import annotations

import gzip
import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from weir.telemetry.v1 import exposition_pb2 as pb

from libs.telemetry.histogram import SCHEMA, ZERO, Child, FastFamily

PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_COUNTER, _GAUGE, _UNTYPED, _HISTOGRAM = 0, 1, 3, 4
_TYPES = {"counter": _COUNTER, "gauge": _GAUGE, "histogram": _HISTOGRAM}
_BOUND, _DOUBLE = struct.Struct("<Bd"), struct.Struct("<d")
_VALUES = {_COUNTER: b"\x1a\x09\x09", _GAUGE: b"\x12\x09\x09", _UNTYPED: b"\x2a\x09\x09"}
"""A `Metric`'s value without its number."""
_GAP = 4
"""Empty buckets that are told."""
_WAY = 0.00005
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
    """Gives way between two metrics."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            yield family
            time.sleep(_WAY)


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
    elif metric.type == "histogram":
        yield _classic(metric).SerializeToString()
    else:
        yield from _values(metric)


def _values(metric: Metric) -> Iterator[bytes]:
    """Counters and gauges. Their series are written as they travel: as messages they would cost three times as much."""
    kind, by_name = _TYPES.get(metric.type, _UNTYPED), dict[str, list[bytes]]()
    value = _VALUES[kind]
    for sample in metric.samples:
        if not sample.name.endswith("_created"):
            told = b"".join(map(_pair, sorted(sample.labels.items()))) + value + _DOUBLE.pack(sample.value)
            by_name.setdefault(sample.name, []).append(_series(told))
    for name, found in by_name.items():
        yield _family(name, metric.documentation, kind, found)


def _series(metric: bytes) -> bytes:
    """A `Metric` of a `MetricFamily`."""
    return b"\x22" + _varint(len(metric)) + metric


def _family(name: str, text: str, kind: int, series: list[bytes]) -> bytes:
    return pb.MetricFamily(name=name, help=text, type=kind).SerializeToString() + b"".join(series)


@lru_cache(8192)
def _pair(label: tuple[str, str]) -> bytes:
    """A label of a `Metric`."""
    body = pb.LabelPair(name=label[0], value=label[1]).SerializeToString()
    return b"\x0a" + _varint(len(body)) + body


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
    classic, native = list[bytes](), list[bytes]()
    order = sorted(range(len(metric.labels)), key=metric.labels.__getitem__)
    bounds = [_BOUND.pack(0x11, bound) for bound in (*metric.bounds, math.inf)]
    for values, child in metric.children:
        labels = b"".join([_pair((metric.labels[place], values[place])) for place in order])
        counts = list(accumulate(child.counts))
        histogram = pb.Histogram(sample_count=counts[-1], sample_sum=child.total).SerializeToString()
        histogram += b"".join(map(_counted, counts, bounds))
        if child.exemplars:
            histogram = _with_exemplars(histogram, child)
        classic.append(_series(labels + b"\x3a" + _varint(len(histogram)) + histogram))
        histogram = _native(child, counts[-1]).SerializeToString()
        native.append(_series(labels + b"\x3a" + _varint(len(histogram)) + histogram))
    yield _family(metric.name, metric.documentation, _HISTOGRAM, classic)
    if native:
        yield _family(f"{metric.name}_native", metric.documentation, _HISTOGRAM, native)


def _with_exemplars(histogram: bytes, child: Child) -> bytes:
    made = pb.Histogram.FromString(histogram)
    for place, (trace_id, value) in list(child.exemplars.items()):
        exemplar = made.bucket[place].exemplar
        exemplar.value = value
        exemplar.label.add(name="trace_id", value=trace_id)
    return made.SerializeToString()


def _counted(count: int, bound: bytes) -> bytes:
    """A `Bucket` of a `Histogram` as it travels: they are most of a page, and as messages would be most of its cost."""
    told = _varint(count)
    return bytes((0x1A, 10 + len(told), 0x08)) + told + bound


@lru_cache(4096)
def _varint(number: int) -> bytes:
    length = bytearray()
    while number > 127:
        length.append(number & 127 | 128)
        number >>= 7
    return bytes((*length, number))


def _native(child: Child, count: int) -> pb.Histogram:
    """Its buckets in spans, counts as differences; a few empty buckets are less than a span of their own."""
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
    return pb.Histogram(
        sample_count=count,
        sample_sum=child.total,
        schema=SCHEMA,
        zero_threshold=ZERO,
        zero_count=count - held,
        positive_span=[pb.BucketSpan(offset=offset, length=length) for offset, length in spans],
        positive_delta=deltas,
    )


def _labels(labels: Mapping[str, str]) -> Iterator[pb.LabelPair]:
    """In the order of their names, as Prometheus wants them."""
    return (pb.LabelPair(name=name, value=value) for name, value in sorted(labels.items()))
