"""What becomes of versions, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge

from libs.telemetry.counter import FastGauge


class DesiredMetrics:
    """Implements `libs.versions.desired.Watcher`. One per process.

    :param prefix: of the metrics' names, "weir_worker_".
    """

    def __init__(self, prefix: str) -> None:
        self.load_seconds = FastGauge(
            f"{prefix}load_seconds", "Duration of each stage of a version's last load.", ("model", "stage")
        )
        self.state = Gauge(
            f"{prefix}model_state", "1 for the state of each version that the registry wants here.", ["model", "state"]
        )
        self.failures = Counter(f"{prefix}model_failures", "Versions that could not be loaded, by reason.", ["reason"])
        self._states: dict[str, str] = {}

    def model_state(self, model: str, state: str | None) -> None:
        """See `Watcher`."""
        if (before := self._states.pop(model, None)) is not None:
            self.state.remove(model, before)
        if state is not None:
            self.state.labels(model, state).set(1)
            self._states[model] = state

    def loaded(self, model: str, stages: Mapping[str, float]) -> None:
        """See `Watcher`."""
        for stage, seconds in stages.items():
            self.load_seconds.labels(model, stage).set(seconds)

    def unloaded(self, model: str) -> None:
        """See `Watcher`."""
        self.load_seconds.forget(model)

    def failed(self, reason: str) -> None:
        """See `Watcher`."""
        self.failures.labels(reason).inc()
