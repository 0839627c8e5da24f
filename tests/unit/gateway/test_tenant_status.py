"""What a tenant is told of how its models and its money stand, and that nothing else is in it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.clock import ManualClock
from libs.clock.stamps import timestamp
from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.routing import ListedModel
from services.gateway.openai.desk import FRESH, Desk
from services.gateway.openai.status import MOST_MODELS, RECENT, Facts, status_body

NOW = 1_796_000_000.0  # 2026-11-30 02:13:20 UTC
FAST = ListedModel("fast", "fast@2", "fast", 4096, 0.0)
FRAUD = ListedModel("fraud", "fraud@1", "classical", 0, 0.0)
SLOS = {
    ("generate", "fast"): pb.Slo(route="generate", tier="fast", ttft_p95=to_duration(2.0), availability=0.999),
    ("predict", "classical"): pb.Slo(route="predict", tier="classical", e2e_p99=to_duration(0.05)),
}


def told(**facts: Any) -> dict[str, Any]:
    given = {"tenant": "acme", "now": NOW, "models": [FAST, FRAUD], "burned": {}, "spent": pb.Spend()}
    snapshot = facts.pop("snapshot", {})
    body = status_body(Facts(**given | facts, snapshot=RegistrySnapshot(**{"slos": SLOS} | snapshot)))
    found: dict[str, Any] = json.loads(body)
    return found


def burning(alert: str = "", *, good: int = 998, bad: int = 2) -> dict[tuple[str, str], pb.ErrorBudget]:
    objective = pb.ObjectiveBudget(
        objective="availability", consumed=1.5, good=good, bad=bad, burn_rates={"5m": 2.0}, alert=alert
    )
    return {("generate", "fast"): pb.ErrorBudget(route="generate", tier="fast", objectives=[objective])}


def test_each_model_has_the_objectives_of_its_route_and_tier_with_what_was_met() -> None:
    body = told(burned=burning())
    assert (body["object"], body["status"], body["unknown"], body["has_more"]) == ("status", "operational", [], False)
    fast, fraud = body["models"]
    assert (fast["id"], fast["version"]) == ("fast", "fast@2")
    ttft, availability = fast["objectives"]
    assert (ttft["objective"], ttft["target"], ttft["unit"], ttft["attainment"]) == ("ttft_p95", 2.0, "seconds", None)
    assert (availability["target"], availability["attainment"], availability["budget_used"]) == (0.999, 0.998, 1.5)
    assert availability["burn"] == {"5m": 2.0}
    assert [each["objective"] for each in fraud["objectives"]] == ["e2e_p99"]


def test_how_many_requests_there_were_is_not_told() -> None:
    """They are everybody's: a share of them is the service's, their number another tenant's business."""
    assert "987654" not in json.dumps(told(burned=burning("page", good=987_654, bad=987_654)))


def test_an_objective_that_alerts_an_open_breaker_and_a_rollback_are_incidents_of_the_models_they_touch() -> None:
    ended = pb.RolloutState(phase=pb.ROLLOUT_PHASE_ROLLED_BACK, ended_at=timestamp(NOW - 60))
    rollout = pb.Rollout(alias="fraud", id="r", state=ended)
    body = told(
        burned=burning("page"),
        broken={("fast@2", "zone-a"), ("secret@1", "zone-a")},
        snapshot={"rollouts": {"fraud": rollout}},
    )
    found = {each["type"]: each for each in body["incidents"]}
    assert set(found) == {"objective_burning", "breaker_open", "rolled_back"}
    assert (found["objective_burning"]["models"], found["objective_burning"]["severity"]) == (["fast"], "critical")
    assert (found["breaker_open"]["models"], found["breaker_open"]["severity"]) == (["fast"], "major")
    assert (found["rolled_back"]["models"], found["rolled_back"]["since"]) == (["fraud"], int(NOW - 60))
    assert body["status"] == "critical"
    assert "secret" not in json.dumps(body)


def test_a_rollback_of_yesterday_is_no_news() -> None:
    ended = pb.RolloutState(phase=pb.ROLLOUT_PHASE_ROLLED_BACK, ended_at=timestamp(NOW - RECENT - 1))
    assert not told(snapshot={"rollouts": {"fast": pb.Rollout(alias="fast", state=ended)}})["incidents"]


def test_budgets_are_the_tenants_own_in_its_time_zone() -> None:
    budgets = {
        "acme": pb.Budget(tenant="acme", monthly_microusd=20_000_000, daily_microusd=1_000_000),
        "other": pb.Budget(tenant="other", monthly_microusd=77_000_000),
    }
    tenants = {"acme": pb.Tenant(id="acme", time_zone="Asia/Tokyo")}
    spent = pb.Spend(tenant="acme", day="2026-11-29", day_microusd=5, month="2026-11", month_microusd=2_500_000)
    day, month = told(spent=spent, snapshot={"budgets": budgets, "tenants": tenants})["budgets"]
    # In Tokyo it is the 30th, of which nothing is spent.
    assert (day["period"], day["limit"]["value"], day["spent"]["value"]) == ("day", 1.0, 0.0)
    assert (month["period"], month["spent"]["value"], month["enforcement"]) == ("month", 2.5, "hard")
    midnight = 1_796_050_800  # 2026-12-01 00:00 in Tokyo
    assert (day["resets_at"], month["resets_at"]) == (midnight, midnight)


def test_what_nobody_could_be_asked_is_unknown_and_not_zero() -> None:
    budgets = {"acme": pb.Budget(tenant="acme", monthly_microusd=1)}
    body = told(burned=None, spent=None, snapshot={"budgets": budgets})
    assert body["unknown"] == ["objectives", "budgets"]
    assert body["budgets"][0]["spent"] is None
    assert {each["attainment"] for each in body["models"][0]["objectives"]} == {None}


@given(st.integers(0, 3 * MOST_MODELS))
def test_a_page_has_a_bound(count: int) -> None:
    body = told(models=[FAST] * count)
    assert (len(body["models"]), body["has_more"]) == (min(count, MOST_MODELS), count > MOST_MODELS)


class World:
    """Whoever is asked, counted."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[str] = []
        self.away = False
        self.snapshot = RegistrySnapshot(
            slos=SLOS, budgets={name: pb.Budget(tenant=name, monthly_microusd=9) for name in ("acme", "globex")}
        )
        self.desk = Desk(
            self,  # type: ignore[arg-type]
            budgets=lambda: self._answer("objectives", burning()),
            spend=lambda tenant: self._answer(tenant, pb.Spend(tenant=tenant)),
            broken=frozenset,
            clock=self.clock,
        )

    def models(self, tenant: str) -> list[ListedModel]:
        return [FAST]

    async def _answer(self, what: str, answer: Any) -> Any:
        self.asked.append(what)
        await asyncio.sleep(0)
        if self.away:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "away")
        return answer


async def test_however_often_it_is_asked_others_are_asked_once_in_a_while() -> None:
    world = World()
    for _ in range(3):
        await asyncio.gather(*(world.desk.body(name) for name in ("acme", "globex", "acme")))
    assert sorted(world.asked) == ["acme", "globex", "objectives"]
    world.clock.advance(FRESH)
    await world.desk.body("acme")
    assert sorted(world.asked) == ["acme", "acme", "globex", "objectives", "objectives"]


async def test_who_is_away_is_not_asked_more_often_for_that() -> None:
    world = World()
    world.away = True
    for _ in range(3):
        assert json.loads(await world.desk.body("acme"))["unknown"] == ["objectives", "budgets"]
    assert sorted(world.asked) == ["acme", "objectives"]


async def test_a_caller_that_leaves_does_not_take_the_answer_from_others() -> None:
    world = World()
    first = asyncio.create_task(world.desk.body("acme"))
    second = asyncio.create_task(world.desk.body("acme"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert json.loads(await second)["models"]
