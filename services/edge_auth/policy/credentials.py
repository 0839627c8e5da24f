"""What a request shows of itself, and what a checked key or token is worth."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from libs.authority.operators import OIDC
from services.edge_auth.policy.types import KeyRecord, Principal, Refusal, TenantRecord

CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key")
"""Read in this order; all of them are removed before the request goes on."""
_BEARER = "bearer "
_PERSON = re.compile("[A-Za-z0-9][A-Za-z0-9._@+-]{0,253}", re.ASCII)


def shown_credential(headers: Mapping[str, str]) -> str:
    """The credential in a request's headers (lower-case names); empty when there is none that we can read."""
    authorization = headers.get("authorization", "")
    if authorization:
        return authorization[len(_BEARER) :].strip() if authorization[: len(_BEARER)].lower() == _BEARER else ""
    return headers.get("api-key", "") or headers.get("x-api-key", "")


def estimated_tokens(content_length: str) -> int:
    """A cheap guess at a request's tokens: a quarter of its bytes, at least 1."""
    # The length bound keeps a forged header from becoming a number that takes long to parse.
    return max(1, int(content_length) // 4) if content_length.isdecimal() and len(content_length) < 16 else 1


def judge_key(record: KeyRecord | None, genuine: bool, tenant: TenantRecord | None, now: float) -> Principal | Refusal:
    """What a key is worth.

    Its state is told only to whoever shows the right secret.

    :param genuine: the secret is the record's.
    :param now: Unix seconds.
    """
    if record is None or not genuine:
        return Refusal.BAD_CREDENTIAL
    if record.revoked:
        return Refusal.KEY_REVOKED
    if now >= record.expires_at:
        return Refusal.KEY_EXPIRED
    if tenant is None or not tenant.plan:
        return Refusal.TENANT_INACTIVE
    return Principal(tenant.id, tenant.plan, record.scopes, record.id, record.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerRules:
    """What tokens of one issuer may claim; their signature, issuer and audience are checked elsewhere."""

    issuer: str
    tenant_claim: str
    """The claim that names the tenant; empty: the one tenant whose `jwt_issuer` this is."""
    scopes_claim: str
    """A list, or words separated by spaces."""
    allowed_scopes: frozenset[str]
    """What this issuer may grant; anything else in a token is ignored."""
    leeway: float
    """Seconds by which clocks may differ."""
    max_life: float
    """Seconds from `iat` to `exp` at most."""
    operators: str = ""
    """Its bearers operate the mesh, by this name of the issuer; empty: they are a tenant's."""
    operator_claim: str = ""
    """The claim that says who operates."""


def judge_claims(
    claims: Mapping[str, object],
    rules: IssuerRules,
    tenants: Mapping[str, TenantRecord],
    *,
    pseudonym: str,
    now: float,
) -> Principal | Refusal:
    """What a token with a good signature, issuer and audience is worth.

    :param tenants: the tenants whose `jwt_issuer` is this issuer, by id: no issuer speaks for any other tenant.
    :param pseudonym: stands for the subject in logs and records.
    :param now: Unix seconds.
    """
    expires, starts, issued = (_number(claims.get(*each)) for each in (("exp",), ("nbf", 0), ("iat",)))
    if expires is None or starts is None or issued is None or now < max(starts, issued) - rules.leeway:
        return Refusal.BAD_CREDENTIAL
    if expires - issued > rules.max_life:
        return Refusal.BAD_CREDENTIAL
    if now >= expires + rules.leeway:
        return Refusal.KEY_EXPIRED
    if rules.operators:
        who = _operator(claims, rules)
        return Principal("", "", frozenset(), who, expires + rules.leeway) if who else Refusal.BAD_CREDENTIAL
    tenant = _tenant(claims, rules, tenants)
    if tenant is None:
        return Refusal.BAD_CREDENTIAL
    if not tenant.plan:
        return Refusal.TENANT_INACTIVE
    scopes = _words(claims.get(rules.scopes_claim)) & rules.allowed_scopes
    return Principal(tenant.id, tenant.plan, scopes, pseudonym, expires + rules.leeway)


def allow(principal: Principal, scope: str, now: float) -> Refusal | None:
    """Whether a principal may use a scope at `now`, Unix seconds; None when it may."""
    if now >= principal.expires_at:
        return Refusal.KEY_EXPIRED
    return None if scope in principal.scopes else Refusal.SCOPE_MISSING


def _tenant(
    claims: Mapping[str, object], rules: IssuerRules, tenants: Mapping[str, TenantRecord]
) -> TenantRecord | None:
    if rules.tenant_claim:
        name = claims.get(rules.tenant_claim)
        return tenants.get(name) if isinstance(name, str) else None
    return next(iter(tenants.values())) if len(tenants) == 1 else None


def _operator(claims: Mapping[str, object], rules: IssuerRules) -> str:
    """The principal of a person who operates; empty when the token does not say who, in letters of one alphabet."""
    who = claims.get(rules.operator_claim)
    if not isinstance(who, str) or not _PERSON.fullmatch(who):
        return ""
    if rules.operator_claim == "email" and claims.get("email_verified") is not True:
        # Anybody's, until the issuer has seen that it is his.
        return ""
    return f"{OIDC}{rules.operators}/{who}"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _words(value: object) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset(value.split())
    if isinstance(value, list):
        return frozenset(word for word in value if isinstance(word, str))
    return frozenset()
