"""Tokens: only what a configured issuer signed for us, with one of three algorithms, passes."""

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.apikeys import pseudonym
from libs.clock import ManualClock
from services.edge_auth.config import Issuer
from services.edge_auth.jwks import KeySets, check_issuers, parse_jwks
from services.edge_auth.tokens import TokenVerifier

ISSUER = "https://login.example"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = ec.generate_private_key(ec.SECP256R1())
PEPPER = b"p" * 32
CLAIMS = {"iss": ISSUER, "aud": "weir", "iat": 1_999_999_940, "exp": 2_000_000_000, "sub": "someone@example.org"}
HEADERS = {"typ": "at+jwt", "kid": "es256"}
TO_JWK: dict[str, Any] = {
    "RS256": jwt.algorithms.RSAAlgorithm.to_jwk,
    "ES256": jwt.algorithms.ECAlgorithm.to_jwk,
    "EdDSA": jwt.algorithms.OKPAlgorithm.to_jwk,
}
KEYS: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def jwk(algorithm: str, private: Any, **extra: str) -> dict[str, Any]:
    return json.loads(TO_JWK[algorithm](private.public_key())) | extra


def document(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


ALL = document(*(jwk(name, key, kid=name.lower()) for name, key in KEYS.items()))


async def verifier(path: Path, content: bytes = ALL, **settings: Any) -> tuple[TokenVerifier, KeySets, Issuer]:
    await asyncio.to_thread(path.write_bytes, content)
    issuer = Issuer(**({"issuer": ISSUER, "audience": "weir", "jwks_file": str(path)} | settings))
    keys = KeySets((issuer,), clock=ManualClock(), min_interval=0, on_change=lambda: None)
    await keys.read(issuer)
    return TokenVerifier((issuer,), keys, leeway=0, pepper=PEPPER), keys, issuer


def token(algorithm: str = "ES256", key: Any = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    chosen = {"typ": "at+jwt", "kid": algorithm.lower()} | (headers or {})
    return jwt.encode(CLAIMS | claims, key or KEYS[algorithm], algorithm=algorithm, headers=chosen)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_each_algorithm_passes(tmp_path: Path, algorithm: str) -> None:
    tokens, _, _ = await verifier(tmp_path / "jwks")
    genuine = tokens.verify(token(algorithm))
    assert genuine is not None
    assert genuine.claims["sub"] == CLAIMS["sub"]
    assert genuine.pseudonym.startswith("jwt-")
    assert "someone" not in genuine.pseudonym


async def test_a10_nobody_without_the_pepper_can_tell_whose_a_pseudonym_is(tmp_path: Path) -> None:
    tokens, _, _ = await verifier(tmp_path / "jwks")
    genuine = tokens.verify(token())
    assert genuine is not None
    assert genuine.pseudonym == pseudonym(ISSUER, CLAIMS["sub"], PEPPER)
    unkeyed = hashlib.sha256(f"{ISSUER}\n{CLAIMS['sub']}".encode()).hexdigest()[:16]
    assert genuine.pseudonym not in (f"jwt-{unkeyed}", pseudonym(ISSUER, CLAIMS["sub"], b"q" * 32))
    assert pseudonym("https://other", CLAIMS["sub"], PEPPER) != genuine.pseudonym


@pytest.mark.parametrize(
    ("types", "typ", "good"),
    [
        (("at+jwt",), "application/at+jwt", True),
        (("at+jwt",), "AT+JWT", True),
        (("JWT", "at+jwt"), "JWT", True),
        (("JWT",), "at+jwt", False),
        (("",), "", True),
    ],
)
async def test_a10_a_token_says_what_it_is_for(tmp_path: Path, types: tuple[str, ...], typ: str, good: bool) -> None:
    tokens, _, _ = await verifier(tmp_path / "jwks", token_types=types)
    assert (tokens.verify(token(headers={"typ": typ})) is not None) == good


@pytest.mark.parametrize(
    "forged",
    [
        token(key=OTHER),
        token(iss="https://elsewhere"),
        token(aud="other"),
        jwt.PyJWS().encode(json.dumps(CLAIMS | {"iss": [ISSUER]}).encode(), EC, algorithm="ES256", headers=HEADERS),
        token(headers={"kid": "unknown"}),
        token(headers={"kid": "rs256"}),
        token(headers={"crit": ["x"], "x": 1}),
        # What is signed for another purpose: who logged in, a back-channel logout, nothing at all.
        token(headers={"typ": "JWT"}),
        token(headers={"typ": "logout+jwt"}),
        token(headers={"typ": None}),
        # Keys that a token brings along are not looked at.
        token(key=OTHER, headers={"jwk": jwk("ES256", OTHER), "jku": "https://elsewhere/jwks"}),
        token(headers={"kid": "../../es256"}),
        token(sub=None),
        token(iat=None),
        jwt.encode({key: value for key, value in CLAIMS.items() if key != "exp"}, EC, "ES256", headers=HEADERS),
        jwt.encode(CLAIMS, "", algorithm="none"),
        "a.b.c",
        "..",
        "é.é.é",
        "e30.e30.e30",
        "[" * 3000 + ".e30.e30",
    ],
)
async def test_forgeries_are_refused(tmp_path: Path, forged: str) -> None:
    tokens, _, _ = await verifier(tmp_path / "jwks")
    assert tokens.verify(forged) is None


async def test_a_public_key_is_not_a_shared_secret(tmp_path: Path) -> None:
    """The classic confusion: HS256 keyed with the public key's own bytes."""
    public = RSA.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    tokens, _, _ = await verifier(tmp_path / "jwks")
    signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "rs256"}, CLAIMS))
    signature = hmac.new(public, signed.encode(), "sha256").digest()
    assert tokens.verify(f"{signed}.{_base64(signature)}") is None


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


async def test_an_issuer_may_be_held_to_fewer_algorithms(tmp_path: Path) -> None:
    tokens, _, _ = await verifier(tmp_path / "jwks", algorithms=("EdDSA",))
    assert tokens.verify(token("ES256")) is None
    assert tokens.verify(token("EdDSA")) is not None


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "jwks"
    path.write_bytes(ALL)
    return path


VALID = {name: token(name) for name in KEYS}


@settings(deadline=None)
@given(algorithm=st.sampled_from(sorted(VALID)), position=st.integers(0, 10_000), replacement=st.integers(1, 63))
async def test_any_mutation_of_a_token_is_refused(
    one_of_each: Path, algorithm: str, position: int, replacement: int
) -> None:
    valid = VALID[algorithm]
    position %= len(valid)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    old = valid[position]
    new = "A" if old == "." else alphabet[(alphabet.index(old) + replacement) % 64]
    mutated = valid[:position] + new + valid[position + 1 :]
    tokens, _, _ = await verifier(one_of_each)
    # The last character of a part may hold bits beyond its last byte: the same token in another spelling.
    if _parts(mutated) != _parts(valid):
        assert tokens.verify(mutated) is None


def _parts(text: str) -> list[bytes]:
    return [
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) if len(part) % 4 != 1 else b"?"
        for part in text.split(".")
    ]


async def test_keys_rotate_and_the_last_good_ones_outlive_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "jwks"
    tokens, keys, issuer = await verifier(path, document(jwk("ES256", EC, kid="old")))
    assert tokens.verify(token(headers={"kid": "old"})) is not None
    path.write_bytes(b"not json")
    await keys.read(issuer)
    assert tokens.verify(token(headers={"kid": "old"})) is not None
    path.write_bytes(document(jwk("ES256", OTHER, kid="new")))
    await keys.read(issuer)
    assert tokens.verify(token(headers={"kid": "old"})) is None
    assert tokens.verify(token(key=OTHER, headers={"kid": "new"})) is not None


async def test_keys_that_cannot_be_read_for_too_long_are_dropped(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "jwks"
    path.write_bytes(ALL)
    issuer = Issuer(issuer=ISSUER, audience="weir", jwks_file=str(path), max_stale_seconds=60)
    changes: list[int] = []
    keys = KeySets((issuer,), clock=clock, min_interval=0, on_change=lambda: changes.append(1))
    await keys.read(issuer)
    path.unlink()
    clock.advance(60)
    await keys.read(issuer)
    assert keys.find(ISSUER, "es256") is not None
    clock.advance(1)
    await keys.read(issuer)
    assert keys.find(ISSUER, "es256") is None
    assert len(changes) == 2


def test_only_keys_that_fit_are_taken() -> None:
    small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    wide = ec.generate_private_key(ec.SECP384R1())
    found = parse_jwks(
        document(
            jwk("ES256", EC, kid="good"),
            jwk("ES256", EC, kid="enc", use="enc"),
            jwk("ES256", EC, kid="alg", alg="ES384"),
            jwk("ES256", wide, kid="curve"),
            jwk("RS256", small, kid="small"),
            {"kty": "oct", "k": "c2VjcmV0", "kid": "oct", "alg": "HS256"},
            {"kty": "EC", "crv": "P-256", "x": "!", "y": "!", "kid": "broken"},
            {"kty": "EC", "kid": 7},
        )
    )
    assert list(found) == ["good"]


async def test_a_token_without_key_id_gets_an_only_key(tmp_path: Path) -> None:
    tokens, _, _ = await verifier(tmp_path / "jwks", document(jwk("ES256", EC, kid="only")))
    bare = jwt.encode(CLAIMS, EC, algorithm="ES256", headers={"typ": "at+jwt"})
    assert tokens.verify(bare) is not None
    tokens, _, _ = await verifier(tmp_path / "jwks")
    assert tokens.verify(bare) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"keys": 1}', b"\xff"])
def test_what_is_no_jwks_document_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|keys"):
        parse_jwks(content)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"jwks_file": "f", "jwks_url": "https://x"},
        {"jwks_url": "http://login.example/jwks"},
        {"jwks_url": "file:///etc/passwd"},
        {"jwks_file": "f", "algorithms": ("HS256",)},
        {"jwks_file": "f", "allowed_scopes": ("inference", "admin")},
        {"jwks_file": "f", "operators": "corp", "tenant_claim": "org"},
        {"jwks_file": "f", "operators": "corp/other"},
    ],
)
def test_untrustworthy_issuers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="issuer"):
        check_issuers([Issuer(issuer=ISSUER, audience="weir", **settings)])


def test_no_issuer_speaks_for_another() -> None:
    people = Issuer(issuer=ISSUER, audience="weir-admin", jwks_file="f", operators="corp")
    for other in (people, Issuer(issuer=ISSUER, audience="weir", jwks_file="f")):
        with pytest.raises(ValueError, match="different"):
            check_issuers([people, other])
    with pytest.raises(ValueError, match="different"):
        check_issuers([people, Issuer(issuer="https://other", audience="weir", jwks_file="f", operators="corp")])
    check_issuers([people, Issuer(issuer="https://other", audience="weir", jwks_file="f", operators="partner")])
