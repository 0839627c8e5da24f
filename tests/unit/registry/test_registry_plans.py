"""What the registry accepts and refuses of plans, objectives and prices."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry.policy import plans
from services.registry.policy.plans import PlanSpec, PriceSpec, SloSpec, StepSpec

MODELS = {"fast", "quality", "quality@1"}
POOLS = {"gpu", "cpu"}
CAP = StepSpec(kind="cap_output", max_tokens=64, pressure=0.5)
SMALLER = StepSpec(kind="smaller_model", replacements={"quality": "fast"})
CACHED = StepSpec(kind="cached_answer", max_age_seconds=60.0)
FALLBACK = StepSpec(kind="cpu_fallback", replacements={"gpu": "cpu"})
DEFAULT = StepSpec(kind="default_answer", text="We are busy.\nPlease come back.")
PLAN = PlanSpec(id="free", weight=1.0, over_quota=2, kv_share=0.25, ladder=[CAP, SMALLER, CACHED, FALLBACK, DEFAULT])
SLO = SloSpec("generate", "fast", 0.5, 0.05, 10.0, 20.0, 0.999, 0.99)
PRICE = PriceSpec("fast", 100, 300)


def field_of(spec: PlanSpec) -> str | None:
    fault = plans.check_plan(spec, models=MODELS, pools=POOLS)
    return fault.field.removeprefix("plan.") if fault else None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"weight": 0.0, "kv_share": 0.0, "over_quota": 0, "ladder": []}, None),
        ({"kv_share": 1.0}, None),
        ({"id": "Free"}, "id"),
        ({"id": ""}, "id"),
        ({"weight": -0.5}, "weight"),
        ({"weight": 1000.5}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"weight": math.inf}, "weight"),
        ({"over_quota": 3}, "over_quota"),
        ({"kv_share": 1.1}, "kv_share"),
        ({"kv_share": -0.1}, "kv_share"),
        ({"kv_share": math.nan}, "kv_share"),
        ({"ladder": [CAP] * 9}, "ladder"),
    ],
)
def test_plan(changes: dict[str, Any], field: str | None) -> None:
    assert field_of(dataclasses.replace(PLAN, **changes)) == field


@pytest.mark.parametrize(
    ("ladder", "field"),
    [
        ([CAP, dataclasses.replace(CAP, max_tokens=8)], None),
        ([dataclasses.replace(CACHED, max_age_seconds=None)], None),
        ([StepSpec(kind="smaller_model", replacements={"quality@1": "fast"})], None),
        ([StepSpec(kind="")], "ladder[0]"),
        ([dataclasses.replace(CAP, max_tokens=0)], "ladder[0].cap_output.max_tokens"),
        ([dataclasses.replace(CAP, pressure=-1.0)], "ladder[0].cap_output.pressure"),
        ([dataclasses.replace(CAP, pressure=math.nan)], "ladder[0].cap_output.pressure"),
        ([CAP, CAP], "ladder[1].cap_output.max_tokens"),
        ([SMALLER, SMALLER], "ladder[1]"),
        ([StepSpec(kind="smaller_model", replacements={})], "ladder[0].smaller_model.models"),
        ([StepSpec(kind="smaller_model", replacements={"gone": "fast"})], "ladder[0].smaller_model.models[gone]"),
        ([StepSpec(kind="smaller_model", replacements={"fast": "gone"})], "ladder[0].smaller_model.models[fast]"),
        ([StepSpec(kind="smaller_model", replacements={"fast": "fast"})], "ladder[0].smaller_model.models[fast]"),
        ([StepSpec(kind="cpu_fallback", replacements={"gpu": "tpu"})], "ladder[0].cpu_fallback.pools[gpu]"),
        ([CAP, dataclasses.replace(CACHED, max_age_seconds=0.0)], "ladder[1].cached_answer.max_age"),
        ([dataclasses.replace(CACHED, max_age_seconds=1e6)], "ladder[0].cached_answer.max_age"),
        ([dataclasses.replace(DEFAULT, text=" ")], "ladder[0].default_answer.text"),
        ([dataclasses.replace(DEFAULT, text="a\x00")], "ladder[0].default_answer.text"),
        ([dataclasses.replace(DEFAULT, text="a" * 4001)], "ladder[0].default_answer.text"),
        ([DEFAULT, CAP], "ladder[1]"),
    ],
)
def test_ladder(ladder: list[StepSpec], field: str | None) -> None:
    assert field_of(dataclasses.replace(PLAN, ladder=ladder)) == field


@given(st.permutations([CAP, SMALLER, CACHED, FALLBACK, DEFAULT]))
def test_steps_come_in_any_order_but_the_default_answer_last(ladder: list[StepSpec]) -> None:
    assert (field_of(dataclasses.replace(PLAN, ladder=ladder)) is None) is (ladder[-1] is DEFAULT)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"tier": "*"}, None),
        (dict.fromkeys(("ttft_p95", "itl_p95", "e2e_p95", "e2e_p99")), None),
        ({"route": "chat"}, "route"),
        ({"tier": "huge"}, "tier"),
        ({"ttft_p95": 0.0}, "ttft_p95"),
        ({"itl_p95": -1.0}, "itl_p95"),
        ({"e2e_p99": 1e6}, "e2e_p99"),
        ({"e2e_p95": math.nan}, "e2e_p95"),
        ({"e2e_p95": 21.0}, "e2e_p99"),
        ({"ttft_p95": 11.0}, "e2e_p95"),
        ({"e2e_p95": None, "ttft_p95": 21.0}, "e2e_p99"),
        ({"availability": 1.0}, "availability"),
        ({"availability": math.nan}, "availability"),
        ({"stream_completion": -0.1}, "stream_completion"),
        ({"route": "predict"}, "ttft_p95"),
        ({"route": "embed", "ttft_p95": None}, "itl_p95"),
        ({"route": "batch", "ttft_p95": None, "itl_p95": None}, "stream_completion"),
        ({"route": "batch", "ttft_p95": None, "itl_p95": None, "stream_completion": 0.0}, None),
    ],
)
def test_objectives(changes: dict[str, Any], field: str | None) -> None:
    fault = plans.check_slo(dataclasses.replace(SLO, **changes))
    assert (fault.field if fault else None) == (f"slo.{field}" if field else None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"model": "*", "input_microusd_per_million": 0}, None),
        ({"model": "quality@1"}, None),
        ({"model": "gone"}, "model"),
        ({"model": ""}, "model"),
        ({"input_microusd_per_million": 10**12 + 1}, "input_microusd_per_million"),
        ({"output_microusd_per_million": 10**12 + 1}, "output_microusd_per_million"),
        ({"input_cost_microusd_per_million": 10**12 + 1}, "input_cost_microusd_per_million"),
        ({"output_cost_microusd_per_million": 2**64 - 1}, "output_cost_microusd_per_million"),
        ({"input_cost_microusd_per_million": 10**12}, None),
    ],
)
def test_price(changes: dict[str, Any], field: str | None) -> None:
    fault = plans.check_price(dataclasses.replace(PRICE, **changes), models=MODELS)
    assert (fault.field if fault else None) == (f"price.{field}" if field else None)
