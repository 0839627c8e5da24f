"""How operators write and read times, money, and the steps of a ladder; what `weir levels` shows."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from services.cli.commands.levels import class_rows, tenant_rows
from services.cli.commands.plans import parse_step, plain_plan, show_step
from services.cli.quantities import (
    duration_of,
    parse_microusd,
    parse_seconds,
    seconds_of,
    show_seconds,
    show_usd,
)


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("0", 0.0, "0 s"),
        ("2", 2.0, "2 s"),
        ("500ms", 0.5, "500 ms"),
        ("0.5ms", 0.0005, "0.5 ms"),
        ("1.5s", 1.5, "1.5 s"),
        ("10s", 10.0, "10 s"),
        ("100", 100.0, "100 s"),
        ("5m", 300.0, "5 m"),
        ("24h", 86400.0, "1 d"),
        ("30d", 2592000.0, "30 d"),
    ],
)
def test_times(text: str, seconds: float, shown: str) -> None:
    assert parse_seconds(text, "--x") == pytest.approx(seconds)
    assert show_seconds(seconds) == shown
    assert seconds_of(duration_of(seconds)) == pytest.approx(seconds)


@given(st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000))
def test_times_are_read_back_as_they_are_shown(seconds: float) -> None:
    assert parse_seconds(show_seconds(seconds).replace(" ", ""), "--x") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 s", "1y", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_seconds(text, "--x")


@pytest.mark.parametrize(
    ("text", "micro", "shown"),
    [("0", 0, "$0.00"), ("$0.02", 20000, "$0.02"), ("1.500001", 1500001, "$1.500001"), ("12.3", 12300000, "$12.30")],
)
def test_money(text: str, micro: int, shown: str) -> None:
    assert parse_microusd(text, "--x") == micro
    assert show_usd(micro) == shown


@given(st.integers(0, 10**18))
def test_money_is_read_back_as_it_is_shown(micro: int) -> None:
    assert parse_microusd(show_usd(micro), "--x") == micro


@pytest.mark.parametrize("text", ["", "free", "-1", "0.0000001", "inf", "nan"])
def test_what_is_no_money_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_microusd(text, "--x")


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("cap_output=128@0.5", pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=128, pressure=0.5))),
        ("cap_output=8", pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=8))),
        (
            "smaller_model=b@1:a,c:a",
            pb.DegradationStep(smaller_model=pb.SmallerModel(models={"c": "a", "b@1": "a"})),
        ),
        ("cpu_fallback=gpu:cpu", pb.DegradationStep(cpu_fallback=pb.CpuFallback(pools={"gpu": "cpu"}))),
        ("cached_answer", pb.DegradationStep(cached_answer=pb.CachedAnswer())),
        ("cached_answer=30s", pb.DegradationStep(cached_answer=pb.CachedAnswer(max_age=Duration(seconds=30)))),
        ("default_answer=a=b, c", pb.DegradationStep(default_answer=pb.DefaultAnswer(text="a=b, c"))),
    ],
)
def test_steps(text: str, step: Any) -> None:
    assert parse_step(text) == step
    assert show_step(step) == text


@pytest.mark.parametrize("text", ["", "cap_output", "cap_output=x", "smaller_model=a", "smaller_model=a:", "magic=1"])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_step(text)


def test_a_plans_steps_show_only_what_was_chosen() -> None:
    plan = pb.PlanPolicy(id="free", ladder=[parse_step("smaller_model=b:a"), parse_step("cap_output=8")])
    assert plain_plan(plan)["ladder"] == [
        {"smaller_model": {"models": {"b": "a"}}},
        {"cap_output": {"max_tokens": 8, "pressure": 0.0}},
    ]


def test_levels_say_which_pools_shed_whom_and_why() -> None:
    free = pb.ClassLevel(queue_class="free", wait=Duration(seconds=3, nanos=250_000_000), queued=40)
    idle = pb.ClassLevel(queue_class="paid")
    shed = pb.TenantLevel(tenant="tiny", shed=0.4, retry_after=Duration(seconds=2))
    level = pb.PoolLevel(
        pool="demo", admission="admission-0", at=Timestamp(seconds=100), classes=[idle, free], tenants=[shed]
    )
    assert class_rows([level], 101.26) == [("demo", "free", 40, "3.25 s", "admission-0", "1.3 s")]
    assert tenant_rows([level]) == [("demo", "tiny", "40%", "2 s")]
