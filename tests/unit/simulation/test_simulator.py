"""Runs of the simulator: reproducible, nobody lost or counted twice, as theory says, and what overload shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.__main__ import PRESETS, presets
from simulation.outcomes import OK, Observed
from simulation.report import met, summarise
from simulation.scenario import (
    Cluster,
    Delays,
    Fault,
    Objective,
    Scenario,
    ScenarioError,
    TenantLimits,
    TenantSpec,
    capacity,
    read,
)
from simulation.simulator import Simulator

NO_DELAYS = Delays(to_admission=0.0, to_worker=0.0, to_client=0.0, release=0.0, report=0.0, spread=0.0, detection=0.0)
OBJECTIVES = {"paid": Objective(ttft=1.5), "free": Objective(ttft=3.0)}


def run(scenario: Scenario) -> Observed:
    scenario.check()
    return Simulator(scenario).run()


def mixed(factor: float, **fields: Any) -> Scenario:
    """Paid, free and batch on four workers, `factor` times what they carry."""
    tenants = (
        TenantSpec(tenant="a", load=0.4 * factor, max_context=4096),
        TenantSpec(tenant="b", load=0.4 * factor, queue_class="free", max_context=4096, weight=2.0),
        TenantSpec(tenant="c", load=0.2 * factor, queue_class="batch", max_context=4096),
    )
    base: dict[str, Any] = {"seconds": 15.0, "warmup": 3.0, "cluster": Cluster(workers=4, zones=("one", "two"))}
    return Scenario(**{**base, "tenants": tenants, "objectives": OBJECTIVES, **fields})


def test_equal_scenarios_have_equal_reports_and_other_seeds_others() -> None:
    reports = [summarise(each, run(each), timeline=True) for each in (mixed(1.5), mixed(1.5), mixed(1.5, seed=2))]
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]
    assert msgspec.json.encode(reports[0]) == msgspec.json.encode(reports[1])


faults = st.lists(
    st.one_of(
        st.builds(Fault, kind=st.just("kill_worker"), at=st.floats(0.5, 6.0), count=st.integers(1, 4)),
        st.builds(Fault, kind=st.just("kill_worker"), at=st.floats(0.5, 3.0), until=st.floats(3.1, 8.0)),
        st.builds(Fault, kind=st.just("lose_zone"), zone=st.just("one"), at=st.floats(0.5, 3.0), until=st.just(5.0)),
        st.builds(Fault, kind=st.just("silence"), at=st.floats(0.5, 2.0), until=st.floats(2.1, 9.0)),
        st.builds(Fault, kind=st.just("flood"), tenant=st.just("b"), at=st.just(1.0), until=st.just(3.0)),
        st.builds(Fault, kind=st.just("split_owners"), at=st.just(1.0), until=st.just(3.0), fenced=st.booleans()),
    ),
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.3, 3.0),
    faults,
    st.sampled_from(("fair", "fifo")),
    st.sampled_from((0.5, 3.0, 60.0)),
    st.integers(0, 1000),
    st.sampled_from((
        {}, {"prefix_blocks": 32}, {"preemptive": True}, {"preemptive": True, "holds_shares": True, "prefix_blocks": 9},
    )),
    st.booleans(),
)  # fmt: skip
def test_every_request_leaves_exactly_once(
    factor: float,
    wrong: list[Fault],
    discipline: str,
    timeout: float,
    seed: int,
    memory: dict[str, Any],
    edge_sheds: bool,
) -> None:
    base = mixed(
        factor,
        seconds=5.0,
        warmup=0.0,
        seed=seed,
        faults=tuple(wrong),
        admission={"discipline": discipline},
        edge_sheds=edge_sheds,
        cluster=Cluster(
            workers=3,
            zones=("one", "two"),
            sizes={"max_running": 8} | ({"total_blocks": 40} if memory.get("preemptive") else {}),
            slowdown=3.0,
            **memory,
        ),
    )
    tenants = tuple(
        msgspec.structs.replace(each, timeout=timeout, kv_share=0.2, prefixes=3, max_context=0) for each in base.tenants
    )
    closed = TenantSpec(tenant="d", clients=3, think=0.2, lengths="60+12", timeout=timeout)
    scenario = msgspec.structs.replace(base, tenants=(*tenants, closed))
    scenario.check()
    simulator = Simulator(scenario)
    expected = Counter(arrival.request_id for arrival in simulator._workload.arrivals())
    observed = simulator.run()
    ended = Counter(each.arrival.request_id for each in observed.outcomes if not each.arrival.client)
    assert ended == expected
    assert len({each.arrival.request_id for each in observed.outcomes}) == len(observed.outcomes)
    for each in observed.outcomes:
        assert each.e2e >= 0.0
        assert 0 <= each.delivered <= each.arrival.output_tokens
        assert (each.outcome == OK) <= (each.delivered == each.arrival.output_tokens)
        assert each.ttft is None or 0.0 <= each.ttft <= each.e2e + 1.0
        assert each.e2e <= timeout + 1.0
    # What the workers made and nobody got was lost with a worker, or thrown away with a caller that had left.
    assert observed.output_tokens >= sum(each.delivered for each in observed.outcomes if not each.moved)


def queue(load: float, *, output: int, variation: float, servers: int = 1) -> Scenario:
    """Workers that serve one request at a time, each `output` steps of 10 ms, with the rest of the mesh taken away."""
    service = 0.01 * output
    return Scenario(
        seconds=4000.0 * service / servers,
        warmup=200.0 * service,
        cluster=Cluster(
            workers=servers,
            costs={"step_base": 0.01},
            sizes={"max_running": 1, "total_blocks": 64, "max_step_tokens": 4096},
            report_interval=1e-6,
        ),
        delays=NO_DELAYS,
        admission={"discipline": "fifo", "max_queued": 1_000_000},
        tenants=(
            TenantSpec(
                tenant="a", rate=load * servers / service, variation=variation, lengths=f"1+{output}", timeout=1e6
            ),
        ),
    )


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_worker_of_one_place_waits_as_the_theory_of_queues_says(load: float) -> None:
    """M/D/1: mean wait = load · service / (2 · (1 - load)) (Pollaczek and Khinchine, constant service)."""
    waits = [each.waited for seed in (1, 2, 3) for each in run(
        msgspec.structs.replace(queue(load, output=10, variation=1.0), seed=seed)).outcomes]  # fmt: skip
    assert sum(waits) / len(waits) == pytest.approx(load * 0.1 / (2 * (1 - load)), rel=0.1)


def test_arrivals_like_a_metronome_never_wait() -> None:
    observed = run(queue(0.9, output=10, variation=0.0))
    assert max(each.waited for each in observed.outcomes) == 0.0
    assert observed.busy == pytest.approx(0.9, rel=0.01)


def test_without_waits_a_first_token_takes_its_prefill_and_the_way() -> None:
    scenario = Scenario(
        seconds=10.0,
        warmup=0.0,
        cluster=Cluster(workers=1, costs={"step_base": 0.005, "prefill_tokens_per_second": 1000.0}),
        delays=Delays(spread=0.0),
        tenants=(TenantSpec(tenant="a", rate=1.0, variation=0.0, lengths="200+11"),),
    )
    delays = scenario.delays
    way = delays.to_admission + delays.to_worker + delays.to_client
    for each in run(scenario).outcomes:
        assert each.ttft == pytest.approx(way + 0.005 + 0.2)
        assert each.itl == pytest.approx(0.005)


def test_at_twice_the_capacity_fair_keeps_its_goodput_and_fifo_has_none() -> None:
    def good(factor: float, discipline: str) -> float:
        scenario = mixed(
            factor,
            cluster=Cluster(workers=4),
            seconds=25.0,
            warmup=8.0,
            admission={"discipline": discipline, "max_queued": 1024},
        )
        report = summarise(scenario, run(scenario))
        rows = [row for row in report["tenants"] if row["queue_class"] != "batch"]
        return float(sum(row["good"] for row in rows))

    at_capacity, fair, fifo = good(1.0, "fair"), good(2.0, "fair"), good(2.0, "fifo")
    assert fair >= 0.95 * at_capacity
    assert fifo < 0.3 * fair


def test_a_lost_zone_costs_streams_their_place_and_not_their_tokens() -> None:
    scenario = mixed(0.4, faults=(Fault(kind="lose_zone", zone="two", at=6.0, until=9.0),))
    observed = run(scenario)
    moved = [each for each in observed.outcomes if each.moved]
    assert moved
    assert Counter(each.outcome for each in moved) == {OK: len(moved)}
    assert all(each.delivered == each.arrival.output_tokens for each in moved)


def test_a_flood_leaves_the_other_tenants_first_tokens_in_time() -> None:
    tenants = (TenantSpec(tenant="victim", load=0.4), TenantSpec(tenant="flooder", load=0.4))
    scenario = Scenario(
        seconds=30.0,
        warmup=2.0,
        cluster=Cluster(workers=4),
        objectives=OBJECTIVES,
        tenants=tenants,
        faults=(Fault(kind="flood", tenant="flooder", at=10.0, until=25.0, factor=20.0),),
    )
    outcomes = [each for each in run(scenario).outcomes if each.arrival.tenant == "victim"]
    assert sum(met(each, OBJECTIVES["paid"]) for each in outcomes) >= 0.95 * len(outcomes)


def test_the_limiter_holds_in_any_minute_and_serves_what_is_over_when_it_may() -> None:
    def served(over_quota: str) -> tuple[list[float], Counter[str], Counter[str]]:
        limits = TenantLimits(requests_per_minute=30, over_quota=over_quota)  # type: ignore[arg-type]
        spec = TenantSpec(tenant="a", rate=2.0, lengths="50+10", limits=limits)
        outcomes = run(Scenario(seconds=150.0, tenants=(spec,), cluster=Cluster(workers=1))).outcomes
        within = sorted(e.arrival.at for e in outcomes if e.outcome == OK and e.queue_class == "paid")
        return within, Counter(e.outcome for e in outcomes), Counter(e.queue_class for e in outcomes)

    within, outcomes, _ = served("refuse")
    assert outcomes.keys() == {OK, "QUOTA_REQUESTS"}
    assert all(later - earlier >= 59.9 for earlier, later in zip(within, within[30:], strict=False))
    assert outcomes[OK] > 60
    _, outcomes, classes = served("serve_idle")
    assert outcomes.keys() == {OK}
    assert classes["over_quota"] > classes["paid"]


def test_urgent_work_interrupts_batch_which_comes_to_its_end_later() -> None:
    scenario = Scenario(
        seconds=20.0,
        warmup=0.0,
        cluster=Cluster(workers=1, sizes={"max_running": 4}, costs={"step_base": 0.01}),
        objectives={"paid": Objective(ttft=0.5)},
        tenants=(
            TenantSpec(tenant="night", queue_class="batch", rate=1.0, end=5.0, lengths="50+800", timeout=200.0),
            TenantSpec(tenant="day", rate=0.5, start=6.0, lengths="50+20"),
        ),
    )
    observed = run(scenario)
    night = [each for each in observed.outcomes if each.arrival.tenant == "night"]
    day = [each for each in observed.outcomes if each.arrival.tenant == "day"]
    assert observed.preempted == sum(each.interrupted for each in night) > 0
    assert {each.outcome for each in night} == {OK}
    assert all(met(each, Objective(ttft=0.5)) for each in day)


@pytest.mark.parametrize("name", presets())
def test_presets_run(name: str) -> None:
    scenario = read(PRESETS / f"{name}.toml")
    small = msgspec.structs.replace(
        scenario, seconds=8.0, warmup=2.0, cluster=msgspec.structs.replace(scenario.cluster, workers=3)
    )
    report = summarise(small, run(small), timeline=True)
    assert report["total"]["served"] > 0
    assert report["label"] == "simulation"
    assert {row["label"] for row in report["timeline"]} == {"simulation"}
    assert sum(row["offered"] for row in report["timeline"]) == report["requests"]


def test_d1_a_canary_that_is_full_costs_the_other_version_nothing() -> None:
    """Served in the same way as when nobody is on the canary."""

    def stable(canary_load: float) -> list[tuple[str, float | None]]:
        scenario = Scenario(
            seconds=15.0,
            warmup=2.0,
            cluster=Cluster(workers=4, canaries=1),
            objectives={"paid": Objective(ttft=1.5)},
            delays=Delays(spread=0.0),
            tenants=(
                TenantSpec(tenant="stable", load=0.5, max_context=4096),
                TenantSpec(tenant="early", canary=True, load=canary_load, max_context=4096),
            ),
        )
        outcomes = run(scenario).outcomes
        if canary_load > 0.1:
            assert sum(each.outcome != OK for each in outcomes if each.arrival.tenant == "early") > 20
        return sorted((each.outcome, each.ttft) for each in outcomes if each.arrival.tenant == "stable")

    calm, busy = stable(0.001), stable(1.0)
    assert {outcome for outcome, _ in busy} == {OK}
    assert len(busy) == len(calm)
    quick = [sum(ttft is not None and ttft <= 1.5 for _, ttft in each) for each in (calm, busy)]
    assert quick[1] >= quick[0]


def test_the_capacity_is_about_what_full_workers_carry() -> None:
    cluster = Cluster(workers=2)
    costs, sizes = cluster.model()
    scenario = Scenario(
        seconds=20.0,
        warmup=5.0,
        cluster=cluster,
        admission={"discipline": "fifo"},
        tenants=(TenantSpec(tenant="a", load=3.0, max_context=4096, timeout=500.0),),
    )
    estimate = 2 * capacity(costs, sizes, scenario.loads()[0].lengths)
    observed = run(scenario)
    last = max(each.arrival.at + each.e2e for each in observed.outcomes if each.outcome == OK)
    assert sum(each.outcome == OK for each in observed.outcomes) / last == pytest.approx(estimate, rel=0.15)


def test_the_example_of_the_readme_is_a_scenario_and_names_every_setting(tmp_path: Path) -> None:
    text = (PRESETS.parent / "README.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example)
    scenario = read(path)
    (tenant,) = scenario.tenants
    assert tenant.limits is not None
    assert tenant.bursts is not None
    assert scenario.cluster.model()[0].prefill_tokens_per_second == pytest.approx(49913.5)
    assert scenario.delays == Delays()


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenants": ()},
        {"warmup": 99.0},
        {"objectives": {"gold": Objective()}},
        {"admission": {"disciplin": "fair"}},
        {"admission": {"output_reserve": 7}},
        {"faults": (Fault(kind="flood", tenant="nobody", at=1.0),)},
        {"faults": (Fault(kind="lose_zone", zone="nowhere", at=1.0),)},
        {"cluster": Cluster(workers=2, canaries=2)},
        {"tenants": (TenantSpec(tenant="a", rate=1.0, canary=True),)},
        {"cluster": Cluster(calibration="missing.toml")},
        {"cluster": Cluster(costs={"step": 1.0})},
        {"cluster": Cluster(costs={"step_base": 0.0})},
        {"tenants": (TenantSpec(tenant="a", rate=1.0, lengths="unknown"),)},
    ],
)
def test_senseless_scenarios_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        mixed(1.0, **wrong).check()
