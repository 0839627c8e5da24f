"""The table of stores, and what leads from what etcd has to what it says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.authority.identity import Identity, Operator
from libs.authority.stores import (
    ROOT_USER,
    ROWS,
    Access,
    Authority,
    Range,
    Verb,
    access_of,
    authority_of,
    connects,
    may,
    steps,
)
from libs.registry import followed_by, keys
from libs.resources.kinds import KINDS

SERVICES = st.sampled_from(sorted(ROWS))
PROCESSES = st.lists(
    st.builds(Identity, SERVICES, st.sampled_from(["a", "b", "c"])), unique_by=lambda each: each.instance
)


def applied(have: Authority, phases: list[list]) -> Authority:
    """As etcd carries steps out: what a step needs must be there."""
    roles = {role: dict(granted) for role, granted in have.roles.items()}
    users = {user: set(given) for user, given in have.users.items()}
    for step in (step for phase in phases for step in phase):
        match step.verb:
            case Verb.ADD_ROLE:
                assert step.role not in roles
                roles[step.role] = {}
            case Verb.GRANT:
                roles[step.role][step.range] = step.access
            case Verb.ADD_USER:
                assert step.user not in users
                users[step.user] = set()
            case Verb.GIVE_ROLE:
                assert step.role in roles
                users[step.user].add(step.role)
            case Verb.TAKE_ROLE:
                users[step.user].discard(step.role)
            case Verb.DELETE_USER:
                del users[step.user]
            case Verb.REVOKE:
                del roles[step.role][step.range]
            case Verb.DELETE_ROLE:
                # etcd takes a role that goes from whoever has it.
                del roles[step.role]
                for given_ in users.values():
                    given_.discard(step.role)
    return Authority(roles, {user: frozenset(given) for user, given in users.items()})


def rights(authority: Authority) -> dict[str, set[tuple[Range, Access]]]:
    return {
        user: {pair for role in given for pair in authority.roles.get(role, {}).items()}
        for user, given in authority.users.items()
    }


@given(PROCESSES, PROCESSES)
def test_steps_lead_from_any_state_to_the_tables(before: list[Identity], after: list[Identity]) -> None:
    have, want = authority_of(before), authority_of(after)
    reached = applied(have, steps(have, want))
    assert (reached.roles, reached.users) == (want.roles, want.users)
    assert steps(want, want) == []


@given(PROCESSES, PROCESSES)
def test_nobody_lacks_in_between_what_it_has_before_and_after(before: list[Identity], after: list[Identity]) -> None:
    have, want = authority_of(before), authority_of(after)
    kept = {user: rights(have)[user] & rights(want)[user] for user in have.users.keys() & want.users.keys()}
    phases = steps(have, want)
    for end in range(len(phases) + 1):
        between = rights(applied(have, phases[:end]))
        assert all(kept[user] <= between[user] for user in kept)


@given(PROCESSES, PROCESSES)
def test_adding_takes_nothing_away(before: list[Identity], more: list[Identity]) -> None:
    have = authority_of(before)
    reached = applied(have, steps(have, authority_of(more), keep=True))
    assert have.users.keys() <= reached.users.keys()
    assert all(granted.items() <= reached.roles[role].items() for role, granted in have.roles.items())


def test_a_role_whose_range_is_not_in_the_table_any_more_loses_it() -> None:
    want = authority_of([Identity("controlplane", "controlplane")])
    more: Mapping[str, Mapping[Range, Access]] = {
        **want.roles,
        "service.controlplane": {**want.roles["service.controlplane"], Range.under("/weir/"): Access.BOTH},
    }
    [[step]] = steps(Authority(more, want.users), want)
    assert str(step) == "revoke service.controlplane /weir/*"


def test_only_who_connects_is_a_user() -> None:
    users = authority_of([Identity(service, f"{service}-0") for service in ROWS]).users
    assert set(users) == {ROOT_USER, "registry-0", "controlplane-0", "rollout-0", "door-0"}
    assert users["registry-0"] == {"service.registry", "instance.registry-0"}


@pytest.mark.parametrize("names", [("root",), ("x", "x")])
def test_no_two_processes_are_one_user(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="called"):
        authority_of([Identity(service, name) for service, name in zip(("registry", "rollout"), names, strict=False)])


@pytest.mark.parametrize(
    "who", [Identity("demo-client"), Identity("worker"), Identity("envoy", "envoy-0"), Identity("edge")]
)
def test_whoever_is_no_process_with_a_row_may_nothing(who: Identity) -> None:
    assert access_of(who) == {}
    assert not may(who, Access.READ, Range(keys.FENCE))
    assert not connects(who)
    assert not connects(Operator("root"))


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        (Range.under("/a/"), Range("/a/b"), True),
        (Range.under("/a/"), Range.under("/a/b/"), True),
        (Range.under("/a/"), Range("/a0"), False),
        (Range.under("/a/"), Range("/a/b", "/b"), False),
        (Range("/a"), Range("/a"), True),
        (Range("/a"), Range("/a", "/a\0"), True),
        (Range("/a"), Range("/a\0"), False),
        (Range("/a"), Range.under("/a"), False),
    ],
)
def test_what_a_range_covers(outer: Range, inner: Range, *, covered: bool) -> None:
    assert outer.covers(inner) is covered


def test_secrets_lie_outside_of_what_is_read_to_decide() -> None:
    for kind in KINDS:
        assert kind.prefix.startswith(keys.SECRETS if kind.secret else keys.ROOT)
        assert Range.under(keys.EVERYTHING).covers(Range.under(kind.prefix))


def test_only_edge_auth_follows_what_is_secret() -> None:
    for kind in KINDS:
        if kind.secret:
            assert kind.followers == kind.trusted == ("edge-auth",)
    assert all("keys" not in followed_by(service) for service in ROWS if service != "edge-auth")


def test_only_the_registry_says_that_credentials_are_worth_less() -> None:
    able = {service for service in ROWS if may(Identity(service, "i"), Access.WRITE, Range(keys.EPOCH))}
    assert able == {"registry"}
    assert may(Identity("controlplane", "i"), Access.READ, Range(keys.EPOCH))
