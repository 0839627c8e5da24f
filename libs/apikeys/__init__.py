"""API keys as pure functions: "wk_<id>_<secret>", of which only HMAC-SHA256(pepper, key) is ever stored.

The id is public (logs, audit, lists); the secret has 192 bits, so a plain keyed hash is enough: there is nothing to
guess offline even with the pepper. The registry makes keys, edge-auth checks them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

PREFIX = "wk"
"""Leads every key, so that secret scanners can find leaked ones."""
SCOPES = frozenset({"inference", "embeddings", "models.read", "usage.read", "admin"})
"""Everything that a key may be allowed."""
PSEUDONYM = "jwt-"
"""Leads what stands for tokens' subjects; no key's id has a dash."""
USER = "user-"
"""Leads what stands for end users whom callers name."""
_PSEUDONYMS = re.compile(f"({PSEUDONYM}|{USER})[0-9a-f]{{16}}")
_ID_BYTES = 8
_SECRET_BYTES = 24
_MIN_PEPPER_BYTES = 16
_FORM = re.compile(r"wk_([a-z0-9]{4,32})_([A-Za-z0-9-]{16,64})")


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key as a caller showed it; well-formed, not yet checked."""

    id: str
    """The public part."""
    text: str
    """The whole key: a secret."""

    def __repr__(self) -> str:
        return f"ParsedKey(id={self.id!r})"


def make(random_bytes: Callable[[int], bytes]) -> ParsedKey:
    """A new key.

    :param random_bytes: n → n unguessable bytes: `secrets.token_bytes`.
    """
    key_id = base64.b32encode(random_bytes(_ID_BYTES)).decode().rstrip("=").lower()
    # URL-safe base64 without "_", which separates the parts: a mapped character costs less than a bit.
    secret = base64.urlsafe_b64encode(random_bytes(_SECRET_BYTES)).decode().replace("_", "A")
    return ParsedKey(key_id, f"{PREFIX}_{key_id}_{secret}")


def parse(text: str) -> ParsedKey | None:
    """The parts of a key; None when it does not have the form of one (nothing about it is logged)."""
    match = _FORM.fullmatch(text)
    return ParsedKey(match[1], text) if match else None


def hash_key(key: ParsedKey, pepper: bytes) -> bytes:
    """What the registry stores: HMAC-SHA256 over the whole key, 32 bytes.

    :raises ValueError: the pepper is shorter than 16 bytes.
    """
    if len(pepper) < _MIN_PEPPER_BYTES:
        raise ValueError(f"the pepper must have at least {_MIN_PEPPER_BYTES} bytes")
    return hmac.new(pepper, key.text.encode(), hashlib.sha256).digest()


def matches(key: ParsedKey, stored_hash: bytes, pepper: bytes) -> bool:
    """Whether the key is the one whose hash is stored, in constant time."""
    return hmac.compare_digest(hash_key(key, pepper), stored_hash)


def pseudonym(issuer: str, subject: str, pepper: bytes) -> str:
    """What stands for the subject of a tenant's token where keys have their ids, "jwt-" and 64 bits: without the pepper
    nobody can tell whether it is a person whom he knows."""
    # No key begins so: what is hashed here is never what is hashed of a key.
    named = f"{PSEUDONYM}\n{issuer}\n{subject}".encode("utf-8", "surrogatepass")
    return PSEUDONYM + hmac.new(pepper, named, hashlib.sha256).hexdigest()[:16]


def decode_pepper(content: bytes) -> bytes:
    """The pepper in a pepper file: its bytes without surrounding white space.

    :raises ValueError: fewer than 16 bytes are left.
    """
    pepper = content.strip()
    if len(pepper) < _MIN_PEPPER_BYTES:
        raise ValueError(f"the pepper must have at least {_MIN_PEPPER_BYTES} bytes")
    return pepper


def user_pseudonym(tenant: str, user: str) -> str:
    """What stands for an end user whom a tenant's caller names, in records: "user-" and 64 bits. Not the word itself,
    which may be an address. Whoever knows a user can find it: so can an operator who is to erase it."""
    named = f"{tenant}\0{user}".encode("utf-8", "surrogatepass")
    return USER + hashlib.blake2b(named, digest_size=8, person=b"weir user").hexdigest()


def recorded_as(tenant: str, subject: str) -> str:
    """How records name an end user: a pseudonym as it is, or that of the user's name."""
    return subject if _PSEUDONYMS.fullmatch(subject) else user_pseudonym(tenant, subject)
