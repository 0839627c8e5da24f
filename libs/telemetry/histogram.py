"""Prometheus histograms for paths that every request takes: an observation costs a tenth of `prometheus_client`'s,
which locks, and looks at each bucket in turn.

Observed on one event loop; read by whoever scrapes. A scrape beside an observation may see its count and not yet its
sum, as scrapes of several metrics always may.

Beside the declared buckets each has exponential ones, which nobody has to choose and which tell quantiles within 9%: a
native histogram, shown under its name and `_native` to a Prometheus that asks for protobuf (`exposition.py`; ADR 45).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil, log2

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import Exemplar, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

SCHEMA = 3
"""A native bucket's bound is 2^(2^-3) = 1.09 times that of the one before."""
ZERO = 2.0**-20
"""What is not above this, a microsecond, is in the bucket of zero."""
MOST = 2.0**30
"""What is above this is in its bucket: their number is bounded."""
_STEPS = 2**SCHEMA


class Child:
    """One series: observations by bucket."""

    __slots__ = ("_bounds", "counts", "exemplars", "native", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Not cumulative; the last is of what is above every bound."""
        self.total = 0.0
        self.native: dict[int, int] = {}
        """By number: bucket i has what is above 2^((i-1)/8) and up to 2^(i/8)."""
        self.exemplars: dict[int, tuple[str, float]] = {}
        """By place in `counts`, the last trace id that was told, and its value."""

    def observe(self, value: float, trace_id: str = "") -> None:
        """Count a value, in the bucket of the first bound that it does not exceed.

        :param trace_id: of the trace that it belongs to; empty: nobody records that.
        """
        place = bisect_left(self._bounds, value)
        self.counts[place] += 1
        self.total += value
        if value > ZERO:
            native, bucket = self.native, ceil(log2(value if value < MOST else MOST) * _STEPS)
            native[bucket] = native.get(bucket, 0) + 1
        if trace_id:
            self.exemplars[place] = trace_id, value


class FastFamily(Metric):
    """What a scrape reads: series, from which either kind of histogram is made. `samples`, which are most of what a
    page costs, are made where they are asked for."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: tuple[str, ...],
        bounds: tuple[float, ...],
        children: Sequence[tuple[tuple[str, ...], Child]] = (),
    ) -> None:
        self.labels = self._labelnames = labels  # the library's families have the latter
        self.bounds, self.children = bounds, children
        super().__init__(name, documentation, "histogram")

    @property
    def samples(self) -> list[Sample]:
        """See `Metric`."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        bounds = [*map(floatToGoString, self.bounds), "+Inf"]
        for values, child in self.children:
            counts = map(float, accumulate(child.counts))
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(zip(bounds, counts, strict=True))
            for place, (trace_id, value) in list(child.exemplars.items()):
                buckets[place] = (*buckets[place][:2], Exemplar({"trace_id": trace_id}, value))
            family.add_metric(values, buckets, child.total)
        return family.samples

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """Nothing: `Metric` begins with none."""


class FastHistogram(Collector):
    """Like `prometheus_client.Histogram`, with labels only."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        """:param buckets: upper bounds, ascending; infinity comes by itself."""
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labelnames)
        self._bounds = tuple(map(float, buckets))
        self._children: dict[tuple[str, ...], Child] = {}
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """The series of these values, in the order of the names; the same object each time."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{self._name} has the labels {self._labelnames}")
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Child(self._bounds)
        return child

    def describe(self) -> Iterator[FastFamily]:
        """See `Collector`: the names that it takes."""
        yield FastFamily(self._name, self._documentation, self._labelnames, self._bounds)

    def collect(self) -> Iterator[FastFamily]:
        """See `Collector`."""
        children = list(self._children.items())
        yield FastFamily(self._name, self._documentation, self._labelnames, self._bounds, children)
