"""What a request would have cost on the baseline, as the recorder tells it beside what it did cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2

from libs.clock import SystemClock
from libs.outcomes import ArmKey, Objectives, Recorder
from libs.quota import Price
from libs.quota.prices import PriceBook
from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.policy.finals import ran

CANARY = ArmKey("tiny", "r1", 3, 0, "canary")
BASELINE = ArmKey("tiny", "r1", 3, 0, "baseline")
VERSIONS = {CANARY: "tiny@2", BASELINE: "tiny@1"}
END = End(finish=Finish.STOP, usage=Usage(prompt_tokens=100, completion_tokens=10), breakdown=Breakdown())


def recorder(**prices: Price) -> tuple[Recorder, Any]:
    """A recorder, and the catalog that it reads prices from."""
    rollouts = {"tiny": registry_pb2.Rollout(alias="tiny", id="r1", baseline="tiny@1")}
    snapshot = SimpleNamespace(rollouts=rollouts, model_versions={})
    catalog: Any = SimpleNamespace(costs=book(**prices), snapshot=snapshot, objectives=lambda *_: Objectives())
    return Recorder(catalog, clock=SystemClock()), catalog


def book(**prices: Price) -> PriceBook:
    return PriceBook({f"tiny@{name[-1]}": price for name, price in prices.items()})


def serve(outcomes: Recorder, arm: ArmKey) -> None:
    outcomes.ended(
        ran(END, first=0.1, longest=10, model_version=VERSIONS[arm], model="tiny"),
        route="generate",
        tier="fast",
        given=60.0,
        arm=arm,
    )


def told(outcomes: Recorder, arm: ArmKey) -> tuple[float, float]:
    """(cost, reference) in all, micro-dollars."""
    counts = outcomes.table.arm(arm)
    assert counts is not None
    return counts.cost.cost, counts.cost.reference


def test_an_arm_is_beside_the_baselines_price_and_the_baseline_beside_its_own() -> None:
    outcomes, _ = recorder(v1=Price(1_000_000, 4_000_000), v2=Price(2_000_000, 4_000_000))
    serve(outcomes, CANARY)
    serve(outcomes, BASELINE)
    assert told(outcomes, CANARY) == (pytest.approx(240.0), pytest.approx(140.0))
    assert told(outcomes, BASELINE) == (pytest.approx(140.0), pytest.approx(140.0))


def test_a_new_price_book_is_in_force_for_both_from_the_next_request_on() -> None:
    outcomes, catalog = recorder(v1=Price(1_000_000, 1_000_000), v2=Price(1_000_000, 1_000_000))
    serve(outcomes, CANARY)
    catalog.costs = book(v1=Price(3_000_000, 3_000_000), v2=Price(3_000_000, 3_000_000))
    serve(outcomes, CANARY)
    assert told(outcomes, CANARY) == (pytest.approx(440.0), pytest.approx(440.0))


def test_a_baseline_without_a_price_has_no_reference() -> None:
    outcomes, _ = recorder(v2=Price(2_000_000, 4_000_000))
    serve(outcomes, CANARY)
    assert told(outcomes, CANARY) == (pytest.approx(240.0), 0.0)
