"""SPIFFE ids: what is written is read back, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.authority.identity import Identity, Operator, dns_name, etcd_user

ROOT = "spiffe://weir.internal"
labels = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
parts = labels | st.just("")
identities = st.builds(Identity, labels) | st.builds(Identity, labels, labels, parts, parts)


@given(identities)
def test_an_identity_is_read_back(identity: Identity) -> None:
    assert Identity.parse(identity.spiffe) == identity
    assert Operator.parse(identity.spiffe) is None


@given(labels)
def test_a_person_is_read_back_and_is_no_workload(name: str) -> None:
    assert Operator.parse(Operator(name).spiffe) == Operator(name)
    assert Identity.parse(Operator(name).spiffe) is None


@given(identities, identities)
def test_two_identities_never_share_an_id(one: Identity, other: Identity) -> None:
    assert (one == other) == (one.spiffe == other.spiffe)


@given(st.text() | st.text(alphabet="/sainstcepolzw-.%ABÄ\n").map(lambda rest: f"{ROOT}/sa/{rest}"))
def test_whatever_is_read_is_written_the_same(text: str) -> None:
    identity = Identity.parse(text)
    assert identity is None or identity.spiffe == text


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/sa",
        "/sa/",
        "/sa/worker/",
        "/sa//instance/a",
        "/sa/worker/instance",
        "/sa/worker/instance/",
        "/sa/worker/instance/a/",
        "/sa/worker/instance/../gateway",
        "/sa/worker/instance/%61",
        "/sa/Worker",
        "/sa/worker/instance/a/pool/p/pool/q",
        "/sa/worker/instance/a/zone/z/pool/p",
        "/sa/worker/pool/p",
        "/sa/worker/zone/z",
        "/sa/worker/region/r",
        "/sa/worker/instance/a/region/r/zone/z",
        "/sa/worker/instance/a/instance/b",
        "/sa/worker\n",
        "/sa/worker?x",
        "/sa/worker#x",
        "/sa/" + "a" * 64,
        "/sa/-worker",
        "/operator/alice",
    ],
)
def test_other_spellings_are_nobody(path: str) -> None:
    assert Identity.parse(ROOT + path) is None


@pytest.mark.parametrize("spiffe", ["spiffe://weirXinternal/sa/worker", "spiffe://elsewhere/sa/worker", "/sa/worker"])
def test_other_trust_domains_are_nobody(spiffe: str) -> None:
    assert Identity.parse(spiffe) is None


@pytest.mark.parametrize(
    "parts",
    [
        ("",),
        ("a/b",),
        ("Worker",),
        ("worker", "a b"),
        ("worker", "", "pool"),
        ("worker", "", "", "zone"),
        ("worker", "", "", "", "eu"),
    ],
)
def test_what_could_not_be_read_back_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"certificate|belongs to an instance"):
        Identity(*parts)


def test_users_of_etcd() -> None:
    assert etcd_user(Identity("worker", "worker-a", "demo", "zone-a")) == "worker-a"
    assert etcd_user(Identity("demo-client")) == "demo-client"
    assert etcd_user(Operator("alice")) == "operator.alice"


def test_dns_names() -> None:
    assert dns_name("worker") == "worker.weir.internal"
