"""A process's metrics as a page, in the form that whoever asks takes: Prometheus's text, OpenMetrics, which has
exemplars, or protobuf, the only one with native histograms.

However many ask at once, one page is made at a time, and all who came before it was begun share it: what a scrape costs
is taken from the requests that the process serves. Between two metrics it gives way to the event loop.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from google.protobuf.message import Message
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
    return b"".join(_delimited(each) for metric in registry.collect() for each in _families(metric))


def _delimited(message: Message) -> bytes:
    body, length = message.SerializeToString(), bytearray()
    size = len(body)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((*length, size)) + body


def _families(metric: Metric) -> Iterator[pb.MetricFamily]:
    if metric.type == "histogram":
        yield _classic(metric)
        if isinstance(metric, FastFamily) and metric.children:
            yield _native(metric)
        return
    kind, by_name = _TYPES.get(metric.type, _UNTYPED), dict[str, pb.MetricFamily]()
    for sample in metric.samples:
        if sample.name.endswith("_created"):
            continue
        family = by_name.get(sample.name)
        if family is None:
            family = by_name[sample.name] = pb.MetricFamily(name=sample.name, help=metric.documentation, type=kind)
        series = family.metric.add(label=_labels(sample.labels))
        value = series.counter if kind == _COUNTER else series.gauge if kind == _GAUGE else series.untyped
        value.value = sample.value
    yield from by_name.values()


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


def _native(metric: FastFamily) -> pb.MetricFamily:
    family = pb.MetricFamily(name=f"{metric.name}_native", help=metric.documentation, type=_HISTOGRAM)
    for values, child in metric.children:
        series = family.metric.add(label=_labels(dict(zip(metric.names, values, strict=True))))
        histogram = series.histogram
        histogram.sample_count, histogram.sample_sum = sum(child.counts), child.total
        histogram.schema, histogram.zero_threshold = SCHEMA, ZERO
        _fill(histogram, child)
    return family


def _fill(histogram: pb.Histogram, child: Child) -> None:
    """The buckets, in spans without gaps; counts as differences."""
    buckets = sorted(child.native.items())
    histogram.zero_count = histogram.sample_count - sum(count for _, count in buckets)
    end, before = 0, 0
    for place, count in buckets:
        if not histogram.positive_span or place > end:
            histogram.positive_span.add(offset=place - end, length=1)
        else:
            histogram.positive_span[-1].length += 1
        end = place + 1
        histogram.positive_delta.append(count - before)
        before = count


def _labels(labels: Mapping[str, str]) -> Iterator[pb.LabelPair]:
    """In the order of their names, as Prometheus wants them."""
    return (pb.LabelPair(name=name, value=value) for name, value in sorted(labels.items()))
