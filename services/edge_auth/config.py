"""Settings of the edge's authentication."""

import msgspec

from libs.config import ServiceSettings


class Issuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenID Connect issuer whose tokens are taken."""

    issuer: str
    """The `iss` of its tokens, exactly."""
    audience: str
    """The `aud` that its tokens must carry."""
    jwks_file: str = ""
    """Its public keys as a JWKS file; this or the URL."""
    jwks_url: str = ""
    """Its public keys as a JWKS document behind https (or http on loopback)."""
    token_types: tuple[str, ...] = ("at+jwt",)
    """The `typ` of its tokens, one of these (RFC 9068, section 2.1): what it signs for another purpose, such as who
    logged in, opens nothing. Issuers that say no more than "JWT", or nothing (""), need that here."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    """Taken from it; only these three can be."""
    max_life_seconds: float = 86_400.0
    """The longest that its tokens may live, from `iat` to `exp`."""
    operators: str = ""
    """Makes its bearers people who operate the mesh, whom the registry knows as "oidc:<this>/<who>"; none of its tokens
    is a tenant's. Empty: a tenant's issuer, whose tokens operate nothing."""
    operator_claim: str = "email"
    """The claim that says who; an address counts when `email_verified` is true."""
    tenant_claim: str = ""
    """The claim that names the tenant; empty: the one tenant whose `jwt_issuer` this is."""
    scopes_claim: str = "scope"
    """The claim that holds the scopes: a list, or words separated by spaces."""
    allowed_scopes: tuple[str, ...] = ("inference", "embeddings", "models.read")
    """What it may grant."""
    refresh_seconds: float = 300.0
    """Pause between two readings of its keys."""
    max_stale_seconds: float = 86_400.0
    """Keys that could not be read again for this long are no longer trusted."""


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What edge-auth needs beside the common settings."""

    pepper_file: str
    """The file with the mesh's pepper, the secret under which keys are hashed; the registry reads the same one."""
    audit_target: str = "xds:///audit.weir.internal"
    """Where the audit service is; empty records no security events (tests only)."""
    security_seconds: float = 60.0
    """How often counted security events are written."""
    issuers: tuple[Issuer, ...] = ()
    """OpenID Connect issuers."""
    leeway_seconds: float = 30.0
    """By how much an issuer's clock may differ from ours."""
    max_credential_bytes: int = 8192
    """Longer credentials are refused unread."""
    good_cache_size: int = 100_000
    """Verified credentials remembered (about 1 kB each) until the registry or the issuers' keys change."""
    good_cache_seconds: float = 300.0
    """The longest that a verified credential is remembered."""
    bad_cache_size: int = 50_000
    """Refused credentials remembered."""
    bad_cache_seconds: float = 10.0
    """How long."""
    jwks_min_interval_seconds: float = 5.0
    """An unknown key id makes the keys be read again, at most this often."""
