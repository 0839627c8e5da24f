"""OIDC tokens: signature, issuer and audience. What their claims are worth is `policy.credentials.judge_claims`."""

from collections.abc import Mapping
from dataclasses import dataclass

import jwt

from libs import apikeys
from services.edge_auth.config import Issuer
from services.edge_auth.jwks import KeySets
from services.edge_auth.policy.credentials import IssuerRules

# Times are policy's business, with our clock; everything else is PyJWT's.
_OPTIONS: dict[str, object] = {
    "require": ["exp", "iat", "iss", "aud", "sub"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


@dataclass(frozen=True, slots=True)
class Genuine:
    """A token that its issuer signed for us."""

    claims: Mapping[str, object]
    rules: IssuerRules
    pseudonym: str
    """Stands for issuer and subject without naming a person."""


class TokenVerifier:
    """Checks tokens of the configured issuers."""

    def __init__(self, issuers: tuple[Issuer, ...], keys: KeySets, *, leeway: float, pepper: bytes) -> None:
        """:param pepper: keys the pseudonyms."""
        self._keys = keys
        self._pepper = pepper
        self._issuers = {issuer.issuer: issuer for issuer in issuers}
        self._rules = {
            issuer.issuer: IssuerRules(
                issuer=issuer.issuer,
                tenant_claim=issuer.tenant_claim,
                scopes_claim=issuer.scopes_claim,
                allowed_scopes=frozenset(issuer.allowed_scopes),
                leeway=leeway,
                max_life=issuer.max_life_seconds,
                operators=issuer.operators,
                operator_claim=issuer.operator_claim,
            )
            for issuer in issuers
        }

    def verify(self, token: str) -> Genuine | None:
        """The token's claims, if an issuer of ours signed it for our audience; else None, whatever is wrong with it."""
        try:
            header = jwt.get_unverified_header(token)
            unverified = jwt.decode(token, options={"verify_signature": False})
            issuer = self._issuers.get(unverified.get("iss", ""))
            algorithm, key_id = header.get("alg"), header.get("kid", "")
            # "crit" names extensions that must be understood; we understand none (RFC 7515, section 4.1.11).
            if issuer is None or algorithm not in issuer.algorithms or "crit" in header:
                return None
            if _type_of(header) not in issuer.token_types:
                return None
            key = self._keys.find(issuer.issuer, key_id)
            # The key decides on the algorithm, not the token.
            if key is None or key.algorithm != algorithm:
                return None
            claims = jwt.decode(
                token,
                key=key.key,  # type: ignore[arg-type]
                algorithms=[key.algorithm],
                audience=issuer.audience,
                issuer=issuer.issuer,
                options=_OPTIONS,  # type: ignore[arg-type]
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            # Foreign input in every shape: PyJWT lets some of its own parsing errors through.
            return None
        return Genuine(
            claims, self._rules[issuer.issuer], apikeys.pseudonym(issuer.issuer, claims["sub"], self._pepper)
        )


def _type_of(header: Mapping[str, object]) -> str:
    """The token's `typ`, in one spelling (RFC 7515, section 4.1.9: case and a leading "application/" say nothing); ""
    for none."""
    named = header.get("typ", "")
    if not isinstance(named, str):
        raise TypeError("typ is text")
    folded = named.lower().removeprefix("application/")
    return "JWT" if folded == "jwt" else folded
