"""Every planted bottleneck is named, and nothing is on a healthy mesh."""

from __future__ import annotations

from functools import cache

import pytest

from libs.diagnosis import Cost, Scrape, Stage, diagnose
from libs.quota.prices import Price, PriceBook
from loadtest.observe.planted import Planted, healthy, planted
from simulation.scenario import Cluster, Scenario, TenantSpec
from simulation.scrapes import Observer

PLANTED, HEALTHY = list(planted()), list(healthy())


def named(situation: Planted) -> str:
    return situation.name


@cache
def scrapes(situation: Planted) -> tuple[Scrape, Scrape]:
    """Planted once, whichever tests look at it."""
    return situation.scrapes()


@pytest.mark.parametrize("situation", PLANTED, ids=named)
def test_what_binds_is_named_with_what_speaks_for_it_and_what_to_do(situation: Planted) -> None:
    before, after = scrapes(situation)
    found = diagnose(before, after).binds
    assert found is not None
    assert found.stage is situation.stage
    assert found.whom
    assert found.evidence
    assert any(each.limit is not None and each.value > each.limit for each in found.evidence)
    assert found.since == before.at
    costs = [remedy.cost for remedy in found.remedies]
    assert costs == sorted(costs)


@pytest.mark.parametrize("situation", HEALTHY, ids=named)
def test_on_a_healthy_mesh_nothing_is(situation: Planted) -> None:
    assert diagnose(*scrapes(situation)).findings == ()


def test_every_stage_is_planted() -> None:
    assert {each.stage for each in PLANTED} == set(Stage)


def test_whom_it_binds_for_is_told() -> None:
    names = ("one tenant", "limiter shard", "cold model", "skewed placement")
    found = {each.name: diagnose(*scrapes(each)).findings[0].whom for each in PLANTED if each.name in names}
    assert found["one tenant"] == {"tenant": "flooder", "pool": "one tenant"}
    assert found["limiter shard"] == {"process": "ratelimit-1"}
    assert found["cold model"] == {"version": "weir-quality@2", "state": "loading"}
    assert found["skewed placement"]["worker"] == "worker-0"


def test_a_worker_more_costs_what_serving_its_tokens_does() -> None:
    """100 prompt tokens and 200 others per second, at 1 and 2 dollars per million: 1.80 dollars per hour."""
    load = (TenantSpec(tenant="acme", rate=8.0, lengths="50+500"),)
    observer = Observer(
        Scenario(seconds=35.0, cluster=Cluster(workers=1, sizes={"max_running": 4}), tenants=load),
        moments=(20.0, 30.0),
        pool="priced",
    )
    observer.run()
    before, after = observer.scrapes
    [worker] = [each for each in after.pages if each.service == "worker"]
    gained = {
        name: after.pages[worker][name][0].value - before.pages[worker][name][0].value
        for name in ("weir_worker_prompt_tokens_total", "weir_worker_generation_tokens_total")
    }
    prompt, output = (each / 10.0 for each in gained.values())
    book = PriceBook({"simulated": Price(1_000_000, 2_000_000)})
    [finding] = diagnose(before, after, book).findings
    [more] = [each for each in finding.remedies if each.cost is Cost.ACCELERATOR]
    assert more.usd_per_hour == pytest.approx((prompt + 2 * output) * 3600 / 1e6)
    assert more is finding.remedies[-1]
    [unpriced] = diagnose(before, after).findings
    assert unpriced.remedies[-1].usd_per_hour is None
