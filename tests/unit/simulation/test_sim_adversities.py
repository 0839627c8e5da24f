"""What the simulator shows of a tenant that teaches, of two owners, of prefixes and of the edge's shedding."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.admission.policy.fleet import Fleet
from simulation.__main__ import PRESETS
from simulation.outcomes import OK, Observed
from simulation.report import met, render, summarise
from simulation.scenario import Cluster, Fault, Objective, Scenario, ScenarioError, TenantSpec, read
from simulation.simulator import Simulator

OBJECTIVE = Objective(ttft=1.5)


def preset(name: str, **changes: Any) -> Scenario:
    return msgspec.structs.replace(read(PRESETS / f"{name}.toml"), **changes)


def run(scenario: Scenario) -> Observed:
    scenario.check()
    return Simulator(scenario).run()


def share_in_time(observed: Observed, tenant: str, since: float) -> float:
    requests = [each for each in observed.outcomes if each.arrival.tenant == tenant and each.arrival.at >= since]
    return sum(met(each, OBJECTIVE) for each in requests) / len(requests)


def test_d2_a_tenant_that_teaches_its_expectation_takes_nothing_from_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = preset("teaching", seconds=40.0)
    held = run(scenario)
    assert share_in_time(held, "victim", 20.0) == 1.0
    assert held.reserved >= 0.95 * held.committed  # it is counted as what it comes to
    loose = msgspec.structs.replace(scenario, cluster=msgspec.structs.replace(scenario.cluster, holds_shares=False))
    monkeypatch.setattr(Fleet, "_came_far", lambda *_: None)
    taught = run(loose)
    assert taught.committed > 2.0
    assert taught.reserved < 0.7 * taught.committed
    assert share_in_time(taught, "victim", 20.0) < 0.7
    assert "times its memory" in render(summarise(loose, taught))


def test_d4_two_owners_promise_a_worker_twice_unless_the_older_is_fenced() -> None:
    scenario = preset("split-owners")
    fenced = run(scenario)
    split = msgspec.structs.replace(scenario.faults[0], fenced=False)
    both = run(msgspec.structs.replace(scenario, faults=(split,)))
    assert fenced.committed <= 1.0
    assert both.committed > 1.3


def test_requests_go_where_their_beginning_is_and_come_sooner() -> None:
    scenario = preset("prefixes", seconds=20.0, warmup=5.0)
    seen = []
    for changes in ({}, {"admission": {"placement": {"prefix_memory": 0}}}, {"cluster": Cluster(workers=8)}):
        observed = run(msgspec.structs.replace(scenario, **changes))
        ttfts = sorted(e.ttft or 0.0 for e in observed.outcomes if e.arrival.tenant == "chat" and e.outcome == OK)
        seen.append((observed.prompt_tokens, ttfts[len(ttfts) // 2]))
    affine, blind, none = seen
    assert affine[0] < blind[0] < 0.8 * none[0]  # prompt tokens computed
    assert affine[1] < none[1]


def test_a_flood_is_refused_at_the_edge_for_the_most_part_and_the_other_tenant_is_not() -> None:
    observed = run(preset("shedding", seconds=45.0))
    ends: dict[str, list[str]] = {}
    for each in observed.outcomes:
        if each.arrival.at >= 25.0:
            ends.setdefault(each.arrival.tenant, []).append(each.outcome)
    refused = [end for end in ends["flooder"] if end != OK]
    assert refused.count("REJECTED_OVERLOAD") > 0.7 * len(refused)
    assert ends["victim"].count(OK) == len(ends["victim"])


def test_shares_are_held_by_workers_that_preempt() -> None:
    with pytest.raises(ScenarioError, match="holds_shares"):
        Scenario(cluster=Cluster(holds_shares=True), tenants=(TenantSpec(tenant="a", rate=1.0),)).check()
    with pytest.raises(ScenarioError, match="prefix_share"):
        Scenario(tenants=(TenantSpec(tenant="a", rate=1.0, prefixes=1, prefix_share=2.0),)).check()
    assert Fault(kind="split_owners", at=1.0).fenced
