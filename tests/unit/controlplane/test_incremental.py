"""What is made from what was there before equals what is made from nothing, whatever changes; and nothing piles up."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, RegistrySnapshot, WatchEvent, apply_events, keys
from libs.routing import BUCKETS, RoutingTable
from services.controlplane.app import ControlPlane, build
from services.controlplane.config import Settings
from services.controlplane.policy.names import EDGE, MESH, Piece

NAMES = ("a", "b")
VERSIONS = tuple(f"{name}@{number}" for name in NAMES for number in (1, 2, 3))
PHASES = (
    pb.ROLLOUT_PHASE_PREPARING,
    pb.ROLLOUT_PHASE_SHADOW,
    pb.ROLLOUT_PHASE_CANARY,
    pb.ROLLOUT_PHASE_EXPERIMENT,
    pb.ROLLOUT_PHASE_ROLLED_BACK,
)


def targets(name: str, split: int) -> list[pb.AliasTarget]:
    """Version 1 alone, or beside version 2."""
    weights = ((1, 100 - split), (2, split)) if split else ((1, 100),)
    return [pb.AliasTarget(model_version=f"{name}@{number}", weight=weight) for number, weight in weights]


def rollout(
    name: str, number: int, weights: list[int], phase: pb.RolloutPhase, most: int, only: list[str]
) -> pb.Rollout:
    return pb.Rollout(
        alias=name,
        id=f"r{number}",
        baseline=f"{name}@1",
        arms=[pb.RolloutArm(name=f"arm-{i}", model_version=f"{name}@{i + 2}") for i in range(len(weights))],
        sticky=pb.STICKY_BY_USER,
        shadow=pb.ShadowPlan(share=BUCKETS // 2),
        blast_radius=pb.BlastRadius(max_tenants=most, only_tenants=only),
        state=pb.RolloutState(phase=phase, weights=weights),
    )


def endpoint(service: str, number: int, versions: list[str], zone: str, port: int) -> pb.Endpoint:
    address = f"127.0.0.1:{port}" if port else "unreadable"
    return pb.Endpoint(service=service, instance=f"i{number}", address=address, zone=zone, model_versions=versions)


tenants = [f"t{number}" for number in range(6)]
names = st.sampled_from(NAMES)
resources = st.one_of(
    st.builds(
        lambda version, namespace: pb.ModelVersion(name=version[0], version=version[2:], namespace=namespace),
        st.sampled_from(VERSIONS),
        st.sampled_from(["", "", "lab"]),
    ),
    st.builds(
        lambda subject, models: pb.ModelGrant(subject=subject, namespaces=["default"], models=models),
        st.sampled_from(["all", "plan:free", "tenant:t1"]),
        st.lists(names | st.sampled_from(VERSIONS), max_size=2),
    ),
    st.builds(
        lambda name, split: pb.Alias(name=name, targets=targets(name, split)), names, st.sampled_from([0, 0, 30])
    ),
    st.builds(lambda tenant: pb.Tenant(id=tenant), st.sampled_from(tenants)),
    st.builds(lambda kill: pb.RolloutSwitch(kill=kill), st.booleans()),
    st.builds(
        rollout,
        names,
        st.integers(1, 2),
        st.lists(st.sampled_from([0, 1, 1000, 6000]), min_size=1, max_size=2),
        st.sampled_from(PHASES),
        st.integers(0, 3),
        st.lists(st.sampled_from(tenants), max_size=2),
    ),
    st.builds(
        endpoint,
        st.sampled_from(["predictor", "predictor", "worker", "new-service"]),
        st.integers(0, 3),
        st.lists(st.sampled_from(VERSIONS), max_size=4),
        st.sampled_from(["", "zone-a", "zone-b"]),
        st.integers(0, 4),
    ),
)
batches = st.lists(st.lists(st.tuples(resources, st.integers(0, 3)), min_size=1, max_size=6), max_size=8)
"""Of each resource: put it, or with one chance in four delete what is there under its key."""


def whole() -> list[Message]:
    """A registry in which rollouts may be in force from the beginning."""
    found: list[Message] = [pb.ModelVersion(name=version[0], version=version[2:]) for version in VERSIONS]
    found += [pb.Alias(name=name, targets=targets(name, 0)) for name in NAMES]
    found += [pb.Tenant(id=tenant) for tenant in tenants[:4]]
    return [*found, endpoint("predictor", 0, ["a@1", "a@2", "b@1"], "zone-a", 1)]


def after(snapshot: RegistrySnapshot, changes: Sequence[tuple[Message, int]], revision: int) -> RegistrySnapshot:
    """The snapshot after the changes."""
    events = [
        WatchEvent(keys.key_of(message), None if dice == 3 else keys.encode(message), revision, 0)
        for message, dice in changes
    ]
    return apply_events(snapshot, events, revision)


def plane() -> ControlPlane:
    return asyncio.run(build(Settings(), store=MemoryStore()))


def served(control: ControlPlane) -> dict[tuple[str, str, str, str], bytes]:
    """Everything for every client."""
    return {
        (cluster, zone, kind, name): resource.value
        for (cluster, zone), offers in control.publisher.current.offers.items()
        for kind, offer in offers.items()
        for name, resource in offer.resources.items()
    }


@settings(max_examples=40, deadline=None)
@given(batches)
def test_tables_and_snapshots_made_step_by_step_equal_those_made_anew(steps: list[list[tuple[Message, int]]]) -> None:
    snapshot = after(RegistrySnapshot(), [(message, 0) for message in whole()], 1)
    table, control = RoutingTable.of(snapshot), plane()
    assert control._publish(snapshot)
    for revision, step in enumerate(steps, 2):
        snapshot = after(snapshot, step, revision)
        table = RoutingTable.of(snapshot, table)
        assert table == RoutingTable.of(snapshot)
        fresh = plane()
        assert control._publish(snapshot)
        assert fresh._publish(snapshot)
        found, anew = served(control), served(fresh)
        # Clusters of versions that nobody serves any more stay, so that their routes can go first.
        kept = found.keys() - anew.keys()
        assert all(key[0] == EDGE and key[3].partition("/")[0] in ("predictor", "prediction") for key in kept)
        assert {key[3].partition("/")[2] for key in kept} <= snapshot.model_versions.keys()
        assert {key: value for key, value in found.items() if key not in kept} == anew
        assert control.publisher.current.revision == revision


def test_what_was_served_once_is_not_remembered_for_ever() -> None:
    control = plane()
    snapshot = after(RegistrySnapshot(), [(message, 0) for message in whole()], 1)
    counts = {}
    for revision in range(2, 62):
        changes: list[tuple[Message, int]] = [
            (rollout("a", 1, [revision], pb.ROLLOUT_PHASE_CANARY, 0, []), 0),
            (endpoint("worker", 1, [], "zone-b", 1000 + revision), 0),
        ]
        snapshot = after(snapshot, changes, revision)
        assert control._publish(snapshot)
        if revision in (4, 61):  # looking at every object of a test run takes a second or two
            gc.collect()
            # By type: asking some other library's object for its class may make it warn.
            counts[revision] = sum(issubclass(type(found), Piece) for found in gc.get_objects())
    assert control.publisher.current.offers_for(MESH, "zone-b")
    assert 0 < counts[61] <= counts[4]
