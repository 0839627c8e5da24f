"""Router, gateway without a router, and edge-auth with Envoy: whoever decides, a caller gets the same version."""

from __future__ import annotations

import random

import pytest
from envoy.service.auth.v3 import external_auth_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb
from weir.router.v1 import router_pb2

from libs.breaker import BreakerBoard, BreakerOptions
from libs.catalog import Catalog
from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.routing import BUCKETS, RoutingTable
from libs.texts import TextStore
from services.controlplane.policy.predictions import Prediction, predictions_of
from services.edge_auth.placement import Placer
from services.edge_auth.responses import NO_MODEL
from services.router.server import RouterServicer
from tests.support.registry_service import grant

CLOCK = SystemClock()
VERSIONS = {
    f"m@{number}": pb.ModelVersion(name="m", version=str(number), pool="p", tier="fast", namespace=namespace)
    for number, namespace in ((1, ""), (2, "lab"), (3, ""), (4, "lab"))
}
PHASES = (
    pb.ROLLOUT_PHASE_SHADOW,
    pb.ROLLOUT_PHASE_CANARY,
    pb.ROLLOUT_PHASE_EXPERIMENT,
    pb.ROLLOUT_PHASE_PROMOTED,
    pb.ROLLOUT_PHASE_ABORTED,
)
TENANTS = [f"tenant-{number}" for number in range(8)]
grants = st.dictionaries(
    st.sampled_from(["all", "plan:free", "tenant:tenant-1"]),
    st.sampled_from([grant(), grant(namespaces=["default", "lab"]), grant(models=["m"]), grant(models=["m@2"])]),
)
some_tenants = st.lists(st.sampled_from(TENANTS), max_size=3)


@st.composite
def snapshots(draw: st.DrawFn) -> RegistrySnapshot:
    """An alias that gives one version or several, mostly under a rollout; arms of it may be unregistered."""
    cuts = sorted(draw(st.lists(st.integers(0, BUCKETS), min_size=1, max_size=3)))
    weights = [high - low for low, high in zip([0, *cuts], cuts, strict=False)]
    arms = [pb.RolloutArm(name=f"arm-{i}", model_version=f"m@{i + 2}") for i in range(len(weights))]
    radius = pb.BlastRadius(
        max_tenants=draw(st.integers(0, 4)), only_tenants=draw(some_tenants), except_tenants=draw(some_tenants)
    )
    under = pb.Rollout(
        alias="m",
        id=draw(st.sampled_from(["r1", "r2"])),
        baseline="m@1",
        arms=arms,
        sticky=draw(st.sampled_from([pb.STICKY_BY_TENANT, pb.STICKY_BY_USER, pb.STICKY_BY_SESSION])),
        blast_radius=radius,
        state=pb.RolloutState(phase=draw(st.sampled_from(PHASES)), step=2, weights=weights),
    )
    share = draw(st.sampled_from([0, 0, 0, 37]))
    targets = [("m@1", 100 - share)] + ([("m@2", share)] if share else [])
    alias = pb.Alias(name="m", targets=[pb.AliasTarget(model_version=name, weight=weight) for name, weight in targets])
    gone = draw(st.sampled_from(["", "", "m@3"]))
    return RegistrySnapshot(
        revision=5,
        model_versions={name: version for name, version in VERSIONS.items() if name != gone},
        aliases={"m": alias},
        tenants={tenant: pb.Tenant(id=tenant) for tenant in TENANTS[: draw(st.integers(4, 8))]},
        model_grants=draw(grants),
        rollouts={"m": under} if draw(st.integers(0, 4)) else {},
        switches={"rollouts": pb.RolloutSwitch(kill=draw(st.integers(0, 5)) == 0)},
    )


def by_envoy(prediction: Prediction, answer: bytes) -> str:
    """What Envoy does with the answer of edge-auth: the routes in their order, then the weighted clusters in theirs."""
    added = {
        each.header.key: each.header.value
        for each in external_auth_pb2.CheckResponse.FromString(answer).ok_response.headers
    }
    if prediction.rollout_id and added.get("x-weir-rollout", "") != prediction.rollout_id:
        return prediction.otherwise
    bucket = int(added["x-weir-bucket"])
    for share in prediction.shares:
        if bucket < share.weight:
            return share.model_version
        bucket -= share.weight
    raise AssertionError("the weights do not reach the bucket")


# Made once: each takes snapshot after snapshot, as it does in service.
ROUTER = RouterServicer(
    BreakerBoard(BreakerOptions()), instance="router-0", clock=CLOCK, max_in_flight=1, report_seconds=1.0
)
CATALOG = Catalog(
    zone="zone-a",
    texts=TextStore(blobs="", directory=None, max_bytes=0, clock=CLOCK, chance=random.random),
    clock=CLOCK,
)
PLACER = Placer()
callers = st.tuples(
    st.sampled_from([*TENANTS, "stranger"]), st.sampled_from(["", "u1", "u2"]), st.text("xyz", max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(snapshots(), st.lists(callers, min_size=1, max_size=20))
def test_everybody_who_decides_decides_alike(snapshot: RegistrySnapshot, asking: list[tuple[str, str, str]]) -> None:
    ROUTER.use(snapshot)
    CATALOG.update(snapshot)
    PLACER.use(snapshot)
    live = snapshot.model_versions.keys()
    predictions = {found.model: found for found in predictions_of(RoutingTable.of(snapshot), live)}
    for tenant, user, session in asking:
        asked = router_pb2.Resolve(tenant=tenant, model="m", zone="zone-a", user=user, session=session, request_id="q")
        headers = {"x-weir-model": "m", "x-weir-user": user, "x-weir-session": session}
        answer = PLACER.place(tenant, "/inference.GRPCInferenceService/ModelInfer", headers)
        question = CATALOG.question(tenant, "m", user=user, session=session, request_id="q")
        if answer == NO_MODEL:
            assert ROUTER._resolve(asked).rejected.reason == Reason.MODEL_NOT_FOUND.value
            with pytest.raises(WeirError, match="There is no model 'm'"):
                CATALOG.resolve(question)
            continue
        routed = ROUTER._resolve(asked).route
        alone = CATALOG.resolve(question)
        assert (routed.model_version, routed.arm, routed.rollout_id, routed.step) == (
            alone.model_version,
            alone.arm,
            alone.rollout_id,
            alone.step,
        )
        assert by_envoy(predictions["m"], answer) == routed.model_version
