"""Whom the edge sheds."""

from __future__ import annotations

from google.protobuf import duration_pb2
from weir.registry.v1 import registry_pb2

from libs.registry import RegistrySnapshot
from services.ratelimit.policy.shedding import NOTHING, Levels, Shed
from services.ratelimit.rules import levels_of

HALF, MOST = Shed(0.5, 2_000_000_000), Shed(0.9, 5_000_000_000)


def test_the_least_share_of_all_pools_holds_when_the_pool_is_unknown() -> None:
    levels = Levels({"a": {"acme": HALF, "globex": MOST}, "b": {"acme": MOST}}, ["a", "b", "b"])
    assert levels.of("acme") == HALF
    assert levels.of("globex") == NOTHING
    assert levels.of("nobody") == NOTHING


def test_a_pool_without_a_level_takes_everybody() -> None:
    assert Levels({"a": {"acme": MOST}}, ["a", "b"]).of("acme") == NOTHING


def test_a_pool_without_workers_has_no_say() -> None:
    assert Levels({"a": {"acme": MOST}, "gone": {}}, ["a"]).of("acme") == MOST
    assert Levels({"gone": {"acme": MOST}}, []).of("acme") == NOTHING


def test_a_known_pool_speaks_for_itself() -> None:
    levels = Levels({"a": {"acme": MOST}}, ["a", "b"])
    assert levels.of("acme", "a") == MOST
    assert levels.of("acme", "b") == NOTHING


def test_levels_come_from_the_registry() -> None:
    level = registry_pb2.PoolLevel(pool="fast-pool")
    level.tenants.add(tenant="acme", shed=1.5, retry_after=duration_pb2.Duration(seconds=3))
    level.tenants.add(tenant="globex", shed=0.0)
    worker = registry_pb2.Endpoint(service="worker", instance="w0", pool="fast-pool")
    snapshot = RegistrySnapshot(levels={"fast-pool": level}, endpoints={("worker", "w0"): worker})
    levels = levels_of(snapshot)
    assert levels.of("acme") == Shed(1.0, 3_000_000_000)
    assert levels.of("globex") == NOTHING
