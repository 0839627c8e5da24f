"""Resolution on a registry snapshot."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.routing import RouteRequest, RoutingTable, list_models, resolve
from tests.support.registry_service import admitted


def worker(instance: str, zone: str, *versions: str, service: str = "worker") -> pb.Endpoint:
    return pb.Endpoint(service=service, instance=instance, zone=zone, pool="fast", model_versions=versions)


def snapshot(*endpoints: pb.Endpoint) -> RegistrySnapshot:
    versions = {
        name: pb.ModelVersion(name="weir-fast", version=name[-1], pool="fast", tier="fast", context_length=512)
        for name in ("weir-fast@1", "weir-fast@2")
    }
    alias = pb.Alias(
        name="weir-fast",
        targets=[
            pb.AliasTarget(model_version="weir-fast@1", weight=60),
            pb.AliasTarget(model_version="weir-fast@2", weight=40, arm="canary"),
        ],
    )
    broken = pb.Alias(name="broken", targets=[pb.AliasTarget(model_version="gone@1", weight=100)])
    return RegistrySnapshot(
        revision=42,
        model_versions=versions,
        aliases={"weir-fast": alias, "broken": broken},
        endpoints={(e.service, e.instance): e for e in endpoints},
        **admitted("acme"),
    )


THREE_ZONES = snapshot(
    worker("w0", "zone-a", "weir-fast@1"),
    worker("w1", "zone-b", "weir-fast@1", "weir-fast@2"),
    worker("w2", "zone-c", "weir-fast@1"),
    worker("p0", "zone-d", "weir-fast@1", service="predictor"),
)


def ask(model: str = "weir-fast@1", zone: str = "zone-b", **more: str) -> RouteRequest:
    return RouteRequest(tenant="acme", model=model, zone=zone, **more)


def test_a_pinned_version_is_honoured() -> None:
    route = resolve(THREE_ZONES, ask("weir-fast@2"))
    assert (route.model_version, route.arm, route.pool, route.tier, route.revision) == (
        "weir-fast@2",
        "",
        "fast",
        "fast",
        42,
    )


@pytest.mark.parametrize("model", ["", "nothing", "nothing@1", "weir-fast@3", "broken", "@", "weir-fast@"])
def test_an_unknown_model_is_not_found(model: str) -> None:
    with pytest.raises(WeirError) as caught:
        resolve(THREE_ZONES, ask(model))
    assert caught.value.reason is Reason.MODEL_NOT_FOUND


def test_an_alias_is_sticky_by_key_and_falls_back_to_the_tenant() -> None:
    arms = {key: resolve(THREE_ZONES, ask("weir-fast", sticky_key=key)).arm for key in map(str, range(200))}
    assert set(arms.values()) == {"", "canary"}
    for key, arm in arms.items():
        assert resolve(THREE_ZONES, ask("weir-fast", sticky_key=key, zone="zone-c")).arm == arm
    by_tenant = resolve(THREE_ZONES, ask("weir-fast"))
    assert by_tenant == resolve(THREE_ZONES, ask("weir-fast", sticky_key="acme"))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("zone-a", ("zone-a", "zone-b", "zone-c")),
        ("zone-b", ("zone-b", "zone-c", "zone-a")),
        ("zone-c", ("zone-c", "zone-a", "zone-b")),
        ("elsewhere", ("zone-a", "zone-b", "zone-c")),
        ("zone-bb", ("zone-c", "zone-a", "zone-b")),
        ("", ("zone-a", "zone-b", "zone-c")),
    ],
)
def test_the_callers_zone_comes_first_then_the_next_ones_in_a_ring(own: str, expected: tuple[str, ...]) -> None:
    assert resolve(THREE_ZONES, ask(zone=own)).zones == expected


def test_only_zones_with_live_workers_of_the_version_count() -> None:
    assert resolve(THREE_ZONES, ask("weir-fast@2", zone="zone-a")).zones == ("zone-b",)
    assert resolve(snapshot(), ask()).zones == ()


def test_breakers_arrange_the_zones_of_the_version_once_unless_none_would_stay() -> None:
    asked = []

    def arrange(version: str, zones: tuple[str, ...]) -> tuple[str, ...]:
        asked.append((version, zones))
        return zones[1:]

    assert resolve(THREE_ZONES, ask("weir-fast@1"), arrange).zones == ("zone-c", "zone-a")
    assert asked == [("weir-fast@1", ("zone-b", "zone-c", "zone-a"))]
    assert resolve(THREE_ZONES, ask("weir-fast@2"), arrange).zones == ("zone-b",)
    assert resolve(snapshot(), ask(), arrange).zones == ()
    assert len(asked) == 2


def test_a_table_answers_as_resolve_does() -> None:
    assert RoutingTable.of(THREE_ZONES).resolve(ask("weir-fast")) == resolve(THREE_ZONES, ask("weir-fast"))


def test_models_are_listed_as_the_tenant_would_get_them() -> None:
    listed = list_models(THREE_ZONES, "acme")
    assert [model.id for model in listed] == ["weir-fast", "weir-fast@1", "weir-fast@2"]
    assert listed[0].model_version == resolve(THREE_ZONES, ask("weir-fast")).model_version
    assert listed[1].context_length == 512
    assert list_models(RegistrySnapshot(), "acme") == ()
