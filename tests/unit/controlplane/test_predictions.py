"""Routes to predictors: the buckets are those of libs.routing, to the last one, and everything named is there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import pytest
from envoy.config.route.v3 import route_pb2
from google.protobuf import any_pb2, duration_pb2, json_format, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb
from xds.type.matcher.v3 import matcher_pb2

from libs.registry import RegistrySnapshot
from libs.routing import BUCKETS, RouteRequest, RoutingTable
from services.controlplane.convert import encode, endpoints_of
from services.controlplane.descriptors import transcoder_descriptors
from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.consistency import consistent
from services.controlplane.policy.edge import CALLERS_OWN, all_but
from services.controlplane.policy.endpoints import Endpoint, predictors_of
from services.controlplane.policy.names import CLUSTER, EDGE, ENDPOINTS, MESH, ROUTES
from services.controlplane.policy.predictions import Prediction, Share, predictions_of
from services.controlplane.policy.routes import edge_routes
from services.controlplane.policy.snapshot import Snapshot, build_snapshot
from services.controlplane.policy.subscription import Offer
from services.controlplane.route_encoding import varint
from tests.support.registry_service import admitted

DESCRIPTORS = transcoder_descriptors()
ALL = frozenset({"m@1", "m@2", "m@3"})


def table(
    targets: Sequence[tuple[str, int]] = (("m@1", 100),),
    weights: Sequence[int] = (),
    phase: pb.RolloutPhase = pb.ROLLOUT_PHASE_CANARY,
) -> RoutingTable:
    """One alias "m", with a rollout when there are weights: of arms "a" (m@2) and "b" (m@3)."""
    arms = [pb.RolloutArm(name="ab"[i], model_version=f"m@{i + 2}") for i in range(len(weights))]
    state = pb.RolloutState(phase=phase, weights=weights)
    under = pb.Rollout(alias="m", id="r1", baseline="m@1", arms=arms, sticky=pb.STICKY_BY_USER, state=state)
    alias = pb.Alias(name="m", targets=[pb.AliasTarget(model_version=v, weight=w) for v, w in targets])
    return RoutingTable.of(
        RegistrySnapshot(
            revision=3,
            model_versions={name: pb.ModelVersion(name="m", version=name[-1]) for name in ALL},
            aliases={"m": alias},
            rollouts={"m": under} if weights else {},
            **admitted("acme"),
        )
    )


def predictors(*versions: str) -> list[Endpoint]:
    return [
        Endpoint("predictor", f"p-{version}", "127.0.0.1", 9000 + i, "zone-a", versions=(version,))
        for i, version in enumerate(versions)
    ]


def build(predictions: Sequence[Prediction], *served: str) -> Snapshot:
    found = predictors(*served)
    return build_snapshot(
        3,
        found,
        EdgeConfig(),
        services=("predictor",),
        descriptors=DESCRIPTORS,
        predictions=predictions,
        predictors=predictors_of(found),
    )


def alias_of(predictions: Sequence[Prediction]) -> Prediction:
    return next(found for found in predictions if found.model == "m")


def chosen(shares: Sequence[Share], bucket: int) -> str:
    """As Envoy walks the list."""
    for share in shares:
        if bucket < share.weight:
            return share.model_version
        bucket -= share.weight
    raise AssertionError("the weights do not reach the bucket")


@given(first=st.integers(0, 6000), second=st.integers(0, 4000), user=st.text(max_size=10))
def test_envoys_walk_ends_where_routing_places_the_caller(first: int, second: int, user: str) -> None:
    found = table(weights=[first, second])
    prediction = alias_of(predictions_of(found, ALL))
    assert sum(share.weight for share in prediction.shares) == BUCKETS
    request = RouteRequest("acme", "m", user=user)
    placed = found.place(request)
    assert placed is not None
    assert chosen(prediction.shares, placed.bucket) == found.resolve(request).model_version


@given(
    weights=st.lists(st.integers(0, 100), min_size=1, max_size=3).filter(lambda w: sum(w) > 0), key=st.text(max_size=10)
)
def test_an_aliass_own_weights_are_followed_whatever_they_sum_to(weights: list[int], key: str) -> None:
    found = table([(f"m@{i + 1}", weight) for i, weight in enumerate(weights)])
    prediction = alias_of(predictions_of(found, ALL))
    request = RouteRequest("acme", "m", user=key)
    placed = found.place(request)
    assert placed is not None
    assert (
        chosen(prediction.shares, placed.bucket) == placed.target.model_version == found.resolve(request).model_version
    )


def test_only_callers_in_the_rollout_meet_its_arms() -> None:
    prediction = alias_of(predictions_of(table(weights=[1000]), ALL))
    assert prediction == Prediction(
        "m", (Share("m@2", "a", 1000), Share("m@1", "baseline", 9000)), rollout_id="r1", otherwise="m@1"
    )
    host = build([prediction], *ALL).resources(EDGE, "")[ROUTES]["edge"]["virtual_hosts"][0]
    paths = host["matcher"]["matcher_tree"]["prefix_match_map"]["map"]
    models = paths["/inference.GRPCInferenceService/"]["matcher"]["matcher_tree"]["exact_match_map"]["map"]
    arms, others = models["m"]["action"]["typed_config"]["routes"]
    (placed,) = arms["match"]["headers"]
    assert (placed["name"], placed["string_match"]) == ("x-weir-rollout", {"exact": "r1"})
    assert arms["route"]["weighted_clusters"]["header_name"] == "x-weir-bucket"
    assert "headers" not in others["match"]
    assert others["route"]["cluster"] == "prediction/m@1"


def test_whoever_else_predicts_is_asked_only_while_a_version_has_nobody() -> None:
    resources = build(predictions_of(table(), ALL), *ALL).resources(EDGE, "")
    behind = resources[CLUSTER]["prediction/m@1"]
    assert behind["cluster_type"]["typed_config"]["clusters"] == ["predictor/m@1", "predictor"]
    alone = resources[CLUSTER]["predictor/m@1"]
    assert alone["outlier_detection"]["max_ejection_percent"] == 100
    assert {each["common_lb_config"]["healthy_panic_threshold"]["value"] for each in (behind, alone)} == {0}
    assert resources[ENDPOINTS]["predictor/m@1"]["policy"]["overprovisioning_factor"] == 100_000
    assert "policy" not in resources[ENDPOINTS]["predictor"]


def test_tensors_are_no_tokens() -> None:
    """A request is counted; rows are, where they are counted."""
    for path in ("/inference.GRPCInferenceService/", "/v2/", "/v2"):
        (route,) = (
            route
            for route in edge_routes(EdgeConfig())["virtual_hosts"][0]["routes"]
            if path in (route["match"].get("prefix"), route["match"].get("path"))
        )
        (limit,) = route["typed_per_filter_config"]["envoy.filters.http.ratelimit"]["rate_limits"]
        assert [each["request_headers"]["header_name"] for each in limit["actions"]] == ["x-weir-ask"]


def test_an_arm_that_nobody_serves_leaves_its_buckets_to_the_baseline() -> None:
    prediction = alias_of(predictions_of(table(weights=[1000, 500]), {"m@1", "m@3"}))
    assert [(share.model_version, share.weight) for share in prediction.shares] == [("m@1", 9500), ("m@3", 500)]


@pytest.mark.parametrize(
    ("found", "served"),
    [
        (table(), {"m@2"}),
        (table(), set()),
        (table([("m@1", 50), ("m@2", 50)]), {"m@1"}),
        (table([("m@1", 0)]), ALL),
        (table([("gone@1", 100)]), {"gone@1"}),
    ],
)
def test_an_alias_that_is_not_served_stays_with_the_gateway(found: RoutingTable, served: set[str]) -> None:
    assert [each for each in predictions_of(found, served) if each.model == "m"] == []


@pytest.mark.parametrize("phase", [pb.ROLLOUT_PHASE_SHADOW, pb.ROLLOUT_PHASE_PREPARING, pb.ROLLOUT_PHASE_ROLLED_BACK])
def test_outside_exposure_the_baseline_is_all(phase: pb.RolloutPhase) -> None:
    prediction = alias_of(predictions_of(table(weights=[5000], phase=phase), ALL))
    assert prediction == Prediction("m", (Share("m@1", "", BUCKETS),))


def test_pinned_versions_that_are_registered_and_served_have_routes() -> None:
    found = predictions_of(table(), {"m@2", "unregistered@1"})
    assert found == (Prediction("m@2", (Share("m@2", "", BUCKETS),)),)


@given(first=st.integers(0, 6000), second=st.integers(0, 4000), served=st.sets(st.sampled_from(sorted(ALL))))
def test_every_snapshot_with_predictions_is_consistent(first: int, second: int, served: set[str]) -> None:
    snapshot = build(predictions_of(table(weights=[first, second]), served), *sorted(served))
    assert consistent(snapshot) == []
    clusters = {f"predictor/{version}" for version in served}
    resources = snapshot.resources(EDGE, "")
    assert clusters == {name for name in resources[CLUSTER] if name.startswith("predictor/")}
    assert clusters == {name for name in resources[ENDPOINTS] if name.startswith("predictor/")}
    assert "predictor/m@1" not in snapshot.resources(MESH, "")[ENDPOINTS]


@pytest.mark.parametrize(
    ("gone", "names"),
    [
        ("prediction/m@1", "routes edge name the absent cluster prediction/m@1"),
        ("predictor/m@1", "cluster prediction/m@1 names the absent cluster predictor/m@1"),
    ],
)
def test_a_version_that_is_named_and_nobody_has_is_found(gone: str, names: str) -> None:
    snapshot = build(predictions_of(table(), {"m@1"}), "m@1")
    kept = {name: found for name, found in snapshot.static[EDGE][CLUSTER].items() if name != gone}
    static = {**snapshot.static, EDGE: {**snapshot.static[EDGE], CLUSTER: kept}}
    faults = consistent(Snapshot(snapshot.version, static, snapshot.endpoints))
    assert f"edge: {names}" in faults


def test_weights_that_do_not_make_a_whole_are_found() -> None:
    short = Prediction("m", (Share("m@1", "", 9000), Share("m@2", "", 999)))
    assert any("do not make 10000" in fault for fault in consistent(build([short], "m@1", "m@2")))


def test_a_cluster_may_outlive_its_routes() -> None:
    gone = predictors_of(predictors("m@1"))
    snapshot = build_snapshot(3, [], EdgeConfig(), services=(), descriptors=DESCRIPTORS, predictors=gone)
    assert consistent(snapshot) == []
    assert snapshot.resources(EDGE, "")[ENDPOINTS]["predictor/m@1"]["endpoints"] != []


def test_a_change_of_one_weight_sends_routes_alone_and_keeps_every_other_route() -> None:
    first = encode(build(predictions_of(table(weights=[1000]), ALL), *sorted(ALL)))
    second = encode(build(predictions_of(table(weights=[2000]), ALL), *sorted(ALL)), first)
    old, new = first.offers_for(EDGE, ""), second.offers_for(EDGE, "")
    assert [kind for kind in old if old[kind] is not new[kind]] == [ROUTES]
    before, after = (by_model(offers) for offers in (old, new))
    assert [name for name in before if before[name] != after[name]] == ["m"]
    assert before.keys() == after.keys() == {"m", *ALL}


def by_model(offers: Mapping[str, Offer]) -> dict[str, matcher_pb2.Matcher.OnMatch]:
    """What Envoy does for each model."""
    config = route_pb2.RouteConfiguration()
    offers[ROUTES].resources["edge"].Unpack(config)
    paths = config.virtual_hosts[0].matcher.matcher_tree.prefix_match_map.map
    return dict(paths["/inference.GRPCInferenceService/"].matcher.matcher_tree.exact_match_map.map)


def test_routes_put_together_from_parts_are_those_parsed_as_a_whole() -> None:
    snapshot = build(predictions_of(table(weights=[1000, 300]), ALL), *sorted(ALL))
    together = route_pb2.RouteConfiguration()
    encode(snapshot).offers_for(EDGE, "")[ROUTES].resources["edge"].Unpack(together)
    plain = json.loads(json.dumps(snapshot.resources(EDGE, "")[ROUTES]["edge"]))
    assert together == json_format.ParseDict(plain, route_pb2.RouteConfiguration())


@given(st.integers(0, 2**40))
def test_a_varint_is_read_back(number: int) -> None:
    assert any_pb2.Any.FromString(b"\x12" + varint(3) + b"abc").value == b"abc"
    assert duration_pb2.Duration.FromString(b"\x08" + varint(number)).seconds == number


def test_only_predictors_that_can_be_reached_answer_for_a_version() -> None:
    started = [timestamp_pb2.Timestamp(seconds=seconds) for seconds in (1, 2)]
    endpoints, bad = endpoints_of(
        [
            pb.Endpoint(service="predictor", instance="p", address="127.0.0.1:1", model_versions=["m@1", "m@2"]),
            pb.Endpoint(service="worker", instance="w", address="127.0.0.1:2", model_versions=["m@3"]),
            pb.Endpoint(service="predictor", instance="lost", address="nowhere", model_versions=["m@4"]),
            # Killed, and its successor has its address already.
            pb.Endpoint(
                service="predictor", instance="a", address="127.0.0.1:3", model_versions=["m@5"], started_at=started[0]
            ),
            pb.Endpoint(
                service="predictor", instance="b", address="127.0.0.1:3", model_versions=["m@6"], started_at=started[1]
            ),
        ]
    )
    assert bad == ["predictor/lost"]
    assert predictors_of(endpoints).keys() == {"m@1", "m@2", "m@6"}


def stripped(name: str) -> bool:
    return any(re.fullmatch(regex, name) for regex in all_but("x-weir-", CALLERS_OWN))


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", max_size=12))
def test_all_our_headers_are_stripped_but_the_callers_own(rest: str) -> None:
    assert stripped(f"x-weir-{rest}") is (f"x-weir-{rest}" not in CALLERS_OWN)


@given(st.sampled_from(CALLERS_OWN), st.text("adelmnorsu-", max_size=3), st.integers(0, 7))
def test_what_only_resembles_a_callers_own_is_stripped(name: str, more: str, cut: int) -> None:
    for other in (name + more, name[: len(name) - cut] + more):
        assert stripped(other) is (other.startswith("x-weir-") and other not in CALLERS_OWN)
    assert not stripped(f"my-{name}")
