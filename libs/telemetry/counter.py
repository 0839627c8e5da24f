"""Prometheus counters and gauges for paths that every request takes and for many series: like
`libs/telemetry/histogram.py`, without a lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample


class Counts(Metric):
    """What a scrape reads: series. `samples`, which cost more than the series do, are made where they are asked for."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: tuple[str, ...],
        series: Sequence[tuple[tuple[str, ...], float]] = (),
        kind: str = "counter",
    ) -> None:
        self.labels = self._labelnames = labels  # the library's families have the latter
        self.series = series
        super().__init__(name.removesuffix("_total") if kind == "counter" else name, documentation, kind)

    @property
    def samples(self) -> list[Sample]:
        """See `Metric`."""
        kind = CounterMetricFamily if self.type == "counter" else GaugeMetricFamily
        family = kind(self.name, self.documentation, labels=self.labels)
        for values, count in self.series:
            family.add_metric(values, count)
        return family.samples

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """Nothing: `Metric` begins with none."""


class Count:
    """One series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add to it; nothing negative."""
        self.value += amount

    def set(self, value: float) -> None:
        """Of a gauge."""
        self.value = value


class FastCounter(Collector):
    """Like `prometheus_client.Counter`, with labels only; counted on one event loop."""

    _kind = "counter"

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str], *, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._told = name, documentation, tuple(labelnames)
        self._counts: dict[tuple[str, ...], Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """The series of these values, in the order of the names; the same object each time."""
        if len(values) != len(self._told[2]):
            raise ValueError(f"{self._told[0]} has the labels {self._told[2]}")
        count = self._counts.get(values)
        if count is None:
            count = self._counts[values] = Count()
        return count

    def forget(self, first: str) -> None:
        """Show no series any more whose first label has this value."""
        self._counts = {values: count for values, count in self._counts.items() if values[0] != first}

    def describe(self) -> Iterator[Counts]:
        """See `Collector`: the names that it takes."""
        yield Counts(*self._told, kind=self._kind)

    def collect(self) -> Iterator[Counts]:
        """See `Collector`."""
        series = [(values, count.value) for values, count in list(self._counts.items())]
        yield Counts(*self._told, series, self._kind)


class FastGauge(FastCounter):
    """Likewise `prometheus_client.Gauge`."""

    _kind = "gauge"
