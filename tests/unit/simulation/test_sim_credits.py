"""What credits change for tenants: nothing, but who has to ask."""

from __future__ import annotations

from typing import Any

from simulation.report import summarise
from simulation.scenario import BurstSpec, Cluster, Scenario, TenantSpec
from simulation.simulator import Simulator

COST = 200.0  # of one request: 100 tokens and 50, which cost twice as much


def clusters(**credits: float) -> dict[str, Any]:
    """Calm between bursts that nobody could serve at once: of one tenant, who finds credits each time."""
    scenario = Scenario(
        seconds=20.0,
        warmup=1.0,
        cluster=Cluster(workers=2, sizes={"max_running": 32}),
        tenants=(
            TenantSpec(tenant="calm", load=0.05, lengths="100+50"),
            TenantSpec(tenant="steady", load=0.05, lengths="100+50"),
            TenantSpec(
                tenant="bursty",
                load=0.03,
                lengths="100+50",
                bursts=BurstSpec(every=4.0, length=0.4, factor=120.0),
            ),
        ),
        admission={"credits": credits},
    )
    scenario.check()
    return summarise(scenario, Simulator(scenario).run())


def test_whoever_finds_credits_when_others_begin_to_wait_gains_nothing_by_them() -> None:
    without, on = clusters(most=0), clusters()
    assert (without["on_credit"], on["requests"]) == (0, without["requests"])
    assert on["on_credit"] > 100
    assert on["total"]["served"] == without["total"]["served"]
    for gap, before in zip(on["service_gaps"], without["service_gaps"], strict=True):
        assert gap["gap"] <= before["gap"] + COST, gap["tenants"]
    for tenant, before in zip(on["tenants"], without["tenants"], strict=True):
        assert tenant["ttft_p95"] <= 1.1 * before["ttft_p95"], tenant["tenant"]
