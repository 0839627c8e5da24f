"""Rollouts in routing: shares, who moves, who never does, what is mirrored, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot
from libs.routing import BUCKETS, Layout, RouteRequest, RoutingTable, Target, choose_tenants, place, resolve
from tests.support.registry_service import admitted, grant

VERSIONS = {
    f"m@{number}": pb.ModelVersion(name="m", version=str(number), pool="pool", tier="fast") for number in range(1, 6)
}
TENANTS = {f"tenant-{number}": pb.Tenant(id=f"tenant-{number}") for number in range(50)}
KEYS = [f"user-{number}" for number in range(2000)]


def rollout(*weights: int, phase: pb.RolloutPhase = pb.ROLLOUT_PHASE_CANARY, **fields: Any) -> pb.Rollout:
    """Arms "a", "b" … of m@2, m@3 … with these weights, sticky by user unless said otherwise."""
    arms = [pb.RolloutArm(name="abcd"[i], model_version=f"m@{i + 2}") for i in range(len(weights))]
    given_fields: dict[str, Any] = {"id": "r1", "sticky": pb.STICKY_BY_USER, **fields}
    state = pb.RolloutState(phase=phase, step=3, weights=weights)
    return pb.Rollout(alias="m", baseline="m@1", arms=arms, state=state, **given_fields)


def table(
    under: pb.Rollout | None = None, *, kill: bool = False, tenants: Mapping[str, pb.Tenant] = TENANTS
) -> RoutingTable:
    alias = pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@1", weight=100)])
    return RoutingTable.of(
        RegistrySnapshot(
            revision=9,
            model_versions=VERSIONS,
            aliases={"m": alias},
            tenants=tenants,
            model_grants={"all": grant()},
            rollouts={"m": under} if under else {},
            switches={"rollouts": pb.RolloutSwitch(kill=True)} if kill else {},
        )
    )


def arms(found: RoutingTable, keys: list[str] = KEYS) -> list[str]:
    return [found.resolve(RouteRequest("tenant-1", "m", user=key)).arm for key in keys]


def test_each_arm_gets_its_share_of_100000_users() -> None:
    split = table(rollout(1000, 250)).splits["m"]
    shares = Counter(place(split, "tenant-1", f"user-{number}").target.arm for number in range(100_000))
    # Six standard deviations of a binomial: sqrt(n p (1 - p)) is 95 and 49.
    assert abs(shares["a"] - 10_000) < 570
    assert abs(shares["b"] - 2_500) < 300
    assert sum(shares.values()) == 100_000


def test_from_10_to_20_percent_moves_exactly_those_who_must() -> None:
    small, large = (table(rollout(weight)).splits["m"] for weight in (1000, 2000))
    before = [place(small, "tenant-1", f"user-{number}").target.arm for number in range(100_000)]
    after = [place(large, "tenant-1", f"user-{number}").target.arm for number in range(100_000)]
    moved = Counter((old, new) for old, new in zip(before, after, strict=True) if old != new)
    assert set(moved) == {("baseline", "a")}
    assert abs(moved["baseline", "a"] - 10_000) < 570


@given(weights=st.lists(st.integers(0, 3000), min_size=1, max_size=3), key=st.text(max_size=12))
def test_nobody_flaps_and_the_bucket_is_the_arms_own(weights: list[int], key: str) -> None:
    split = table(rollout(*weights)).splits["m"]
    placed = place(split, "tenant-1", key)
    assert placed == place(table(rollout(*weights)).splits["m"], "tenant-1", key)
    assert split.layout.at(placed.bucket) == placed.target
    assert split.layout.total == BUCKETS


@given(
    first=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
    second=st.tuples(st.integers(0, 5000), st.integers(0, 5000)),
)
def test_with_two_arms_callers_move_only_between_a_changed_arm_and_the_baseline(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    old, new = arms(table(rollout(*first)), KEYS[:300]), arms(table(rollout(*second)), KEYS[:300])
    growth = {"a": second[0] - first[0], "b": second[1] - first[1]}
    for left, joined in zip(old, new, strict=True):
        if left != joined:
            assert left == "baseline" or growth[left] < 0
            assert joined == "baseline" or growth[joined] > 0


@given(st.permutations([Target("m@2", 700, "a"), Target("m@3", 900, "b"), Target("m@4", 50, "c")]))
def test_the_order_in_which_arms_are_listed_is_irrelevant(others: list[Target]) -> None:
    baseline = Target("m@1", 8350, "baseline")
    listed = Layout.of(baseline, sorted(others, key=lambda target: target.model_version))
    assert Layout.of(baseline, others) == listed
    assert sum(target.weight for target in listed.targets) == BUCKETS
    assert (listed.at(0).arm, listed.at(BUCKETS - 1).arm) == ("a", "b")


def test_two_rollouts_do_not_take_the_same_users() -> None:
    first, second = arms(table(rollout(1000))), arms(table(rollout(1000, id="r2")))
    both = sum(1 for one, other in zip(first, second, strict=True) if one == other == "a")
    assert both < 60  # 20 expected, 200 if they were the same


def test_a_route_says_which_rollout_step_and_arm_it_is() -> None:
    found = table(rollout(5000))
    routes = {route.arm: route for route in (found.resolve(RouteRequest("tenant-1", "m", user=key)) for key in KEYS)}
    assert {arm: route.model_version for arm, route in routes.items()} == {"baseline": "m@1", "a": "m@2"}
    assert all((route.rollout_id, route.step, route.mirror) == ("r1", 3, None) for route in routes.values())


def test_stickiness_is_by_what_the_rollout_says() -> None:
    def placed(sticky: pb.StickyBy, **who: str) -> str:
        return resolve(
            table(rollout(5000, sticky=sticky)).snapshot, RouteRequest("tenant-1", "m", request_id="x", **who)
        ).arm

    by_tenant = {placed(pb.STICKY_BY_TENANT, user=key, session=key) for key in KEYS[:40]}
    assert len(by_tenant) == 1
    assert {placed(pb.STICKY_BY_UNSPECIFIED, user=key) for key in KEYS[:40]} == by_tenant
    assert {placed(pb.STICKY_BY_USER, user="u", session=key) for key in KEYS[:40]} == {
        placed(pb.STICKY_BY_USER, user="u")
    }
    assert {placed(pb.STICKY_BY_USER, session=key) for key in KEYS[:40]} == by_tenant
    assert len({placed(pb.STICKY_BY_SESSION, user="u", session=key) for key in KEYS[:40]}) == 2
    for key in KEYS[:40]:
        assert placed(pb.STICKY_BY_SESSION, user=key) == placed(pb.STICKY_BY_USER, user=key)
        assert placed(pb.STICKY_BY_SESSION, session=key) == placed(pb.STICKY_BY_SESSION, sticky_key=key)
        assert placed(pb.STICKY_BY_SESSION, sticky_key=key, user=key) == placed(pb.STICKY_BY_SESSION, session=key)


def test_users_of_one_name_in_two_tenants_are_two_callers() -> None:
    split = table(rollout(5000)).splits["m"]
    assert any(place(split, "tenant-1", key).target != place(split, "tenant-2", key).target for key in KEYS[:40])


@pytest.mark.parametrize(
    ("radius", "inside"),
    [
        (pb.BlastRadius(only_tenants=["tenant-1", "tenant-2"]), {"tenant-1", "tenant-2"}),
        (pb.BlastRadius(except_tenants=["tenant-1"]), set(TENANTS) - {"tenant-1"}),
        (pb.BlastRadius(only_tenants=["tenant-1", "tenant-2"], except_tenants=["tenant-2"]), {"tenant-1"}),
        (pb.BlastRadius(only_tenants=["nobody"], max_tenants=3), set()),
    ],
)
def test_only_tenants_within_the_blast_radius_meet_an_arm(radius: pb.BlastRadius, inside: set[str]) -> None:
    found = table(rollout(10_000, blast_radius=radius))
    for tenant in TENANTS:
        route = found.resolve(RouteRequest(tenant, "m", user="u"))
        expected = ("m@2", "a", "r1") if tenant in inside else ("m@1", "", "")
        assert (route.model_version, route.arm, route.rollout_id) == expected


def test_a_tenant_outside_the_blast_radius_stands_in_the_baselines_buckets() -> None:
    split = table(rollout(1500, 500, blast_radius=pb.BlastRadius(only_tenants=["tenant-1"]))).splits["m"]
    for key in KEYS[:100]:
        placed = place(split, "tenant-2", key)
        assert split.layout.at(placed.bucket) == split.baseline
        assert (placed.target.model_version, placed.rollout_id) == ("m@1", "")


@given(most=st.integers(1, 60), excepted=st.sets(st.sampled_from(sorted(TENANTS)), max_size=20))
def test_no_more_tenants_than_allowed_meet_an_arm(most: int, excepted: set[str]) -> None:
    radius = pb.BlastRadius(max_tenants=most, except_tenants=sorted(excepted))
    found = table(rollout(10_000, blast_radius=radius))
    inside = {tenant for tenant in TENANTS if found.resolve(RouteRequest(tenant, "m")).arm == "a"}
    assert len(inside) == min(most, len(TENANTS) - len(excepted))
    assert not inside & excepted


def test_the_reserved_tenant_of_mirrored_requests_takes_part_in_nothing() -> None:
    with_shadow = {**TENANTS, "shadow": pb.Tenant(id="shadow")}
    found = table(rollout(10_000, blast_radius=pb.BlastRadius(max_tenants=51)), tenants=with_shadow)
    assert found.resolve(RouteRequest("shadow", "m")).model_version == "m@1"
    assert sum(found.resolve(RouteRequest(tenant, "m")).arm == "a" for tenant in with_shadow) == 50


@given(st.sets(st.text(max_size=5), max_size=30), st.text(max_size=5), st.integers(1, 10))
def test_one_more_tenant_displaces_at_most_one(tenants: set[str], newcomer: str, most: int) -> None:
    before, after = (choose_tenants("r1", found, most) for found in (tenants, tenants | {newcomer}))
    assert after - before <= {newcomer}
    assert len(before - after) <= 1


@pytest.mark.parametrize(
    "phase",
    [
        pb.ROLLOUT_PHASE_UNSPECIFIED,
        pb.ROLLOUT_PHASE_PREPARING,
        pb.ROLLOUT_PHASE_PROMOTED,
        pb.ROLLOUT_PHASE_ROLLED_BACK,
        pb.ROLLOUT_PHASE_ABORTED,
    ],
)
def test_before_and_after_a_rollout_the_alias_counts(phase: pb.RolloutPhase) -> None:
    found = table(rollout(10_000, phase=phase))
    assert found.resolve(RouteRequest("tenant-1", "m", user="u")) == table().resolve(
        RouteRequest("tenant-1", "m", user="u")
    )


def test_the_kill_switch_and_a_moved_alias_take_all_arms_out() -> None:
    under = rollout(10_000)
    assert set(arms(table(under, kill=True))) == {""}
    moved = pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@5", weight=100)])
    snapshot = replace(table(under).snapshot, aliases={"m": moved})
    assert resolve(snapshot, RouteRequest("tenant-1", "m")).model_version == "m@5"


def test_weights_that_make_more_than_all_are_not_followed() -> None:
    assert set(arms(table(rollout(9000, 9000)))) == {""}


def test_an_arm_whose_version_is_gone_gives_its_callers_the_baseline() -> None:
    snapshot = replace(table(rollout(10_000)).snapshot, model_versions={"m@1": VERSIONS["m@1"]})
    route = resolve(snapshot, RouteRequest("tenant-1", "m"))
    assert (route.model_version, route.arm) == ("m@1", "baseline")


@given(user=st.text(max_size=8), version=st.sampled_from(sorted(VERSIONS)))
def test_pinned_versions_are_untouched(user: str, version: str) -> None:
    for under in (None, rollout(10_000), rollout(0, phase=pb.ROLLOUT_PHASE_SHADOW, shadow=pb.ShadowPlan(share=10_000))):
        route = table(under).resolve(RouteRequest("tenant-1", version, user=user, request_id="q"))
        assert (route.model_version, route.arm, route.rollout_id, route.mirror) == (version, "", "", None)


def shadowed(share: int, **fields: Any) -> RoutingTable:
    return table(rollout(0, phase=pb.ROLLOUT_PHASE_SHADOW, shadow=pb.ShadowPlan(share=share), **fields))


def test_a_shadow_serves_nobody_and_mirrors_its_share() -> None:
    found = shadowed(2500)
    routes = [found.resolve(RouteRequest("tenant-1", "m", request_id=f"q{number}")) for number in range(4000)]
    assert {(route.model_version, route.arm, route.rollout_id) for route in routes} == {("m@1", "baseline", "r1")}
    mirrors = [route.mirror for route in routes if route.mirror]
    assert abs(len(mirrors) - 1000) < 165
    assert {(mirror.model_version, mirror.arm, mirror.pool, mirror.tier) for mirror in mirrors} == {
        ("m@2", "a", "pool", "fast")
    }
    for number, route in enumerate(routes[:50]):
        assert (
            found.resolve(RouteRequest("tenant-1", "m", user="other", request_id=f"q{number}")).mirror == route.mirror
        )


def test_all_or_none_are_mirrored_when_the_plan_says_so() -> None:
    requests = [RouteRequest("tenant-1", "m", request_id=f"q{number}") for number in range(200)]
    assert all(shadowed(10_000).resolve(request).mirror for request in requests)
    assert not any(shadowed(0).resolve(request).mirror for request in requests)
    assert shadowed(10_000).resolve(RouteRequest("tenant-1", "m")).mirror is None


def test_tenants_outside_the_blast_radius_are_not_mirrored() -> None:
    found = shadowed(10_000, blast_radius=pb.BlastRadius(except_tenants=["tenant-1"]))
    assert found.resolve(RouteRequest("tenant-1", "m", request_id="q")).mirror is None
    assert found.resolve(RouteRequest("tenant-2", "m", request_id="q")).mirror is not None


def test_a_mirror_uses_up_no_probe_and_knows_its_zones() -> None:
    worker = pb.Endpoint(service="worker", instance="w", zone="zone-a", model_versions=["m@1", "m@2"])
    snapshot = replace(shadowed(10_000).snapshot, endpoints={("worker", "w"): worker})
    asked: list[str] = []

    def arrange(version: str, zones: tuple[str, ...]) -> tuple[str, ...]:
        asked.append(version)
        return zones

    route = resolve(snapshot, RouteRequest("tenant-1", "m", request_id="q"), arrange)
    assert route.mirror is not None
    assert route.mirror.zones == ("zone-a",)
    assert asked == ["m@1"]


def test_after_the_shadow_phase_nothing_is_mirrored() -> None:
    found = table(rollout(100, shadow=pb.ShadowPlan(share=10_000)))
    assert found.resolve(RouteRequest("tenant-1", "m", request_id="q")).mirror is None


@given(st.lists(st.tuples(st.integers(1, 8), st.sets(st.integers(0, 20), max_size=12)), min_size=2, max_size=6))
def test_a_choice_made_from_an_earlier_one_is_the_choice_made_anew(steps: list[tuple[int, set[int]]]) -> None:
    found: RoutingTable | None = None
    for most, numbers in steps:
        tenants = {f"t{number}": pb.Tenant(id=f"t{number}") for number in numbers}
        anew = table(rollout(100, blast_radius=pb.BlastRadius(max_tenants=most)), tenants=tenants)
        found = RoutingTable.of(anew.snapshot, found)
        assert found.splits["m"].only == choose_tenants("r1", tenants, most) == anew.splits["m"].only


CHANGES = st.lists(
    st.sampled_from(
        ["weight", "phase", "radius", "kill", "free", "tenant", "untenant", "alias", "back", "endpoint", "end"]
    ),
    max_size=12,
)


@given(CHANGES)
def test_a_table_made_from_an_earlier_one_equals_one_made_anew(changes: list[str]) -> None:
    found = table(rollout(100, blast_radius=pb.BlastRadius(max_tenants=4)))
    for number, change in enumerate(changes):
        snapshot = after(found.snapshot, change, number)
        found, anew = RoutingTable.of(snapshot, found), RoutingTable.of(snapshot)
        assert found == anew


def after(snapshot: RegistrySnapshot, change: str, number: int) -> RegistrySnapshot:
    """The snapshot after one change; collections that it does not touch stay the same objects."""
    step: dict[str, Any] = {}
    if change in ("weight", "phase", "radius", "end"):
        under = pb.Rollout()
        under.CopyFrom(snapshot.rollouts["m"])
        if change == "weight":
            under.state.weights[:] = [number * 100]
        elif change == "radius":
            under.blast_radius.max_tenants = number + 1
        else:
            under.state.phase = pb.ROLLOUT_PHASE_SHADOW if change == "phase" else pb.ROLLOUT_PHASE_ABORTED
        step["rollouts"] = {"m": under}
    elif change in ("kill", "free"):
        step["switches"] = {"rollouts": pb.RolloutSwitch(kill=change == "kill")}
    elif change == "tenant":
        step["tenants"] = {**snapshot.tenants, f"new-{number}": pb.Tenant(id=f"new-{number}")}
    elif change == "untenant":
        step["tenants"] = dict(list(snapshot.tenants.items())[1:])
    elif change in ("alias", "back"):
        version = "m@3" if change == "alias" else "m@1"
        target = pb.AliasTarget(model_version=version, weight=100)
        step["aliases"] = {"m": pb.Alias(name="m", targets=[target])}
    else:
        endpoint = pb.Endpoint(service="worker", instance=f"w{number}", zone="zone-a", model_versions=["m@1"])
        step["endpoints"] = {**snapshot.endpoints, ("worker", f"w{number}"): endpoint}
    return replace(snapshot, revision=snapshot.revision + 1, **{k: MappingProxyType(v) for k, v in step.items()})


@given(key=st.text(max_size=10), weight=st.integers(0, 100))
def test_an_aliass_own_weights_in_basis_points_place_callers_as_resolve_does(key: str, weight: int) -> None:
    targets = [
        pb.AliasTarget(model_version="m@1", weight=100 - weight),
        pb.AliasTarget(model_version="m@2", weight=weight),
    ]
    found = RoutingTable.of(
        RegistrySnapshot(
            model_versions=VERSIONS, aliases={"m": pb.Alias(name="m", targets=targets)}, **admitted("tenant-1")
        )
    )
    request = RouteRequest("tenant-1", "m", key)
    placed = found.place(request)
    assert placed is not None
    assert placed.target.model_version == found.resolve(request).model_version
    assert found.place(RouteRequest("tenant-1", "m@1")) is None
    assert found.place(RouteRequest("tenant-1", "none")) is None
