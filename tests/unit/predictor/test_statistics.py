"""What is counted of requests and executions, and that Triton's clients and Prometheus read the same."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from services.predictor import describe, metrics
from services.predictor.executors import Ran
from services.predictor.metrics import VersionMetrics
from services.predictor.statistics import EXACT, Statistics


def ran(rows: int, *, first: bool = True, compute: float = 0.002) -> Ran:
    return Ran({}, rows, int(first), queue=0.25, input=0.5, compute=compute, output=0.125)


def counted() -> Statistics:
    """Two requests of 1 and 3 rows in one batch, and one of 100 rows; one failure."""
    statistics = Statistics()
    counts = statistics.of("m@1")
    counts.ran(ran(4), 1)
    counts.ran(ran(4, first=False), 3)
    counts.ran(ran(100, compute=0.01), 100)
    for seconds in (0.003, 0.003, 0.02):
        counts.succeeded(seconds, now=1000.5)
    counts.failed(0.1, now=1001.0)
    return statistics


def test_requests_are_counted_each_and_executions_once() -> None:
    counts = counted().of("m@1")
    assert (counts.success.count, counts.fail.count, counts.rows, counts.executions) == (3, 1, 104, 2)
    assert counts.queue.seconds == 0.75
    assert {size: batches.infer.count for size, batches in counts.by_size.items()} == {4: 1, 128: 1}
    assert EXACT < 100


def test_tritons_clients_read_them() -> None:
    told = describe.statistics([("m", "m@1"), ("n", "n@2")], counted()).model_stats
    assert [(each.name, each.version, each.inference_count, each.execution_count) for each in told] == [
        ("m", "1", 104, 2),
        ("n", "2", 0, 0),
    ]
    stats = told[0].inference_stats
    assert (stats.success.count, stats.fail.count, stats.queue.count, stats.queue.ns) == (3, 1, 3, 750_000_000)
    assert told[0].last_inference == 1_001_000
    assert [(each.batch_size, each.compute_infer.count) for each in told[0].batch_stats] == [(4, 1), (128, 1)]


def test_prometheus_reads_the_same() -> None:
    registry, collector = CollectorRegistry(), VersionMetrics()
    collector.watch(counted())
    registry.register(collector)
    text = generate_latest(registry).decode()
    for line in (
        'weir_predictor_inference_request_success_total{model="m@1"} 3.0',
        'weir_predictor_inference_request_failure_total{model="m@1"} 1.0',
        'weir_predictor_inference_count_total{model="m@1"} 104.0',
        'weir_predictor_inference_exec_count_total{model="m@1"} 2.0',
        'weir_predictor_inference_queue_duration_seconds_total{model="m@1"} 0.75',
        'weir_predictor_inference_request_duration_seconds_bucket{le="0.005",model="m@1"} 2.0',
        'weir_predictor_inference_request_duration_seconds_count{model="m@1"} 3.0',
        'weir_predictor_batch_rows_bucket{le="4.0",model="m@1"} 1.0',
        'weir_predictor_batch_rows_bucket{le="+Inf",model="m@1"} 2.0',
    ):
        assert line in text.splitlines(), line


def test_versions_that_are_gone_are_forgotten() -> None:
    statistics = counted()
    statistics.keep(frozenset({"n@2"}))
    assert list(statistics) == []


def test_what_ran_is_observed_by_stage() -> None:
    def told() -> dict[str, float | None]:
        name = "weir_predictor_stage_seconds_sum"
        return {
            each: REGISTRY.get_sample_value(name, {"stage": each}) for each in ("queue", "input", "infer", "output")
        }

    before = told()
    metrics.observe(ran(4))
    after = told()
    gained = {stage: (after[stage] or 0.0) - (before[stage] or 0.0) for stage in after}
    assert gained == pytest.approx({"queue": 0.25, "input": 0.5, "infer": 0.002, "output": 0.125})


def test_the_trace_of_an_answer_is_an_exemplar_of_its_duration() -> None:
    counts = Statistics().of("m@1")
    counts.succeeded(0.003, 1.0, "a" * 32)
    counts.succeeded(0.003, 1.0)
    assert list(counts.durations.exemplars.values()) == [("a" * 32, 0.003)]
