"""What credentials are worth."""

import dataclasses

import pytest

from services.edge_auth.policy.cache import VerdictCache
from services.edge_auth.policy.credentials import (
    IssuerRules,
    allow,
    estimated_tokens,
    judge_claims,
    judge_key,
    shown_credential,
)
from services.edge_auth.policy.types import KeyRecord, Principal, Refusal, TenantRecord

NOW = 1_000.0
ACME = TenantRecord("acme", "paid", "https://issuer")
KEY = KeyRecord("k1", "acme", frozenset({"inference"}), expires_at=NOW + 1)
RULES = IssuerRules("https://issuer", "", "scope", frozenset({"inference", "models.read"}), leeway=10)
CLAIMS: dict[str, object] = {"exp": NOW + 60, "scope": "inference admin"}


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bEARER  abc "}, "abc"),
        ({"api-key": "abc"}, "abc"),
        ({"x-api-key": "abc"}, "abc"),
        ({"authorization": "Bearer abc", "x-api-key": "other"}, "abc"),
        ({"authorization": "Basic abc", "x-api-key": "other"}, ""),
        ({"authorization": "Bearer "}, ""),
        ({"authorization": "abc"}, ""),
        ({}, ""),
    ],
)
def test_where_a_credential_is_read(headers: dict[str, str], credential: str) -> None:
    assert shown_credential(headers) == credential


@pytest.mark.parametrize(
    ("length", "tokens"),
    [("", 1), ("0", 1), ("3", 1), ("4", 1), ("400", 100), ("-5", 1), ("x", 1), ("9" * 5000, 1), ("²", 1)],
)
def test_the_estimate(length: str, tokens: int) -> None:
    assert estimated_tokens(length) == tokens


def test_a_good_key() -> None:
    assert judge_key(KEY, True, ACME, NOW) == Principal("acme", "paid", frozenset({"inference"}), "k1", NOW + 1)


@pytest.mark.parametrize(
    ("record", "genuine", "tenant", "refusal"),
    [
        (None, True, ACME, Refusal.BAD_CREDENTIAL),
        (KEY, False, ACME, Refusal.BAD_CREDENTIAL),
        (dataclasses.replace(KEY, revoked=True), False, ACME, Refusal.BAD_CREDENTIAL),
        (dataclasses.replace(KEY, revoked=True), True, ACME, Refusal.KEY_REVOKED),
        (dataclasses.replace(KEY, expires_at=NOW), True, ACME, Refusal.KEY_EXPIRED),
        (KEY, True, None, Refusal.TENANT_INACTIVE),
        (KEY, True, TenantRecord("acme", ""), Refusal.TENANT_INACTIVE),
    ],
)
def test_bad_keys(record: KeyRecord | None, genuine: bool, tenant: TenantRecord | None, refusal: Refusal) -> None:
    assert judge_key(record, genuine, tenant, NOW) is refusal


def test_allow_checks_time_then_scope() -> None:
    principal = Principal("acme", "paid", frozenset({"inference"}), "k1", expires_at=NOW)
    assert allow(principal, "inference", NOW - 0.001) is None
    assert allow(principal, "admin", NOW - 0.001) is Refusal.SCOPE_MISSING
    assert allow(principal, "inference", NOW) is Refusal.KEY_EXPIRED


def judge(claims: dict[str, object], rules: IssuerRules = RULES, *tenants: TenantRecord) -> Principal | Refusal:
    known = {tenant.id: tenant for tenant in tenants or (ACME,)}
    return judge_claims(claims, rules, known, pseudonym="jwt-1", now=NOW)


def test_a_good_token_gets_what_its_issuer_may_grant() -> None:
    assert judge(CLAIMS) == Principal("acme", "paid", frozenset({"inference"}), "jwt-1", NOW + 70)


@pytest.mark.parametrize("scopes", [["inference", 7], "inference", "inference  x"])
def test_scopes_come_as_words_or_as_a_list(scopes: object) -> None:
    verdict = judge(CLAIMS | {"scope": scopes})
    assert isinstance(verdict, Principal)
    assert verdict.scopes == {"inference"}


@pytest.mark.parametrize("scopes", [None, 5, {"inference": True}, ""])
def test_unreadable_scopes_grant_nothing(scopes: object) -> None:
    verdict = judge(CLAIMS | {"scope": scopes})
    assert isinstance(verdict, Principal)
    assert verdict.scopes == frozenset()


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"exp": NOW - 10}, Refusal.KEY_EXPIRED),
        ({"exp": "soon"}, Refusal.BAD_CREDENTIAL),
        ({"exp": True}, Refusal.BAD_CREDENTIAL),
        ({"exp": float("inf")}, Refusal.BAD_CREDENTIAL),
        ({"exp": float("nan")}, Refusal.BAD_CREDENTIAL),
        ({"exp": 10**400}, Refusal.BAD_CREDENTIAL),
        ({"nbf": NOW + 11}, Refusal.BAD_CREDENTIAL),
        ({"nbf": "x"}, Refusal.BAD_CREDENTIAL),
    ],
)
def test_times_of_a_token(change: dict[str, object], refusal: Refusal) -> None:
    assert judge(CLAIMS | change) is refusal


def test_leeway_covers_clocks_that_differ() -> None:
    assert isinstance(judge(CLAIMS | {"exp": NOW - 9.9, "nbf": NOW + 9.9}), Principal)


def test_a_claim_may_name_only_a_tenant_of_the_issuer() -> None:
    rules = dataclasses.replace(RULES, tenant_claim="org")
    assert isinstance(judge(CLAIMS | {"org": "acme"}, rules), Principal)
    for name in ("globex", 7, None, ["acme"]):
        assert judge(CLAIMS | {"org": name}, rules) is Refusal.BAD_CREDENTIAL


def test_an_issuer_of_two_tenants_must_name_one() -> None:
    other = TenantRecord("globex", "free", "https://issuer")
    assert judge(CLAIMS, RULES, ACME, other) is Refusal.BAD_CREDENTIAL


def test_the_cache_is_bounded_and_ends() -> None:
    cache: VerdictCache[int] = VerdictCache(2)
    cache.put(b"a", 1, until=10)
    cache.put(b"b", 2, until=20)
    assert cache.get(b"a", 9) == 1
    cache.put(b"c", 3, until=20)
    assert cache.get(b"b", 9) is None
    assert cache.get(b"a", 10) is None
    assert len(cache) == 1
    cache.clear()
    assert cache.get(b"c", 9) is None
    with pytest.raises(ValueError, match="at least one"):
        VerdictCache(0)
