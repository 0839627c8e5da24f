"""The predictor's metrics, under Triton's names with our prefix. What is counted per version is read out of
`statistics.py` when somebody scrapes: a request pays for no metric twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from libs.telemetry.counter import Counts
from libs.telemetry.histogram import FastFamily, FastHistogram
from libs.versions.metrics import DesiredMetrics
from services.predictor.executors import Ran
from services.predictor.statistics import BUCKETS, SIZES, Duration, Statistics, Version

_NAME = "weir_predictor_"
_COUNTS = {
    "inference_request_success": ("Requests answered.", lambda v: v.success.count),
    "inference_request_failure": ("Requests refused or failed.", lambda v: v.fail.count),
    "inference_count": ("Rows computed.", lambda v: v.rows),
    "inference_exec_count": ("Executions of the model, each of a batch.", lambda v: v.executions),
    "inference_queue_duration_seconds": ("Seconds that requests waited for an executor.", lambda v: v.queue.seconds),
    "inference_compute_input_duration_seconds": ("Seconds of putting batches together.", lambda v: v.input.seconds),
    "inference_compute_infer_duration_seconds": ("Seconds of running the model.", lambda v: v.infer.seconds),
    "inference_compute_output_duration_seconds": ("Seconds of taking batches apart.", lambda v: v.output.seconds),
    "cache_hits": ("Requests answered by what was kept.", lambda v: v.cache_hit.count),
    "cache_misses": ("Requests that were looked up in vain.", lambda v: v.cache_miss.count),
}


class VersionMetrics(Collector):
    """Reads `Statistics`."""

    def __init__(self) -> None:
        self._statistics = Statistics()

    def watch(self, statistics: Statistics) -> None:
        """Read these from here on."""
        self._statistics = statistics

    def describe(self) -> Iterator[Metric]:
        """See `Collector`: the names that it takes."""
        return iter(self._families([]))

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        return iter(self._families(list(self._statistics)))

    def _families(self, versions: Iterable[tuple[str, Version]]) -> list[Metric]:
        found: list[Metric] = []
        for name, (documentation, read) in _COUNTS.items():
            series = [((version,), read(counts)) for version, counts in versions]
            found.append(Counts(_NAME + name, documentation, ("model",), series))
        durations = [((version,), counts.durations) for version, counts in versions]
        sizes = [((version,), counts.sizes) for version, counts in versions]
        name, text = _NAME + "inference_request_duration_seconds", "Seconds of answered requests here."
        return [
            *found,
            FastFamily(name, text, ("model",), BUCKETS, durations),
            FastFamily(_NAME + "batch_rows", "Rows of executed batches.", ("model",), SIZES, sizes),
        ]


VERSIONS = VersionMetrics()
REGISTRY.register(VERSIONS)
FORWARDED = Counter(
    _NAME + "forwarded_total", "Requests handed on to a predictor that has their version, by what it said.", ["outcome"]
)
REFUSED = Counter(_NAME + "refused", "Requests that got no answer, by reason.", ["reason"])
DEGRADED = Counter(_NAME + "degraded", "Degraded answers, by version asked for and flag.", ["model", "step"])
IDEMPOTENCY = Counter(_NAME + "idempotency", "Predictions with idempotency keys.", ["outcome"])
ACTIVE = Gauge(_NAME + "active_requests", "Requests that are here.")
CACHE_BYTES = Gauge(_NAME + "cache_bytes", "Memory of kept answers.")
MODELS = DesiredMetrics(_NAME)
_STAGE = FastHistogram(
    _NAME + "stage_seconds", "Seconds per stage of predictions, of all versions.", ("stage",), buckets=BUCKETS
)
EDGE = _STAGE.labels("edge")
"""As a gateway's."""
_QUEUE, _INPUT, _INFER, _OUTPUT = map(_STAGE.labels, ("queue", "input", "infer", "output"))


def observe(ran: Ran) -> None:
    """A request ran."""
    _QUEUE.observe(ran.queue)
    _INPUT.observe(ran.input)
    _INFER.observe(ran.compute)
    _OUTPUT.observe(ran.output)


def nanoseconds(duration: Duration) -> int:
    """As Triton tells durations."""
    return round(duration.seconds * 1e9)
