"""What the registry accepts and refuses of plans, objectives and prices."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.plans import check_plan, check_price, check_slo
from libs.resources.snapshot import RegistrySnapshot
from tests.support.messages import fields_of, having, seconds

SNAPSHOT = RegistrySnapshot(
    model_versions={"quality@1": pb.ModelVersion(name="quality", version="1", pool="gpu")},
    endpoints={
        ("worker", "w0"): pb.Endpoint(service="worker", instance="w0", pool="cpu"),
        ("gateway", "g0"): pb.Endpoint(service="gateway", instance="g0", pool="tpu"),
    },
)


def cap(max_tokens: int = 64, pressure: float = 0.5) -> pb.DegradationStep:
    return pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=max_tokens, pressure=pressure))


def smaller(**models: str) -> pb.DegradationStep:
    return pb.DegradationStep(smaller_model=pb.SmallerModel(models=models))


def cached(age: float | None = 60.0) -> pb.DegradationStep:
    return pb.DegradationStep(cached_answer=pb.CachedAnswer(max_age=None if age is None else seconds(age)))


def fallback(**pools: str) -> pb.DegradationStep:
    return pb.DegradationStep(cpu_fallback=pb.CpuFallback(pools=pools))


def default(text: str = "We are busy.\nPlease come back.") -> pb.DegradationStep:
    return pb.DegradationStep(default_answer=pb.DefaultAnswer(text=text))


LADDER = [cap(), smaller(quality="fast"), cached(), fallback(gpu="cpu"), default()]
PLAN = pb.PlanPolicy(id="free", weight=1.0, over_quota=pb.OVER_QUOTA_SERVE_IDLE, kv_share=0.25, ladder=LADDER)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"weight": 0.0, "kv_share": 0.0, "over_quota": 0, "ladder": []}, []),
        ({"kv_share": 1.0, "weight": 1000.0}, []),
        ({"id": "Free"}, ["metadata.name"]),
        ({"id": ""}, ["metadata.name"]),
        ({"weight": -0.5}, ["spec.weight"]),
        ({"weight": 1000.5}, ["spec.weight"]),
        ({"weight": math.nan}, ["spec.weight"]),
        ({"weight": math.inf}, ["spec.weight"]),
        ({"over_quota": 3}, ["spec.over_quota"]),
        ({"over_quota": -1}, ["spec.over_quota"]),
        ({"kv_share": 1.1}, ["spec.kv_share"]),
        ({"kv_share": -0.1}, ["spec.kv_share"]),
        ({"kv_share": math.nan}, ["spec.kv_share"]),
        ({"ladder": [cap(64 - n) for n in range(8)]}, []),
        ({"ladder": [cap(64 - n) for n in range(9)]}, ["spec.ladder"]),
        ({"id": "", "weight": -1.0, "kv_share": 2.0}, ["metadata.name", "spec.weight", "spec.kv_share"]),
    ],
)
def test_plan(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_plan, having(PLAN, **changes), SNAPSHOT) == fields


@pytest.mark.parametrize(
    ("ladder", "fields"),
    [
        ([cap(), cap(8)], []),
        ([cap(pressure=0.0)], []),
        ([cached(None)], []),
        ([cached(86400.0)], []),
        ([smaller(**{"quality@1": "fast"})], []),
        # Whether they exist is asked of all references alike.
        ([smaller(gone="gone-too")], []),
        ([default("a" * 4000)], []),
        ([pb.DegradationStep()], ["[0]"]),
        ([pb.DegradationStep(), cap(0)], ["[0]", "[1].cap_output.max_tokens"]),
        ([cap(0)], ["[0].cap_output.max_tokens"]),
        ([cap(pressure=-1.0)], ["[0].cap_output.pressure"]),
        ([cap(pressure=math.nan)], ["[0].cap_output.pressure"]),
        ([cap(pressure=math.inf)], ["[0].cap_output.pressure"]),
        ([cap(), cap()], ["[1].cap_output.max_tokens"]),
        ([cap(), cached(), cap(65)], ["[2].cap_output.max_tokens"]),
        ([smaller(quality="fast"), smaller(quality="fast")], ["[1]"]),
        ([cached(), cached(), cached()], ["[1]", "[2]"]),
        ([smaller()], ["[0].smaller_model.models"]),
        ([smaller(**{f"m{n}": "fast" for n in range(100)})], []),
        ([smaller(**{f"m{n}": "fast" for n in range(101)})], ["[0].smaller_model.models"]),
        ([smaller(fast="fast")], ["[0].smaller_model.models[fast]"]),
        ([smaller(fast="")], ["[0].smaller_model.models[fast]"]),
        ([fallback()], ["[0].cpu_fallback.pools"]),
        ([fallback(gpu="gpu")], ["[0].cpu_fallback.pools[gpu]"]),
        # A gateway has no pool, whatever it says.
        ([fallback(gpu="tpu")], ["[0].cpu_fallback.pools[gpu]"]),
        ([fallback(gone="cpu")], ["[0].cpu_fallback.pools[gone]"]),
        ([cap(), cached(0.0)], ["[1].cached_answer.max_age"]),
        ([cached(-1.0)], ["[0].cached_answer.max_age"]),
        ([cached(86401.0)], ["[0].cached_answer.max_age"]),
        ([default(" ")], ["[0].default_answer.text"]),
        ([default("a\x00")], ["[0].default_answer.text"]),
        ([default("a" * 4001)], ["[0].default_answer.text"]),
        ([default(), cap()], ["[1]"]),
        ([default(), cap(0), cached(0.0)], ["[1]", "[1].cap_output.max_tokens", "[2]", "[2].cached_answer.max_age"]),
    ],
)
def test_ladder(ladder: list[pb.DegradationStep], fields: list[str]) -> None:
    assert fields_of(check_plan, having(PLAN, ladder=ladder), SNAPSHOT) == [f"spec.ladder{each}" for each in fields]


@given(st.permutations(LADDER))
def test_steps_come_in_any_order_but_the_default_answer_last(ladder: list[pb.DegradationStep]) -> None:
    found = fields_of(check_plan, having(PLAN, ladder=ladder), SNAPSHOT)
    place = ladder.index(LADDER[-1])
    assert found == [f"spec.ladder[{number}]" for number in range(place + 1, len(ladder))]


SLO = pb.Slo(
    route="generate",
    tier="fast",
    ttft_p95=seconds(0.5),
    itl_p95=seconds(0.05),
    e2e_p95=seconds(10.0),
    e2e_p99=seconds(20.0),
    availability=0.999,
    stream_completion=0.99,
)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"tier": "*"}, []),
        ({"e2e_p95": seconds(20.0)}, []),
        (dict.fromkeys(("ttft_p95", "itl_p95", "e2e_p95", "e2e_p99"), None), []),
        ({"route": "chat"}, ["metadata.name"]),
        ({"tier": "huge"}, ["metadata.name"]),
        ({"route": "*", "tier": ""}, ["metadata.name", "metadata.name"]),
        ({"ttft_p95": seconds(0.0)}, ["spec.ttft_p95"]),
        ({"itl_p95": seconds(-1.0)}, ["spec.itl_p95"]),
        ({"e2e_p99": seconds(86400.0)}, []),
        ({"e2e_p99": seconds(86401.0)}, ["spec.e2e_p99"]),
        ({"e2e_p95": seconds(21.0)}, ["spec.e2e_p99"]),
        ({"ttft_p95": seconds(11.0)}, ["spec.e2e_p95"]),
        ({"ttft_p95": seconds(21.0)}, ["spec.e2e_p95", "spec.e2e_p99"]),
        ({"e2e_p95": None, "ttft_p95": seconds(21.0)}, ["spec.e2e_p99"]),
        ({"availability": 1.0}, ["spec.availability"]),
        ({"availability": math.nan}, ["spec.availability"]),
        ({"stream_completion": -0.1}, ["spec.stream_completion"]),
        ({"route": "predict"}, ["spec.ttft_p95", "spec.itl_p95", "spec.stream_completion"]),
        ({"route": "embed", "ttft_p95": None}, ["spec.itl_p95", "spec.stream_completion"]),
        ({"route": "batch", "ttft_p95": None, "itl_p95": None}, ["spec.stream_completion"]),
        ({"route": "batch", "ttft_p95": None, "itl_p95": None, "stream_completion": 0.0}, []),
    ],
)
def test_objectives(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_slo, having(SLO, **changes)) == fields


PRICE = pb.Price(model="fast", input_microusd_per_million=100, output_microusd_per_million=300)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"model": "*", "input_microusd_per_million": 0}, []),
        ({"input_microusd_per_million": 10**12 + 1}, ["spec.input_microusd_per_million"]),
        ({"output_microusd_per_million": 10**12 + 1}, ["spec.output_microusd_per_million"]),
        ({"input_cost_microusd_per_million": 10**12 + 1}, ["spec.input_cost_microusd_per_million"]),
        ({"output_cost_microusd_per_million": 2**64 - 1}, ["spec.output_cost_microusd_per_million"]),
        ({"input_cost_microusd_per_million": 10**12}, []),
        ({"cached_input_microusd_per_million": 100}, []),
        ({"cached_input_microusd_per_million": 101}, ["spec.cached_input_microusd_per_million"]),
        (
            {"input_microusd_per_million": 2**64 - 1, "output_microusd_per_million": 2**64 - 1},
            ["spec.input_microusd_per_million", "spec.output_microusd_per_million"],
        ),
    ],
)
def test_price(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_price, having(PRICE, **changes)) == fields
