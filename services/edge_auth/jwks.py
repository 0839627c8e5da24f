"""Issuers' public keys: parsed strictly, read in the background, never on the request path.

Source: RFC 7517 (JWK, JWKS), RFC 7518 and RFC 8037 (algorithms).
"""

import asyncio
import contextlib
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from libs.clock import Clock
from libs.paths import ADMIN
from libs.telemetry import get_logger
from services.edge_auth import metrics
from services.edge_auth.config import Issuer

log = get_logger(__name__)
ALGORITHMS = {"RS256": "RSA", "ES256": "EC", "EdDSA": "OKP"}
"""The algorithms that are ever taken, and the key type of each. Symmetric ones and "none" are not among them."""
_NAME = re.compile("[a-z0-9][a-z0-9-]{0,62}")
_CURVES = {"EC": ("P-256",), "OKP": ("Ed25519", "Ed448")}
_MAX_BYTES = 2**20
_MAX_KEYS = 100
_FETCH_SECONDS = 5.0
_MIN_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key and the one algorithm it is used with."""

    algorithm: str
    key: object = field(repr=False)


def parse_jwks(content: bytes) -> dict[str, VerifyingKey]:
    """The usable keys by key id ("" for one without); keys that are not for our algorithms are left out.

    :raises ValueError: not a JWKS document.
    """
    try:
        document = msgspec.json.decode(content, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ValueError("not a JSON object") from error
    entries = document.get("keys")
    if not isinstance(entries, list):
        raise ValueError('no list of "keys"')
    found: dict[str, VerifyingKey] = {}
    for entry in entries[:_MAX_KEYS]:
        if isinstance(entry, dict) and (parsed := _parse(entry)) is not None:
            key_id = entry.get("kid", "")
            if isinstance(key_id, str):
                found[key_id] = parsed
    return found


def _parse(entry: dict[str, object]) -> VerifyingKey | None:
    kind = entry.get("kty")
    algorithm = next((name for name, needed in ALGORITHMS.items() if needed == kind), None)
    if algorithm is None or entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    if entry.get("crv") not in _CURVES.get(str(kind), (None,)):
        return None
    try:
        key = jwt.PyJWK(entry, algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        return None
    return VerifyingKey(algorithm, key)


class KeySets:
    """The keys of all issuers. Reading them is a dictionary look-up; `run` keeps them fresh."""

    def __init__(
        self, issuers: tuple[Issuer, ...], *, clock: Clock, min_interval: float, on_change: Callable[[], None]
    ) -> None:
        """:param on_change: called in the event loop when an issuer's keys have changed."""
        self._issuers = issuers
        self._clock = clock
        self._min_interval = min_interval
        self._on_change = on_change
        self._keys: dict[str, Mapping[str, VerifyingKey]] = {issuer.issuer: {} for issuer in issuers}
        self._content: dict[str, bytes] = {}
        self._read_at: dict[str, float] = {}
        self._wanted = {issuer.issuer: asyncio.Event() for issuer in issuers}

    def find(self, issuer: str, key_id: str) -> VerifyingKey | None:
        """The key; None when it is not known, in which case the issuer's keys are read again soon.

        A token without a key id gets the issuer's only key, if it has exactly one.
        """
        keys = self._keys.get(issuer, {})
        found = keys.get(key_id)
        if found is None and not key_id and len(keys) == 1:
            found = next(iter(keys.values()))
        if found is None and issuer in self._wanted:
            self._wanted[issuer].set()
        return found

    async def run(self) -> None:
        """Reads every issuer's keys now, again and again, and when a key was missed; until cancelled."""
        async with asyncio.TaskGroup() as group:
            for issuer in self._issuers:
                group.create_task(self._keep(issuer), name=f"jwks {issuer.issuer}")

    async def _keep(self, issuer: Issuer) -> None:
        wanted = self._wanted[issuer.issuer]
        while True:
            wanted.clear()
            await self.read(issuer)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wanted.wait(), issuer.refresh_seconds)
                await asyncio.sleep(self._min_interval)

    async def read(self, issuer: Issuer) -> None:
        """Reads one issuer's keys once; on failure the last good ones stay until they are too old."""
        now = self._clock.monotonic()
        try:
            content = await asyncio.to_thread(_load, issuer)
            keys = parse_jwks(content)
        except (OSError, ValueError) as error:
            metrics.JWKS_READS.labels("failed").inc()
            log.warning("jwks_not_read", issuer=issuer.issuer, error=type(error).__name__)
            if now - self._read_at.get(issuer.issuer, now) > issuer.max_stale_seconds:
                self._put(issuer.issuer, b"", {})
            return
        metrics.JWKS_READS.labels("ok").inc()
        self._read_at[issuer.issuer] = now
        self._put(issuer.issuer, content, keys)

    def _put(self, issuer: str, content: bytes, keys: Mapping[str, VerifyingKey]) -> None:
        if self._content.get(issuer) == content:
            return
        self._content[issuer] = content
        self._keys[issuer] = keys
        metrics.JWKS_KEYS.set(sum(len(found) for found in self._keys.values()))
        log.info("jwks_changed", issuer=issuer, keys=len(keys))
        self._on_change()


def check_issuers(issuers: Sequence[Issuer]) -> None:
    """Refuses issuers of whom one could speak for another, or whose keys could not be read or not be trusted.

    :raises ValueError: two with the same `iss` or the same name for people; one that gives what roles give; not exactly
        one source, a URL that is neither https nor loopback, or an unknown algorithm.
    """
    for names in ([each.issuer for each in issuers], [each.operators for each in issuers if each.operators]):
        if len(set(names)) < len(names):
            raise ValueError(f"issuers: {', '.join(names)} are not all different")
    for issuer in issuers:
        _check(issuer)


def _check(issuer: Issuer) -> None:
    if ADMIN in issuer.allowed_scopes:
        raise ValueError(f"issuer {issuer.issuer}: nobody gives the scope {ADMIN!r}; operators' issuers name people")
    if issuer.operators and (issuer.tenant_claim or not _NAME.fullmatch(issuer.operators)):
        raise ValueError(f"issuer {issuer.issuer}: operators is a short name, and leaves no tenant to a claim")
    if bool(issuer.jwks_file) == bool(issuer.jwks_url):
        raise ValueError(f"issuer {issuer.issuer}: name one of jwks_file and jwks_url")
    if not set(issuer.algorithms) <= ALGORITHMS.keys():
        raise ValueError(f"issuer {issuer.issuer}: only {', '.join(ALGORITHMS)} are taken")
    url = urllib.parse.urlsplit(issuer.jwks_url)
    loopback = url.hostname in ("127.0.0.1", "::1", "localhost")
    if issuer.jwks_url and url.scheme != "https" and not (url.scheme == "http" and loopback):
        raise ValueError(f"issuer {issuer.issuer}: jwks_url must be https")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead from https to anywhere."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def _load(issuer: Issuer) -> bytes:
    if issuer.jwks_file:
        return Path(issuer.jwks_file).read_bytes()
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(issuer.jwks_url, timeout=_FETCH_SECONDS) as response:
        content: bytes = response.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError("the document is too long")
    return content
