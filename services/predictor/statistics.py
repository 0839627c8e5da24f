"""What became of requests, by version, split as Triton splits it: queue, input, infer, output; requests against
executions. One set of counts, read by `ModelStatistics` and by Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from libs.telemetry.histogram import Child
from services.predictor.executors import Ran

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds of a request, upper bounds."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Rows of a batch, upper bounds."""
EXACT = 64
"""Batches of up to so many rows are told apart."""


class Duration:
    """How often, and how long in all."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Once more."""
        self.count += 1
        self.seconds += seconds


class Batches:
    """Executions of batches of some size."""

    __slots__ = ("infer", "input", "output")

    def __init__(self) -> None:
        self.input = Duration()
        self.infer = Duration()
        self.output = Duration()


class Version:
    """The counts of one version; they only grow."""

    def __init__(self) -> None:
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.input = Duration()
        self.infer = Duration()
        self.output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.rows = 0
        """Inferences: rows that were computed."""
        self.executions = 0
        self.last = 0.0
        """Unix seconds of the last request."""
        self.by_size: dict[int, Batches] = {}
        """By rows of the batch; beyond `EXACT` by the bound that is next to them."""
        self.durations = Child(BUCKETS)
        self.sizes = Child(SIZES)

    def ran(self, ran: Ran, rows: int) -> None:
        """A request of `rows` ran."""
        self.rows += rows
        self.queue.add(ran.queue)
        self.input.add(ran.input)
        self.infer.add(ran.compute)
        self.output.add(ran.output)
        if ran.executions:
            self._executed(ran)

    def _executed(self, ran: Ran) -> None:
        self.executions += ran.executions
        place = bisect_left(SIZES, ran.rows)
        self.sizes.observe(ran.rows)
        size = ran.rows if ran.rows <= EXACT else SIZES[min(place, len(SIZES) - 1)]
        batches = self.by_size.get(size)
        if batches is None:
            batches = self.by_size[size] = Batches()
        batches.input.add(ran.input)
        batches.infer.add(ran.compute)
        batches.output.add(ran.output)

    def succeeded(self, seconds: float, now: float, trace_id: str = "") -> None:
        """It was answered; `now`: Unix seconds. `trace_id` where it is traced."""
        self.success.add(seconds)
        self.durations.observe(seconds, trace_id)
        self.last = now

    def failed(self, seconds: float, now: float) -> None:
        """It was not."""
        self.fail.add(seconds)
        self.last = now


class Statistics:
    """Of all versions that are or were asked for here and are registered; see `keep`."""

    def __init__(self) -> None:
        self._versions: dict[str, Version] = {}

    def of(self, version: str) -> Version:
        """The counts of a registered version."""
        found = self._versions.get(version)
        if found is None:
            found = self._versions[version] = Version()
        return found

    def find(self, version: str) -> Version | None:
        """The same, if there are any."""
        return self._versions.get(version)

    def keep(self, versions: frozenset[str]) -> None:
        """Forget what is not among these."""
        for gone in self._versions.keys() - versions:
            del self._versions[gone]

    def __iter__(self) -> Iterator[tuple[str, Version]]:
        return iter(sorted(self._versions.items()))
