"""The ADS state machine: order, nonces, refusals; and that any client converges to what is offered."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.controlplane.policy.names import CLUSTER, ENDPOINTS, EXTENSION, LISTENER, ORDER, ROUTES
from services.controlplane.policy.subscription import Kind, Offer, Subscriptions


def offers(version: str, **named: dict[str, object]) -> dict[str, Offer]:
    """Offers of clusters, endpoints, listeners and routes."""
    kinds = {"clusters": CLUSTER, "endpoints": ENDPOINTS, "listeners": LISTENER, "routes": ROUTES}
    return {kinds[kind]: Offer(version, resources) for kind, resources in named.items()}


def test_pushes_make_before_break() -> None:
    state = Subscriptions()
    for kind in (ROUTES, LISTENER, ENDPOINTS, CLUSTER):
        state.on_request(kind, ["a"], "", None, 0.0)
    found = state.due(offers("1", clusters={"a": 1}, endpoints={"a": 2}, listeners={"a": 3}, routes={"a": 4}), 0.0)
    assert [response.type_url for response in found] == [CLUSTER, ENDPOINTS, LISTENER, ROUTES]
    assert len({response.nonce for response in found}) == 4


def test_routes_wait_until_envoy_can_use_the_clusters_that_they_name() -> None:
    state = Subscriptions()
    for kind in (CLUSTER, LISTENER):
        state.on_request(kind, [], "", None, 0.0)
    for kind in (ENDPOINTS, ROUTES):
        state.on_request(kind, ["a"], "", None, 0.0)
    first = offers("1", clusters={"a": 1}, endpoints={"a": 2}, listeners={"a": 3}, routes={"a": 4})
    clusters, endpoints = state.due(first, 0.0)
    assert (clusters.type_url, endpoints.type_url) == (CLUSTER, ENDPOINTS)
    assert state.on_request(CLUSTER, [], clusters.nonce, None, 0.0) == (Kind.ACK, "1")
    assert [response.type_url for response in state.due(first, 0.0)] == [LISTENER, ROUTES]
    second = offers("2", clusters={"a": 1}, endpoints={"a": 2}, listeners={"a": 3}, routes={"a": 5})
    assert [response.type_url for response in state.due(second, 0.0)] == [ROUTES]


def test_a_refused_cluster_holds_no_routes_up() -> None:
    state = Subscriptions()
    for kind, names in ((CLUSTER, []), (ROUTES, ["a"])):
        state.on_request(kind, names, "", None, 0.0)
    (clusters,) = state.due(offers("1", clusters={"a": 1}, routes={"a": 2}), 0.0)
    state.on_request(CLUSTER, [], clusters.nonce, "no", 0.0)
    assert [response.type_url for response in state.due(offers("1", clusters={"a": 1}, routes={"a": 2}), 0.0)] == [
        ROUTES
    ]


def routed(version: str, clusters: str, needs: str) -> dict[str, Offer]:
    """An offer of clusters, one route configuration that names some of them, and one that names none."""
    values: dict[str, object] = {name: f"{name}{version}" for name in clusters}
    routes: dict[str, object] = {"r": version, "free": f"free{version}"}
    named = {"r": frozenset(needs), "free": frozenset[str]()}
    return {CLUSTER: Offer(version, values), ROUTES: Offer(version, routes, named)}


def with_routes(offer: dict[str, Offer], version: str, needs: str) -> dict[str, Offer]:
    """The same clusters, and later routes."""
    return {**offer, ROUTES: routed(version, "", needs)[ROUTES]}


def taken(state: Subscriptions, offer: dict[str, Offer]) -> list[object]:
    """The routes that are due; Envoy accepts them."""
    found: list[object] = []
    for response in state.due(offer, 0.0):
        assert response.type_url == ROUTES
        found += response.resources
        state.on_request(ROUTES, ["r", "free"], response.nonce, None, 0.0)
    return found


def answered(state: Subscriptions, offer: dict[str, Offer], complaint: str | None) -> list[object]:
    """The routes that follow Envoy's answer to the clusters that it is sent."""
    (clusters,) = state.due(offer, 0.0)
    assert clusters.type_url == CLUSTER
    state.on_request(CLUSTER, [], clusters.nonce, complaint, 0.0)
    return taken(state, offer)


def fresh() -> Subscriptions:
    state = Subscriptions()
    state.on_request(CLUSTER, [], "", None, 0.0)
    state.on_request(ROUTES, ["r", "free"], "", None, 0.0)
    return state


def served() -> Subscriptions:
    """Of an Envoy that has the first routes."""
    state = fresh()
    assert answered(state, routed("1", "ab", "a"), None) == ["free1", "1"]
    return state


@pytest.mark.parametrize("complaint", ["Error adding/updating cluster(s) c: no such thing", "cannot be read"])
def test_f8_routes_do_not_go_to_a_cluster_that_was_refused(complaint: str) -> None:
    state, offer = served(), routed("2", "abc", "ac")
    assert answered(state, offer, complaint) == ["free2"]
    # That it is taken out of the routes goes through at once; and so does it, when it is good.
    assert taken(state, with_routes(offer, "3", "a")) == ["free3", "3"]
    assert answered(state, routed("4", "abc", "ac"), None) == ["free4", "4"]


def test_f8_a_refused_change_of_a_cluster_leaves_it_usable() -> None:
    """Envoy goes on with the version that it has."""
    assert answered(served(), routed("2", "ab", "ab"), "Error adding/updating cluster(s) b: no") == ["free2", "2"]


def test_f8_the_clusters_that_envoy_does_not_complain_of_are_usable() -> None:
    complaint = "Error adding/updating cluster(s) c: no, like cd: neither"
    assert answered(served(), routed("2", "abcd", "ad"), complaint) == ["free2", "2"]


def test_f8_a_client_without_routes_gets_them_and_is_not_held_up_for_ever() -> None:
    """A route to a refused cluster fails alone."""
    state, offer = fresh(), routed("1", "ab", "ab")
    assert answered(state, offer, "Error adding/updating cluster(s) b: no") == ["free1", "1"]
    assert taken(state, with_routes(offer, "2", "ab")) == ["free2"]
    assert taken(state, with_routes(offer, "3", "a")) == ["free3", "3"]


def test_f8_routes_that_are_due_once_more_with_a_listener_are_those_that_the_client_has() -> None:
    state, offer = served(), routed("2", "abc", "ac")
    assert answered(state, offer, "Error adding/updating cluster(s) c: no") == ["free2"]
    state.on_request(LISTENER, [], "", None, 0.0)
    found = {each.type_url: each.resources for each in state.due({**offer, LISTENER: Offer("2", {"l": 1})}, 0.0)}
    assert found == {LISTENER: (1,), ROUTES: ("free2", "1")}


def test_a_wildcard_follows_additions_and_removals() -> None:
    state = Subscriptions()
    assert state.on_request(CLUSTER, [], "", None, 0.0) == (Kind.SUBSCRIBE, "")
    assert state.due(offers("1", clusters={"a": 1, "b": 2}), 0.0)[0].resources == (1, 2)
    assert state.due(offers("2", clusters={"a": 1, "b": 2}), 0.0) == []
    assert state.due(offers("3", clusters={"b": 2}), 0.0)[0].resources == (2,)


def test_an_empty_offer_is_an_answer_for_clusters() -> None:
    state = Subscriptions()
    state.on_request(CLUSTER, [], "", None, 0.0)
    (response,) = state.due(offers("1", clusters={}), 0.0)
    assert response.resources == ()


def test_stale_answers_change_nothing() -> None:
    state = Subscriptions()
    state.on_request(ENDPOINTS, ["a"], "", None, 0.0)
    (first,) = state.due(offers("1", endpoints={"a": 1}), 0.0)
    (second,) = state.due(offers("2", endpoints={"a": 2}), 0.0)
    assert state.on_request(ENDPOINTS, ["a"], first.nonce, "no", 0.0) == (Kind.STALE, "")
    assert state.types[ENDPOINTS].nacked_version == ""
    assert state.on_request(ENDPOINTS, ["a"], second.nonce, None, 0.0) == (Kind.ACK, "2")


def test_a_refusal_waits_for_a_change() -> None:
    state = Subscriptions()
    state.on_request(ROUTES, ["a"], "", None, 0.0)
    (first,) = state.due(offers("1", routes={"a": 1}), 0.0)
    assert state.on_request(ROUTES, ["a"], first.nonce, "bad", 0.0) == (Kind.NACK, "1")
    assert state.due(offers("1", routes={"a": 1}), 0.0) == []
    assert state.types[ROUTES].nack_detail == "bad"
    (second,) = state.due(offers("2", routes={"a": 2}), 0.0)
    assert state.on_request(ROUTES, ["a"], second.nonce, None, 0.0) == (Kind.ACK, "2")
    assert state.types[ROUTES].nack_detail == ""


def test_a_changed_cluster_warms_with_its_endpoints() -> None:
    state = Subscriptions()
    state.on_request(CLUSTER, [], "", None, 0.0)
    state.on_request(ENDPOINTS, ["a"], "", None, 0.0)
    state.due(offers("1", clusters={"a": 1}, endpoints={"a": 10}), 0.0)
    found = state.due(offers("2", clusters={"a": 2}, endpoints={"a": 10}), 0.0)
    assert [response.type_url for response in found] == [CLUSTER, ENDPOINTS]


def test_unknown_types_are_ignored() -> None:
    assert Subscriptions().on_request("type.googleapis.com/x.Y", [], "", None, 0.0) == (Kind.UNKNOWN_TYPE, "")


names = st.sampled_from(["a", "b", "c"])
contents = st.dictionaries(names, st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.fixed_dictionaries(dict.fromkeys(ORDER, contents))),
            st.tuples(st.just("names"), st.sets(names)),
            st.tuples(st.just("answer"), st.booleans()),
        ),
        max_size=25,
    ),
    st.booleans(),
)
def test_every_client_converges(steps: list[tuple[str, object]], wildcard: bool) -> None:
    """A client that applies what it is sent ends with exactly what is offered of what it asked for, however offers,
    changes of names and answers interleave."""
    state, interned = Subscriptions(), {}
    wanted: dict[str, set[str]] = {kind: {"a"} for kind in ORDER}
    have: dict[str, dict[str, object]] = {kind: {} for kind in ORDER}
    last: dict[str, str] = {}
    offered: dict[str, Offer] = {}

    def receive() -> None:
        for response in state.due(offered, 0.0):
            kind = response.type_url
            values = {value[1]: value for value in response.resources}
            have[kind] = values if kind in (CLUSTER, LISTENER) else {**have[kind], **values}
            last[kind] = response.nonce

    def asked(kind: str) -> list[str]:
        return [] if wildcard and kind in (CLUSTER, LISTENER) else sorted(wanted[kind])

    for kind in ORDER:
        state.on_request(kind, asked(kind), "", None, 0.0)
    for number, (step, value) in enumerate(steps):
        if step == "offer":
            offered = {
                kind: Offer(str(number), {n: interned.setdefault((kind, n, v), (kind, n, v)) for n, v in found.items()})
                for kind, found in value.items()
            }
        elif step == "names":
            for kind in ORDER:
                wanted[kind] = set(value)
                if kind in (CLUSTER, LISTENER) and not wildcard and not value:
                    wanted[kind] = {"a"}
                state.on_request(kind, asked(kind), last.get(kind, ""), None, 0.0)
        else:
            for kind in ORDER:
                if kind in last:
                    state.on_request(kind, asked(kind), last[kind], None if value else "no", 0.0)
        receive()
    if CLUSTER in last:
        # A client answers in the end; until it has, routes wait.
        state.on_request(CLUSTER, asked(CLUSTER), last[CLUSTER], None, 0.0)
        receive()
    for kind in ORDER:
        if kind not in offered:
            continue
        known = offered[kind].resources
        everything = wildcard and kind in (CLUSTER, LISTENER)
        expected = dict(known) if everything else {n: known[n] for n in wanted[kind] if n in known}
        held = have[kind] if everything else {n: v for n, v in have[kind].items() if n in wanted[kind]}
        # Absence is told for clusters and listeners only.
        if kind in (CLUSTER, LISTENER):
            assert held == expected
        else:
            assert {n: v for n, v in held.items() if n in known} == expected


def test_a_filter_is_told_again_to_a_new_listener_and_waits_for_no_cluster() -> None:
    state = Subscriptions()
    for kind, names in ((CLUSTER, []), (LISTENER, []), (EXTENSION, ["f"])):
        state.on_request(kind, names, "", None, 0.0)

    def offer(version: str, clusters: int, listeners: int, filters: int) -> dict[str, Offer]:
        return {
            **offers(version, clusters={"a": clusters}, listeners={"a": listeners}),
            EXTENSION: Offer(version, {"f": filters}),
        }

    def due(*args: int) -> list[str]:
        return [response.type_url for response in state.due(offer("1", *args), 0.0)]

    assert due(1, 1, 1) == [CLUSTER, EXTENSION], "the cluster warms up"
    state.on_request(CLUSTER, [], state.types[CLUSTER].nonce, None, 0.0)
    assert due(1, 1, 1) == [LISTENER, EXTENSION]
    assert due(1, 1, 2) == [EXTENSION]
    assert due(1, 2, 2) == [LISTENER, EXTENSION]
    assert due(1, 2, 2) == []
