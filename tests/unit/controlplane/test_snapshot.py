"""Snapshots: always consistent, every address once, priorities without gaps, zones and hashing as declared."""

import base64
from dataclasses import replace

import pytest
from envoy.config.listener.v3 import listener_pb2
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2

from services.controlplane.config import Settings
from services.controlplane.convert import EMPTY, encode, endpoints_of
from services.controlplane.descriptors import transcoder_descriptors
from services.controlplane.policy.config import Certificate, EdgeConfig, Identity
from services.controlplane.policy.consistency import consistent
from services.controlplane.policy.endpoints import Endpoint, assignment
from services.controlplane.policy.filters import TRANSCODERS
from services.controlplane.policy.names import CLUSTER, EDGE, ENDPOINTS, EXTENSION, LISTENER, MESH, ROUTES, SECRET
from services.controlplane.policy.snapshot import Snapshot, build_snapshot

SERVICES = Settings().services
DESCRIPTORS = transcoder_descriptors()
SECURE = EdgeConfig(certificate=Certificate("/p/edge.pem", "/p/edge.key"), identity=Identity("/p/ca", "/p/c", "/p/k"))

endpoints = st.lists(
    st.builds(
        Endpoint,
        service=st.sampled_from([*SERVICES, "new-service"]),
        instance=st.sampled_from([f"i-{n}" for n in range(6)]),
        host=st.just("127.0.0.1"),
        port=st.integers(1, 12),
        zone=st.sampled_from(["", "zone-a", "zone-b", "zone-c"]),
        started_at=st.floats(0, 100),
    ),
    max_size=25,
)


def build(found: list[Endpoint], version: int = 1, edge: EdgeConfig = SECURE) -> Snapshot:
    return build_snapshot(version, found, edge, services=SERVICES, descriptors=DESCRIPTORS)


def addresses(resource: dict) -> list[tuple[int, str, int]]:
    """(priority, zone, port) of every endpoint of an assignment."""
    return [
        (
            locality["priority"],
            locality["locality"]["zone"],
            endpoint["endpoint"]["address"]["socket_address"]["port_value"],
        )
        for locality in resource["endpoints"]
        for endpoint in locality["lb_endpoints"]
    ]


@settings(max_examples=60, deadline=None)
@given(endpoints, st.booleans())
def test_every_snapshot_is_consistent_and_complete(found: list[Endpoint], zone_local: bool) -> None:
    snapshot = build(found, edge=EdgeConfig(zone_local=zone_local, trace_endpoint="127.0.0.1:4317"))
    assert consistent(snapshot) == []
    wanted = {(endpoint.service, endpoint.port) for endpoint in found}
    for zone in ("", "zone-a", "elsewhere"):
        served = snapshot.resources(MESH, zone)[ENDPOINTS]
        assert set(served) >= set(SERVICES)
        got = [(service, port) for service, resource in served.items() for _, _, port in addresses(resource)]
        assert sorted(got) == sorted(wanted), "every address, and each once"


@settings(max_examples=30, deadline=None)
@given(endpoints)
def test_a_client_prefers_its_zone_but_for_owned_state(found: list[Endpoint]) -> None:
    served = build(found).resources(MESH, "zone-a")[ENDPOINTS]
    for service, resource in served.items():
        own = [zone for priority, zone, _ in addresses(resource) if priority == 0]
        present = {zone for _, zone, _ in addresses(resource)}
        if service in ("admission", "ratelimit"):
            assert all(priority == 0 for priority, _, _ in addresses(resource))
        elif "zone-a" in present:
            assert set(own) == {"zone-a"}


def test_the_later_of_two_on_one_address_wins() -> None:
    old = Endpoint("gateway", "gateway-0", "127.0.0.1", 7000, "zone-a", started_at=1.0)
    new = Endpoint("gateway", "gateway-1", "127.0.0.1", 7000, "zone-b", started_at=2.0)
    for order in ([old, new], [new, old]):
        served = build(order).resources(MESH, "")[ENDPOINTS]["gateway"]
        assert addresses(served) == [(0, "zone-b", 7000)]


def test_localities_weigh_their_endpoints() -> None:
    found = [Endpoint("router", f"r{n}", "127.0.0.1", n + 1, "zone-b" if n else "zone-a") for n in range(3)]
    weights = [
        locality["load_balancing_weight"] for locality in assignment("router", tuple(found), "zone-b")["endpoints"]
    ]
    assert weights == [2, 1]


@pytest.mark.parametrize(
    ("cluster", "kind", "name", "fault"),
    [
        (EDGE, ROUTES, "edge", "names the absent routes edge"),
        (EDGE, CLUSTER, "gateway", "name the absent cluster gateway"),
        (EDGE, CLUSTER, "edge-auth", "names the absent cluster edge-auth"),
        (EDGE, SECRET, "edge-public", "names the absent secret edge-public"),
        (EDGE, EXTENSION, "weir.lua", "names the absent filter weir.lua"),
        (EDGE, EXTENSION, "weir.transcoder", "names the absent filter weir.transcoder"),
        (MESH, ROUTES, "router.weir.internal", "names the absent routes router.weir.internal"),
        (MESH, CLUSTER, "router", "name the absent cluster router"),
    ],
)
def test_a_missing_piece_is_found(cluster: str, kind: str, name: str, fault: str) -> None:
    snapshot = build([])
    broken = {kind: {n: r for n, r in snapshot.static[cluster][kind].items() if n != name}}
    static = {**snapshot.static, cluster: {**snapshot.static[cluster], **broken}}
    assert any(fault in found for found in consistent(replace(snapshot, static=static)))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"priority": 1}, "have gaps"),
        ({"load_balancing_weight": 0}, "is empty"),
        ({"lb_endpoints": []}, "is empty"),
    ],
)
def test_a_bad_assignment_is_found(change: dict, fault: str) -> None:
    snapshot = build([Endpoint("gateway", "g", "127.0.0.1", 1, "zone-a")])
    good = snapshot.endpoints[MESH, ""]["gateway"]
    bad = {**good, "endpoints": [{**good["endpoints"][0], **change}]}
    found = {**snapshot.endpoints, (MESH, ""): {**snapshot.endpoints[MESH, ""], "gateway": bad}}
    assert any(fault in line for line in consistent(replace(snapshot, endpoints=found)))


def test_f1_what_envoy_would_refuse_an_assignment_for_is_found() -> None:
    assert consistent(build([Endpoint("gateway", "g", "::1", 1, "zone-a")])) == []
    for host in ("gateway-1", ""):
        [*faults] = consistent(build([Endpoint("gateway", "g", host, 1, "zone-a")]))
        assert any(f"{host}:1 is no address" in fault for fault in faults)


def test_a_content_that_changes_at_one_revision_has_another_version() -> None:
    """An endpoint is given up some time after the revision that took its key away."""
    found = [Endpoint("gateway", name, "127.0.0.1", number, "zone-a") for number, name in enumerate("abc", 1)]
    served = encode(build(found, 7))
    versions = []
    for count in (2, 1, 1, 0):
        served = encode(build(found[:count], 7), served)
        versions.append(served.offers[MESH, ""][ENDPOINTS].version)
    assert versions == ["7.1", "7.2", "7.2", "7.3"]
    assert encode(build(found, 8), served).offers[MESH, ""][ENDPOINTS].version == "8"


def test_a_missing_assignment_is_found() -> None:
    snapshot = build([])
    found = {**snapshot.endpoints, (MESH, ""): {}}
    assert "mesh: cluster gateway has no assignment" in consistent(replace(snapshot, endpoints=found))


def test_plain_edges_have_no_secrets_and_one_listener() -> None:
    resources = build([], edge=EdgeConfig(http_port=0)).resources(EDGE, "zone-a")
    assert resources[SECRET] == {}
    assert list(resources[LISTENER]) == ["edge-http"]
    assert all("transport_socket" not in cluster for cluster in resources[CLUSTER].values())


def test_what_is_long_is_there_once_and_not_in_every_part_of_a_listener() -> None:
    edge = encode(build([])).offers[EDGE, ""]
    values = [resource.value for offer in edge.values() for resource in offer.resources.values()]
    assert sum(value.count(b"function envoy_on_request") for value in values) == 1
    descriptors = base64.b64decode(DESCRIPTORS)
    assert sum(value.count(descriptors) for value in values) == len(TRANSCODERS)


@settings(max_examples=20, deadline=None)
@given(endpoints, endpoints)
def test_versions_change_exactly_with_the_content(before: list[Endpoint], after: list[Endpoint]) -> None:
    first = encode(build(before, 1))
    second = encode(build(after, 2), first)
    for key, offers in second.offers.items():
        for kind, offer in offers.items():
            old = first.offers.get(key, {}).get(kind)
            same = old is not None and {n: r.value for n, r in offer.resources.items()} == {
                n: r.value for n, r in old.resources.items()
            }
            if old is not None:
                assert (offer.version == old.version) is same
            for name, resource in offer.resources.items():
                if old is not None and name in old.resources and old.resources[name].value == resource.value:
                    assert resource is old.resources[name], "equal content stays the same object"


def test_versions_survive_a_restart() -> None:
    found = [Endpoint("gateway", "g", "127.0.0.1", 1, "zone-a")]
    first = encode(build(found, 7))
    again = encode(build(found, 9), EMPTY, first.versions)
    assert again.versions == first.versions
    assert encode(build([], 9), EMPTY, first.versions).offers[MESH, ""][ENDPOINTS].version == "9"


def test_f8_an_offer_says_which_clusters_its_listeners_and_routes_need() -> None:
    first = encode(build([], 1))
    for encoded in (first, encode(build([Endpoint("gateway", "g", "127.0.0.1", 1, "zone-a")], 2), first)):
        edge, mesh = encoded.offers[EDGE, ""], encoded.offers[MESH, ""]
        assert any("gateway" in named for named in edge[ROUTES].needs.values())
        assert any("edge-auth" in named for named in edge[LISTENER].needs.values())
        assert mesh[ROUTES].needs["router.weir.internal"] == {"router"}
        assert edge[CLUSTER].needs == {}


def test_unreadable_addresses_are_left_out() -> None:
    messages = [
        registry_pb2.Endpoint(service="edge_auth", instance="ok", address="127.0.0.1:80", zone="zone-a"),
        registry_pb2.Endpoint(service="gateway", instance="none", address=""),
        registry_pb2.Endpoint(service="gateway", instance="word", address="127.0.0.1:http"),
        registry_pb2.Endpoint(service="gateway", instance="big", address="127.0.0.1:70000"),
        registry_pb2.Endpoint(service="", instance="nameless", address="127.0.0.1:1"),
        registry_pb2.Endpoint(service="gateway", instance="host", address="gateway-1:80"),
        registry_pb2.Endpoint(service="gateway", instance="any", address="0.0.0.0:80"),
    ]
    found, bad = endpoints_of(messages)
    assert [(endpoint.service, endpoint.port) for endpoint in found] == [("edge-auth", 80)]
    assert bad == ["gateway/none", "gateway/word", "gateway/big", "/nameless", "gateway/host", "gateway/any"]


def test_a_listener_whose_chains_share_their_http_is_encoded_as_if_they_did_not() -> None:
    snapshot = build([Endpoint("gateway", "g-0", "127.0.0.1", 1, "zone-a", 0.0)])
    encoded = encode(snapshot).offers[EDGE, ""][LISTENER].resources
    for name, resource in snapshot.resources(EDGE, "")[LISTENER].items():
        whole = json_format.ParseDict(dict(resource), listener_pb2.Listener())
        assert encoded[name].value == whole.SerializeToString(deterministic=True)
        assert len(whole.filter_chains) == SECURE.source_parts
        assert len({chain.name for chain in whole.filter_chains}) == SECURE.source_parts
