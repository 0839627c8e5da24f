"""Workloads: reproducible, of the rates and lengths asked for, each tenant's independent of the others'."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.lengths import Lengths, load
from simulation.workload import Bursts, Step, TenantLoad, Workload

FIXED = Lengths.fixed(100, 20)


def test_equal_arguments_give_equal_requests() -> None:
    def made(seed: int) -> list[object]:
        loads = [TenantLoad("a", rate=20), TenantLoad("b", rate=5, variation=2.0, bursts=Bursts(3, 1, 4))]
        return list(Workload(loads, 30.0, seed).arrivals())

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_another_tenant_leaves_the_others_as_they_were() -> None:
    alone = list(Workload([TenantLoad("a", rate=20)], 30.0, 1).arrivals())
    beside = list(Workload([TenantLoad("a", rate=20), TenantLoad("b", rate=400)], 30.0, 1).arrivals())
    assert [each for each in beside if each.tenant == "a"] == alone
    assert [each.at for each in beside] == sorted(each.at for each in beside)


@pytest.mark.parametrize("variation", [0.0, 0.5, 1.0, 2.0])
def test_gaps_have_the_rate_and_the_variation_asked_for(variation: float) -> None:
    times = [each.at for each in Workload([TenantLoad("a", rate=50, variation=variation)], 400.0).arrivals()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == pytest.approx(20_000, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, abs=0.06)


def test_steps_and_bursts_change_the_rate_when_they_say() -> None:
    tenant = TenantLoad(
        "a", rate=100, lengths=FIXED, variation=0.0, start=1.0, end=9.0, steps=[Step(5, 2.0)], bursts=Bursts(4, 1, 3, 2)
    )
    seconds = [0] * 10
    for each in Workload([tenant], 10.0).arrivals():
        seconds[int(each.at)] += 1
    # Bursts last from 2 to 3 and from 6 to 7; the rate doubles at 5.
    assert seconds == pytest.approx([0, 100, 300, 100, 100, 200, 600, 200, 200, 0], abs=1)


def test_a_client_sends_again_after_its_answer_and_ends_with_the_run() -> None:
    workload = Workload([TenantLoad("a", clients=2, think=0.5, lengths=FIXED, start=1.0)], 60.0, 3)
    one, other = workload.clients()
    first = one.next(0.0)
    assert first is not None
    assert first.at > 1.0
    assert first.client == one.name != other.name
    second = one.next(first.at + 7.0)
    assert second is not None
    assert second.at > first.at + 7.0
    assert second.request_id != first.request_id
    assert one.next(60.0) is None
    assert list(workload.arrivals()) == []


def test_what_a_caller_asks_for_bounds_what_comes_out() -> None:
    arrivals = list(Workload([TenantLoad("a", rate=50, max_tokens=64)], 20.0).arrivals())
    assert {each.max_tokens for each in arrivals} == {64}
    assert max(each.output_tokens for each in arrivals) == 64
    assert min(each.output_tokens for each in arrivals) < 64


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_class": "gold"},
        {"rate": -1.0},
        {"weight": 0.0},
        {"steps": [Step(2, 1), Step(1, 1)]},
    ],
)
def test_senseless_loads_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"queue_class|negative|order"):
        TenantLoad("a", **wrong)  # type: ignore[arg-type]


def test_loads_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Workload([TenantLoad("a", rate=1), TenantLoad("a", rate=2)], 1.0)


@given(st.sampled_from(sorted(load())), st.integers(64, 8192), st.integers(0, 2**32))
def test_lengths_keep_to_the_context(name: str, context: int, seed: int) -> None:
    lengths, rng = load()[name].for_context(context), random.Random(seed)
    for prompt, output in (lengths.draw(rng) for _ in range(50)):
        assert prompt >= 1
        assert output >= 1
        assert prompt + output <= context


def test_fitted_lengths_are_those_of_the_trace() -> None:
    # Published with the trace: prompts p50 1,020, p95 4,083, mean 1,155; outputs p50 129, p95 451, mean 211.
    lengths, rng = load()["azure-conversation"], random.Random(5)
    drawn = [lengths.draw(rng) for _ in range(20_000)]
    prompts, outputs = sorted(p for p, _ in drawn), sorted(o for _, o in drawn)
    assert prompts[10_000] == pytest.approx(1020, rel=0.02)
    assert prompts[19_000] == pytest.approx(4083, rel=0.02)
    assert statistics.mean(prompts) == pytest.approx(1155, rel=0.02)
    assert outputs[10_000] == pytest.approx(129, rel=0.04)
    assert outputs[19_000] == pytest.approx(451, rel=0.04)
    assert statistics.mean(outputs) == pytest.approx(211, rel=0.03)
    assert lengths.mean()[0] == pytest.approx(statistics.mean(prompts), rel=0.02)
