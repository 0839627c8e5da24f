"""Which version a call is for: the edge's word, the body's, and where the two differ."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.resources.snapshot import RegistrySnapshot
from libs.routing import RouteRequest, RoutingTable
from services.predictor.addressing import Found, Routed, Routes, full_name, route_of
from tests.support.predictor import trees


def table(*, revision: int = 1, **more: object) -> RoutingTable:
    versions = [
        pb.ModelVersion(name="m", version=number, pool="predict", prediction=trees(), namespace="default")
        for number in ("1", "2", "3")
    ]
    talker = pb.ModelVersion(name="talk", version="1", pool="default", namespace="default")
    split = [pb.AliasTarget(model_version="m@1", weight=50), pb.AliasTarget(model_version="m@2", weight=50)]
    aliases = {"m": pb.Alias(name="m", targets=split)}
    for name, version in (("talk", "talk@1"), ("one", "m@3")):
        aliases[name] = pb.Alias(name=name, targets=[pb.AliasTarget(model_version=version, weight=100)])
    given = pb.ModelGrant(subject="tenant:acme", namespaces=["default"], pinned_namespaces=["default"])
    values: dict[str, object] = {
        "model_versions": {f"{each.name}@{each.version}": each for each in (*versions, talker)},
        "aliases": aliases,
        "tenants": {"acme": pb.Tenant(id="acme"), "other": pb.Tenant(id="other")},
        "model_grants": {given.subject: given},
    }
    return RoutingTable.of(RegistrySnapshot(revision=revision, **(values | more)))  # type: ignore[arg-type]


TABLE = table()


def refusal(model: str, routed: Routed = Routed(), tenant: str = "acme") -> WeirError:  # noqa: B008 - a constant
    with pytest.raises(WeirError) as caught:
        route_of(TABLE, RouteRequest(tenant, model), routed)
    return caught.value


@pytest.mark.parametrize(
    ("name", "version", "full"),
    [("m", "", "m"), ("m", "2", "m@2"), ("m@2", "", "m@2"), ("m@2", "2", "m@2")],
)
def test_both_fields_are_one_name(name: str, version: str, full: str) -> None:
    assert full_name(name, version) == full


@pytest.mark.parametrize(("name", "version", "field"), [("", "1", "model_name"), ("m@2", "1", "model_version")])
def test_no_name_and_two_versions_are_refused(name: str, version: str, field: str) -> None:
    with pytest.raises(WeirError) as caught:
        full_name(name, version)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, field)


@pytest.mark.parametrize(
    ("model", "routed"),
    [
        ("m", Routed("m", "m@2", "canary", "r")),
        ("m@2", Routed("m", "m@2")),
        ("m@2", Routed("m@2", "m@2")),
        ("m", Routed("", "m@2")),
        ("m", Routed("m", "m@3")),  # by an alias that this registry has not seen yet
    ],
)
def test_the_edges_choice_holds(model: str, routed: Routed) -> None:
    route = route_of(TABLE, RouteRequest("acme", model), routed)
    assert (route.model_version, route.arm, route.rollout_id) == (routed.version, routed.arm, routed.rollout)


@pytest.mark.parametrize(
    ("model", "routed"),
    [
        ("one", Routed("m", "m@2")),
        ("m@1", Routed("m", "m@2")),
        ("m@1", Routed("", "m@2")),
        ("one", Routed("", "m@2")),
        ("one", Routed("m", "")),
    ],
)
def test_a_body_that_names_another_model_is_refused(model: str, routed: Routed) -> None:
    error = refusal(model, routed)
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "model_name")
    assert model in error.message


@pytest.mark.parametrize("routed", [Routed(), Routed("m", "m@2"), Routed("", "m@2")])
def test_what_a_tenant_may_not_use_does_not_exist_whatever_the_edge_said(routed: Routed) -> None:
    assert refusal("m", routed, tenant="other").reason is Reason.MODEL_NOT_FOUND


@pytest.mark.parametrize("model", ["nothing", "m@9", "talk", "talk@1"])
def test_what_is_not_there_or_generates_is_not_found(model: str) -> None:
    assert refusal(model).reason is Reason.MODEL_NOT_FOUND


def test_a_version_that_the_edge_knows_and_the_registry_does_not_is_not_found() -> None:
    assert refusal("m", Routed("m", "m@9")).reason is Reason.MODEL_NOT_FOUND


def test_what_is_remembered_is_what_would_be_found_and_ends_with_the_snapshot() -> None:
    routes = Routes()

    def of(asked: RouteRequest, where: RoutingTable = TABLE) -> Found:
        return routes.of(
            where, asked.tenant, asked.model, Routed(), user=asked.user, session=asked.session, request_id=""
        )

    for user in map(str, range(50)):
        asked = RouteRequest("acme", "m", user=user)
        assert of(asked).route == route_of(TABLE, asked, Routed())
    assert {of(RouteRequest("acme", "m", user=str(n))).route.model_version for n in range(50)} == {
        "m@1",
        "m@2",
    }
    assert of(RouteRequest("acme", "one")).route.model_version == "m@3"
    moved = {"one": pb.Alias(name="one", targets=[pb.AliasTarget(model_version="m@1", weight=100)])}
    assert of(RouteRequest("acme", "one"), table(revision=2, aliases=moved)).route.model_version == "m@1"
    with pytest.raises(WeirError):
        of(RouteRequest("other", "one"))
