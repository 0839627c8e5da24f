"""What credentials are worth."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
RULES = IssuerRules(
    issuer="https://issuer",
    tenant_claim="",
    scopes_claim="scope",
    allowed_scopes=frozenset({"inference", "models.read"}),
    leeway=10,
    max_life=3600,
)
PEOPLE = dataclasses.replace(RULES, operators="corp", operator_claim="email")
JANE: dict[str, object] = {"exp": NOW + 60, "iat": NOW, "email": "jane@example.org", "email_verified": True}
CLAIMS: dict[str, object] = {"iat": NOW, "exp": NOW + 60, "scope": "inference admin"}


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
        ({"iat": NOW + 11}, Refusal.BAD_CREDENTIAL),
        ({"iat": None}, Refusal.BAD_CREDENTIAL),
        # Longer than its issuer's tokens may live, whenever it ends.
        ({"exp": NOW + 3601}, Refusal.BAD_CREDENTIAL),
        ({"iat": NOW - 3600}, Refusal.BAD_CREDENTIAL),
    ],
)
def test_times_of_a_token(change: dict[str, object], refusal: Refusal) -> None:
    assert judge(CLAIMS | change) is refusal


def test_leeway_covers_clocks_that_differ() -> None:
    assert isinstance(judge(CLAIMS | {"exp": NOW - 9.9, "nbf": NOW + 9.9}), Principal)


@given(issued=st.floats(-1e6, 1e6), life=st.floats(-10, 1e5), starts=st.floats(-1e6, 1e6), moment=st.floats(-1e6, 1e6))
def test_a10_no_token_is_good_for_longer_than_its_issuer_allows(
    issued: float, life: float, starts: float, moment: float
) -> None:
    claims = CLAIMS | {"iat": NOW + issued, "nbf": NOW + starts, "exp": NOW + issued + life}
    verdict = judge_claims(claims, RULES, {"acme": ACME}, pseudonym="jwt-1", now=NOW + moment)
    if isinstance(verdict, Principal):
        assert verdict.expires_at - (NOW + moment) <= RULES.max_life + 2 * RULES.leeway + 1
        assert NOW + moment >= max(NOW + issued, NOW + starts) - RULES.leeway


def test_a3_a_person_of_an_operators_issuer_is_nobodys_tenant_and_has_no_scope() -> None:
    assert judge(JANE | {"scope": "inference admin"}, PEOPLE) == Principal(
        "", "", frozenset(), "oidc:corp/jane@example.org", NOW + 70
    )
    by_name = dataclasses.replace(PEOPLE, operator_claim="preferred_username")
    verdict = judge({**JANE, "preferred_username": "jane"}, by_name)
    assert isinstance(verdict, Principal)
    assert verdict.key_id == "oidc:corp/jane"


@pytest.mark.parametrize(
    "change",
    [
        {"email": None},
        {"email": ""},
        {"email": ["jane@example.org"]},
        {"email": "jane@example.org\n"},
        {"email": "../corp2/jane"},
        {"email": "jané@example.org"},
        {"email": "j" * 300},
        # Anybody's, until the issuer has seen that it is his.
        {"email_verified": False},
        {"email_verified": "true"},
        {"email_verified": None},
    ],
)
def test_a3_a_person_is_named_by_the_issuer_without_doubt(change: dict[str, object]) -> None:
    assert judge(JANE | change, PEOPLE) is Refusal.BAD_CREDENTIAL


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
