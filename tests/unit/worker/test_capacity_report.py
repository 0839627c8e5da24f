"""What an engine says of its load arrives whole: in the report to admission and in the metrics."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry
from weir.admission.v1 import admission_pb2

from services.worker import metrics
from services.worker.capacity import Term, report_frame
from services.worker.engines.port import Capacity

LOAD = Capacity(
    free_blocks=90,
    running=3,
    waiting=2,
    queued_prefill_tokens=77,
    last_step_seconds=0.25,
    decode_step_seconds=0.125,
    prefill_tokens_per_second=1500.5,
    cached_blocks=10,
    swapped=1,
    fragmentation=0.375,
    prefix_queried_total=2**33,
    prefix_hit_total=2**32,
    preemptions_total=5,
    spilled_blocks=6,
    resident=("m@1", "n@2"),
)
NAMES = {"last_step_seconds": "last_step", "decode_step_seconds": "decode_step", "resident": "resident_models"}
DURATIONS = ("last_step_seconds", "decode_step_seconds")


def test_the_report_carries_every_field_of_the_port() -> None:
    term = Term(epoch=2**40, owner="admission-0", earlier_blocks=7, earlier_sequences=2)
    far = [("r1", 16), ("r2", 64)]
    report = report_frame(LOAD, term, draining=True, versions=("m@1", "m@2"), further=far).report
    assert [(each.request_id, each.output_tokens) for each in report.progress] == far
    assert Term(*(getattr(report, name) for name in Term._fields)) == term
    assert list(report.model_versions) == ["m@1", "m@2"]
    for field in fields(Capacity):
        told = getattr(report, NAMES.get(field.name, field.name))
        value = told.ToNanoseconds() / 1e9 if field.name in DURATIONS else told
        value = tuple(value) if field.name == "resident" else value
        assert value == getattr(LOAD, field.name), field.name
    assert report.draining
    named = {NAMES.get(field.name, field.name) for field in fields(Capacity)} | set(Term._fields)
    named |= {"draining", "model_versions", "progress"}
    assert {field.name for field in admission_pb2.CapacityReport.DESCRIPTOR.fields} == named


def test_an_engine_that_has_all_in_memory_names_none() -> None:
    assert not report_frame(replace(LOAD, resident=None), Term(), draining=False).report.resident_models


def test_a_clock_that_went_backwards_is_no_negative_duration() -> None:
    load = Capacity(free_blocks=1, running=0, waiting=0, queued_prefill_tokens=0, last_step_seconds=-1.0)
    assert report_frame(load, Term(), draining=False).report.last_step.ToNanoseconds() == 0


class Loaded:
    """The part of an engine that the metrics read."""

    class info:  # noqa: N801 - stands for the property
        total_blocks = 100
        max_running = 8
        load_seconds: ClassVar = {"m@1": {"verify": 0.25, "read": 1.5}}
        weight_cache_files: ClassVar = {"hit": 3, "miss": 1}

    def capacity(self) -> Capacity:
        return LOAD


def test_preemptions_are_told_apart_by_their_cause() -> None:
    registry = CollectorRegistry()
    preemptions = metrics.Preemptions()
    registry.register(preemptions)
    name = "weir_worker_num_preemptions_total"
    assert registry.get_sample_value(name, {"cause": "engine"}) == 0
    preemptions.watch(Loaded())  # type: ignore[arg-type]
    preemptions.inc(2)
    assert registry.get_sample_value(name, {"cause": "engine"}) == 5
    assert registry.get_sample_value(name, {"cause": "admission"}) == 2


def test_gauges_are_read_from_the_engine() -> None:
    metrics.watch(Loaded())  # type: ignore[arg-type]
    expected = {
        metrics.SWAPPED: 1,
        metrics.KV_USAGE: 0.1,
        metrics.KV_FREE: 90,
        metrics.BATCH_USAGE: 0.375,
        metrics.KV_CACHED: 10,
        metrics.KV_SPILLED: 6,
        metrics.KV_FRAGMENTATION: 0.375,
        metrics.DECODE_STEP: 0.125,
        metrics.PREFILL_RATE: 1500.5,
    }
    for gauge, value in expected.items():
        [sample] = next(iter(gauge.collect())).samples
        assert sample.value == pytest.approx(value), sample.name
    assert metrics.MODELS.load_seconds.labels("m@1", "read").value == 1.5
    assert metrics.WEIGHT_CACHE.labels("hit")._value.get() == 3
