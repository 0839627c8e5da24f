"""What edge-auth tells Envoy of a caller's place: the bucket and rollout of libs.routing, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from envoy.service.auth.v3 import external_auth_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot
from libs.routing import RouteRequest, RoutingTable
from services.edge_auth.placement import Placer
from services.edge_auth.policy.types import Principal
from services.edge_auth.responses import NO_MODEL, allowed_start
from tests.support.registry_service import admitted

PREDICT = "/inference.GRPCInferenceService/ModelInfer"
SNAPSHOT = RegistrySnapshot(
    revision=1,
    model_versions={f"m@{each}": pb.ModelVersion(name="m", version=each) for each in "12"},
    **admitted("acme", "outside"),
    aliases={
        "m": pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@1", weight=100)]),
        "plain": pb.Alias(name="plain", targets=[pb.AliasTarget(model_version="m@1", weight=100)]),
    },
    rollouts={
        "m": pb.Rollout(
            alias="m",
            id="r1",
            baseline="m@1",
            arms=[pb.RolloutArm(name="canary", model_version="m@2")],
            sticky=pb.STICKY_BY_SESSION,
            blast_radius=pb.BlastRadius(except_tenants=["outside"]),
            state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_CANARY, weights=[3000]),
        )
    },
)


def told(tenant: str, path: str, headers: dict[str, str], snapshot: RegistrySnapshot = SNAPSHOT) -> dict[str, str]:
    """The headers that Envoy sets, beside those of every answer."""
    placer = Placer()
    placer.use(snapshot)
    start = allowed_start(Principal(tenant, "paid", frozenset({"inference"}), "k1"))
    answer = external_auth_pb2.CheckResponse.FromString(start + placer.place(tenant, path, headers))
    found = {option.header.key: option.header.value for option in answer.ok_response.headers}
    assert found["x-weir-tenant"] == tenant
    return {name: value for name, value in found.items() if name in ("x-weir-bucket", "x-weir-rollout")}


@given(user=st.text(max_size=8), session=st.text(max_size=8))
def test_the_place_is_that_of_routing(user: str, session: str) -> None:
    headers = {"x-weir-model": "m", "x-weir-user": user, "x-weir-session": session}
    placed = RoutingTable.of(SNAPSHOT).place(RouteRequest("acme", "m", user=user, session=session))
    assert placed is not None
    assert told("acme", PREDICT, headers) == {"x-weir-bucket": str(placed.bucket), "x-weir-rollout": "r1"}


@given(user=st.text(max_size=8))
def test_a_tenant_outside_the_blast_radius_is_in_the_baselines_buckets_and_in_no_rollout(user: str) -> None:
    found = told("outside", PREDICT, {"x-weir-model": "m", "x-weir-user": user})
    assert found.keys() == {"x-weir-bucket"}
    assert 3000 <= int(found["x-weir-bucket"]) < 10_000


def test_an_alias_without_a_rollout_has_a_bucket_and_no_rollout() -> None:
    assert told("acme", PREDICT, {"x-weir-model": "plain"}).keys() == {"x-weir-bucket"}


def test_nothing_is_said_where_there_is_nothing_to_choose_among() -> None:
    assert told("acme", PREDICT, {}) == {}
    assert told("acme", PREDICT, {"x-weir-model": "m@1"}) == {}
    assert told("acme", PREDICT, {"x-weir-model": "unknown"}) == {}
    assert told("acme", "/v1/chat/completions", {"x-weir-model": "m"}) == {}
    assert told("acme", PREDICT, {"x-weir-model": "m"}, RegistrySnapshot()) == {}


@pytest.mark.parametrize(("region", "allowed"), [("us", False), ("eu", True)])
def test_a_tenant_that_is_bound_to_regions_meets_no_predictor_outside_of_them(region: str, allowed: bool) -> None:
    predictor = pb.Endpoint(service="predictor", instance="p0", zone="zone-a", region=region)
    tenants = {**SNAPSHOT.tenants, "acme": pb.Tenant(id="acme", allowed_regions=["eu"])}
    placer = Placer()
    placer.use(replace(SNAPSHOT, endpoints={("predictor", "p0"): predictor}, tenants=tenants))
    assert (placer.place("acme", PREDICT, {"x-weir-model": "m"}) != NO_MODEL) is allowed
