"""Scrapes of a simulated mesh: the pages that its admission and its workers would show, for `libs.diagnosis`.

Admission's are made by its own metrics out of its own pool; the workers' have the names of services/worker/metrics.py,
which `tests/unit/diagnosis` holds them to.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import REGISTRY, generate_latest

from libs.diagnosis import Process, Sample, Scrape, parse
from services.admission.metrics import PoolMetrics
from services.admission.policy.model import Granted, Refused
from simulation.hosts import Host
from simulation.live import Live
from simulation.scenario import Scenario
from simulation.simulator import Simulator

_ADMISSION = Process("admission-1", "admission")


class Observer(Simulator):
    """A run that is scraped at these moments.

    :param pool: the name in the metrics' labels; no other run of this process may have it, as counters live on.
    """

    def __init__(self, scenario: Scenario, *, moments: Sequence[float], pool: str) -> None:
        super().__init__(scenario)
        self.scrapes: list[Scrape] = []
        """In the order of time."""
        self._metrics = PoolMetrics(pool)
        self._pool = pool
        for moment in moments:
            self.clock.at(moment, self._scrape)

    def _granted(self, live: Live, granted: Granted) -> None:
        self._metrics.granted(live.queue_class, granted.waited)
        super()._granted(live, granted)

    def _refused(self, live: Live, refused: Refused) -> None:
        self._metrics.left(live.queue_class, refused.outcome)
        super()._refused(live, refused)

    def _scrape(self, _: object) -> None:
        now = self.clock.now
        self._metrics.publish(self._owners.pools[-1], now)
        told = generate_latest(REGISTRY).decode().splitlines()
        own = [line for line in told if line.startswith("weir_admission_") and f'pool="{self._pool}"' in line]
        pages = {_ADMISSION: parse("\n".join(own))}
        for name, host in self._hosts.by_name.items():
            if host.live:
                pages[Process(name, "worker", host.spec.zone)] = page(host)
        self.scrapes.append(Scrape(now, pages))


def page(host: Host) -> dict[str, list[Sample]]:
    """A worker's page."""
    engine, load, none = host.engine, host.engine.load(), dict[str, str]()
    values = {
        "weir_worker_num_requests_running": load.running,
        "weir_worker_num_requests_waiting": load.waiting,
        "weir_worker_kv_cache_usage_perc": 1.0 - load.free_blocks / engine.sizes.total_blocks,
        "weir_worker_kv_cache_free_blocks": load.free_blocks,
        "weir_worker_decode_step_seconds": load.decode_step,
        "weir_worker_prefill_tokens_per_second": load.prefill_tokens_per_second,
        "weir_worker_prompt_tokens_total": engine.prefilled,
        "weir_worker_generation_tokens_total": engine.tokens,
        "weir_worker_step_seconds_sum": engine.busy_seconds,
        "weir_worker_step_seconds_count": engine.steps,
    }
    found = {name: [Sample(none, float(value))] for name, value in values.items()}
    preempted = float(getattr(engine, "preemptions", 0))
    found["weir_worker_num_preemptions_total"] = [Sample({"cause": "engine"}, preempted)]
    ready = [Sample({"model": each, "state": "ready"}, 1.0) for each in sorted(host.spec.model_versions)]
    return {**found, "weir_worker_model_state": ready}
