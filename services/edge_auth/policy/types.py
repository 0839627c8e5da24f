"""The values that policy decides on and returns."""

from dataclasses import dataclass
from enum import StrEnum

NEVER = float("inf")
"""An expiry that does not come."""


class Refusal(StrEnum):
    """Why a request does not pass: a closed set, also the metric's label."""

    NO_CREDENTIAL = "no_credential"
    """The request shows none."""
    BAD_CREDENTIAL = "bad_credential"
    """Malformed, unknown or wrong: callers cannot tell which."""
    KEY_REVOKED = "key_revoked"
    """The right secret of a key that was revoked."""
    KEY_EXPIRED = "key_expired"
    """The right secret of a key, or a genuine token, whose time has passed."""
    SCOPE_MISSING = "scope_missing"
    """A good credential that may not do this."""
    TENANT_INACTIVE = "tenant_inactive"
    """A good credential of a tenant that is gone or has no plan."""
    UNKNOWN_PATH = "unknown_path"
    """Nothing is served there."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as the registry has it, without its hash."""

    id: str
    tenant: str
    scopes: frozenset[str]
    expires_at: float = NEVER
    """Unix seconds."""
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant as the registry has it."""

    id: str
    plan: str
    """"paid", "free" or "" (refused)."""
    jwt_issuer: str = ""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling, and what they may do."""

    tenant: str
    """Empty, with the plan and the scopes, for people who operate the mesh: what they may is the registry's to say."""
    plan: str
    scopes: frozenset[str]
    key_id: str
    """The key's public id; for tenants' tokens a pseudonym of issuer and subject; for people who
    operate the mesh "oidc:<issuer>/<who>"."""
    expires_at: float = NEVER
    """Unix seconds; from then on the credential is refused."""
