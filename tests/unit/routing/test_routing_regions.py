"""No path leaves a tenant's regions: routes, mirrors, fallbacks and the way through the mesh itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.routing import Route, RouteRequest, RoutingTable
from libs.routing.residency import READERS
from tests.support.registry_service import admitted

ZONES = ("zone-a", "zone-b", "zone-c")
REGIONS = ("eu", "us", "")
VERSIONS = ("weir-fast@1", "weir-fast@2")
POOLS = ("fast", "cpu")
T = TypeVar("T")


def world(endpoints: list[pb.Endpoint], allowed: list[str]) -> RegistrySnapshot:
    """One model with a second version in its shadow, and a tenant that may be served in some regions."""
    models = {
        name: pb.ModelVersion(name="weir-fast", version=name[-1], pool="fast", tier="fast", context_length=512)
        for name in VERSIONS
    }
    alias = pb.Alias(name="weir-fast", targets=[pb.AliasTarget(model_version=VERSIONS[0], weight=100)])
    rollout = pb.Rollout(
        id="r1",
        alias="weir-fast",
        baseline=VERSIONS[0],
        arms=[pb.RolloutArm(name="candidate", model_version=VERSIONS[1])],
        shadow=pb.ShadowPlan(share=10_000),
        state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_SHADOW, weights=[0]),
    )
    known = admitted("acme", "globex")
    known["tenants"] = {**known["tenants"], "acme": pb.Tenant(id="acme", allowed_regions=allowed)}
    return RegistrySnapshot(
        revision=1,
        model_versions=models,
        aliases={"weir-fast": alias},
        rollouts={"weir-fast": rollout},
        endpoints={(each.service, each.instance): each for each in endpoints},
        **known,
    )


@st.composite
def endpoints(draw: st.DrawFn) -> list[pb.Endpoint]:
    """Workers, gateways and readers anywhere; a zone may stand in two regions, which is a fault of somebody's."""
    found = []
    for number in range(draw(st.integers(0, 8))):
        service = draw(st.sampled_from(("worker", "worker", "worker", "gateway", *sorted(READERS))))
        found.append(
            pb.Endpoint(
                service=service,
                instance=f"p{number}",
                zone=draw(st.sampled_from(ZONES)),
                region=draw(st.sampled_from(REGIONS)),
                pool=draw(st.sampled_from(POOLS)) if service == "worker" else "",
                model_versions=draw(st.lists(st.sampled_from(VERSIONS), unique=True)) if service == "worker" else (),
            )
        )
    return found


def within(table: RoutingTable, zones: tuple[str, ...], allowed: list[str]) -> bool:
    """Not empty, which would mean everywhere, and whoever stands in these zones is in an allowed region."""
    there = [each.region for each in table.snapshot.endpoints.values() if each.zone in zones]
    return bool(zones) and bool(there) and set(there) <= set(allowed)


def or_refused(ask: Callable[[], T]) -> T | None:
    """The answer; None where nothing was allowed, which is said by type."""
    try:
        return ask()
    except WeirError as error:
        if (error.reason, error.limit) != (Reason.REGION_NOT_ALLOWED, "allowed_regions"):
            raise
        return None


@given(
    everything=endpoints(),
    allowed=st.lists(st.sampled_from(REGIONS[:2]), min_size=1, unique=True),
    zone=st.sampled_from(("", *ZONES)),
    model=st.sampled_from(("weir-fast", *VERSIONS)),
)
def test_no_path_leaves_the_set(everything: list[pb.Endpoint], allowed: list[str], zone: str, model: str) -> None:
    table = RoutingTable.of(world(everything, allowed))
    # Breakers, too, only choose among what is allowed.
    asked = RouteRequest("acme", model, zone=zone, request_id="1")
    route = or_refused(lambda: table.resolve(asked, lambda _, zones: zones[::-1]))
    if route is not None:
        assert within(table, route.zones, allowed)
        assert route.mirror is None or within(table, route.mirror.zones, allowed)
        readers = [each.region for key, each in table.snapshot.endpoints.items() if key[0] in READERS]
        assert set(readers) <= set(allowed)
        assert not zone or within(table, (zone,), allowed)
    for pool in POOLS:
        zones = or_refused(lambda pool=pool: table.elsewhere("acme", pool))
        assert zones is None or within(table, zones, allowed)


@given(everything=endpoints(), zone=st.sampled_from(("", *ZONES)))
def test_who_names_no_region_is_served_as_before(everything: list[pb.Endpoint], zone: str) -> None:
    bound, free = world(everything, ["eu"]), world(everything, [])
    asked = RouteRequest("globex", "weir-fast", zone=zone, request_id="1")
    assert RoutingTable.of(bound).resolve(asked) == RoutingTable.of(free).resolve(asked)
    assert RoutingTable.of(bound).elsewhere("globex", "cpu") == ()


def worker(instance: str, zone: str, region: str, pool: str = "fast") -> pb.Endpoint:
    return pb.Endpoint(
        service="worker", instance=instance, zone=zone, region=region, pool=pool, model_versions=VERSIONS
    )


def resolved(snapshot: RegistrySnapshot, zone: str = "") -> Route:
    return RoutingTable.of(snapshot).resolve(RouteRequest("acme", "weir-fast", zone=zone, request_id="1"))


def test_a_bound_tenant_is_served_where_it_may_be() -> None:
    """Without this the property would hold of a filter that refuses everything."""
    two = [worker("w0", "zone-a", "eu"), worker("w1", "zone-b", "us")]
    assert resolved(world(two, ["eu"])).zones == ("zone-a",)
    mirror = resolved(world(two, ["us"])).mirror
    assert mirror is not None
    assert mirror.zones == ("zone-b",)
    assert set(resolved(world(two, ["eu", "us"])).zones) == {"zone-a", "zone-b"}
    assert RoutingTable.of(world([*two, worker("c0", "zone-c", "eu", "cpu")], ["eu"])).elsewhere("acme", "cpu") == (
        "zone-c",
    )


@pytest.mark.parametrize(
    "stranger",
    [
        worker("w1", "zone-a", "us"),
        pb.Endpoint(service="safety", instance="s0", zone="zone-b", region="us"),
        pb.Endpoint(service="audit", instance="a0", zone="zone-b"),
    ],
)
def test_a_zone_of_two_regions_and_a_reader_outside_are_refused(stranger: pb.Endpoint) -> None:
    alone = [worker("w0", "zone-a", "eu")]
    assert resolved(world(alone, ["eu"])).zones == ("zone-a",)
    with pytest.raises(WeirError) as caught:
        resolved(world([*alone, stranger], ["eu"]))
    assert caught.value.reason is Reason.REGION_NOT_ALLOWED


def test_predictions_are_for_bound_tenants_while_all_predictors_are_within() -> None:
    def predictor(instance: str, region: str) -> pb.Endpoint:
        return pb.Endpoint(service="predictor", instance=instance, zone="zone-p", region=region)

    for regions, may in ((["eu"], True), (["eu", "us"], False), ([""], False), ([], True)):
        table = RoutingTable.of(world([predictor(f"p{n}", each) for n, each in enumerate(regions)], ["eu"]))
        assert table.may_predict("acme") is may
        assert table.may_predict("globex")


def test_a_gateway_outside_sends_nothing_on() -> None:
    gateway = pb.Endpoint(service="gateway", instance="g0", zone="zone-b", region="us")
    with pytest.raises(WeirError, match="gateway"):
        resolved(world([worker("w0", "zone-a", "eu"), gateway], ["eu"]), zone="zone-b")


def test_a_table_that_is_made_from_an_earlier_one_knows_changed_regions() -> None:
    before = RoutingTable.of(world([worker("w0", "zone-a", "eu")], ["eu"]))
    moved = world([worker("w0", "zone-a", "us")], ["eu"])
    with pytest.raises(WeirError):
        RoutingTable.of(moved, before).resolve(RouteRequest("acme", "weir-fast"))
    bound = replace(before.snapshot, tenants={"acme": pb.Tenant(id="acme", allowed_regions=["us"])})
    with pytest.raises(WeirError):
        RoutingTable.of(bound, before).resolve(RouteRequest("acme", "weir-fast"))
