"""Verdicts and the caches in front of them."""

import random
from typing import Any

import pytest
from google.protobuf import timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2

from libs import apikeys
from libs.clock import ManualClock
from libs.registry import RegistrySnapshot
from libs.rollouts import SHADOW_TENANT
from services.edge_auth.authenticator import Authenticator, Known
from services.edge_auth.jwks import KeySets
from services.edge_auth.policy.cache import VerdictCache
from services.edge_auth.policy.types import Refusal
from services.edge_auth.tokens import TokenVerifier

PEPPER = b"p" * 32
RNG = random.Random(7)
KEY = apikeys.make(RNG.randbytes)
TENANT = registry_pb2.Tenant(id="acme", plan=registry_pb2.PLAN_PAID)


class Counting(VerdictCache[Any]):
    """A cache that counts what is put into it."""

    puts = 0

    def put(self, digest: bytes, value: Any, until: float) -> None:
        self.puts += 1
        super().put(digest, value, until)


def stored(**changes: Any) -> registry_pb2.ApiKey:
    fields = {"id": KEY.id, "tenant": "acme", "hash": apikeys.hash_key(KEY, PEPPER), "scopes": ["inference"]}
    return registry_pb2.ApiKey(**(fields | changes))


def snapshot(key: registry_pb2.ApiKey, revision: int = 1) -> RegistrySnapshot:
    return RegistrySnapshot(revision=revision, keys={key.id: key}, tenants={"acme": TENANT})


class Bench:
    """An authenticator with its clock and caches."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.good, self.bad = Counting(10), Counting(10)
        keys = KeySets((), clock=self.clock, min_interval=1, on_change=lambda: None)
        self.authenticator = Authenticator(
            pepper=PEPPER,
            tokens=TokenVerifier((), keys, leeway=0, pepper=PEPPER),
            clock=self.clock,
            max_bytes=500,
            good=self.good,
            good_seconds=60,
            bad=self.bad,
            bad_seconds=10,
        )
        self.authenticator.use(snapshot(stored()))

    def identify(self, credential: str = KEY.text) -> Known | Refusal:
        return self.authenticator.identify(credential)


def test_a_good_key_is_verified_once_and_then_remembered() -> None:
    bench = Bench()
    first = bench.identify()
    assert isinstance(first, Known)
    assert (first.principal.tenant, first.principal.plan) == ("acme", "paid")
    assert bench.identify() is first
    assert bench.good.puts == 1
    bench.clock.advance(60)
    bench.identify()
    assert bench.good.puts == 2


def test_a_bad_key_is_refused_once_and_then_remembered_for_a_while() -> None:
    bench = Bench()
    wrong = KEY.text[:-1] + ("a" if KEY.text[-1] != "a" else "b")
    assert bench.identify(wrong) is Refusal.BAD_CREDENTIAL
    assert bench.identify(wrong) is Refusal.BAD_CREDENTIAL
    assert bench.bad.puts == 1
    bench.clock.advance(10)
    bench.identify(wrong)
    assert bench.bad.puts == 2


def test_revocation_holds_from_the_next_snapshot_on() -> None:
    bench = Bench()
    assert isinstance(bench.identify(), Known)
    revoked = stored(revoked_at=timestamp_pb2.Timestamp(seconds=1))
    bench.authenticator.use(snapshot(revoked, 2))
    assert bench.identify() is Refusal.KEY_REVOKED


def test_nobody_is_the_tenant_of_mirrored_traffic() -> None:
    bench = Bench()
    tenant = registry_pb2.Tenant(id=SHADOW_TENANT, plan=registry_pb2.PLAN_PAID)
    key = stored(tenant=SHADOW_TENANT)
    bench.authenticator.use(RegistrySnapshot(revision=2, keys={key.id: key}, tenants={SHADOW_TENANT: tenant}))
    assert bench.identify() is Refusal.TENANT_INACTIVE


def test_a_key_made_after_a_refusal_is_good_at_once() -> None:
    bench = Bench()
    other = apikeys.make(RNG.randbytes)
    assert bench.identify(other.text) is Refusal.BAD_CREDENTIAL
    bench.authenticator.use(snapshot(stored(id=other.id, hash=apikeys.hash_key(other, PEPPER)), 2))
    assert isinstance(bench.identify(other.text), Known)


def test_a_snapshot_with_the_same_keys_and_tenants_forgets_nothing() -> None:
    bench = Bench()
    base = snapshot(stored(), 2)
    bench.authenticator.use(base)
    bench.identify()
    bench.authenticator.use(RegistrySnapshot(revision=3, keys=base.keys, tenants=base.tenants))
    assert len(bench.good) == 1


def test_an_unknown_id_and_a_wrong_secret_cost_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    compared: list[bytes] = []
    real = apikeys.matches

    def counting(key: apikeys.ParsedKey, stored_hash: bytes, pepper: bytes) -> bool:
        compared.append(stored_hash)
        return real(key, stored_hash, pepper)

    monkeypatch.setattr(apikeys, "matches", counting)
    unknown = f"wk_{KEY.id[::-1]}x_{KEY.text.rpartition('_')[2]}"
    wrong = f"wk_{KEY.id}_{'A' * 32}"
    assert bench.identify(unknown) is bench.identify(wrong) is Refusal.BAD_CREDENTIAL
    assert [len(stored_hash) for stored_hash in compared] == [32, 32]


@pytest.mark.parametrize("credential", ["", "x", "wk_", "a.b.c", "x" * 501, "\ud800", "wk_" + "a" * 400])
def test_nonsense_is_refused(credential: str) -> None:
    assert Bench().identify(credential) is Refusal.BAD_CREDENTIAL


@settings(deadline=None)
@given(position=st.integers(0, len(KEY.text) - 1), character=st.characters(exclude_categories=["Cs"]))
def test_any_replaced_character_is_refused(position: int, character: str) -> None:
    mutated = KEY.text[:position] + character + KEY.text[position + 1 :]
    if mutated != KEY.text:
        assert Bench().identify(mutated) is Refusal.BAD_CREDENTIAL


@settings(deadline=None)
@given(cut=st.integers(0, len(KEY.text) - 1), extra=st.text(min_size=1, max_size=5))
def test_shortened_and_lengthened_keys_are_refused(cut: int, extra: str) -> None:
    for mutated in (KEY.text[:cut], KEY.text[cut + 1 :], KEY.text + extra, extra + KEY.text):
        assert Bench().identify(mutated) is Refusal.BAD_CREDENTIAL
