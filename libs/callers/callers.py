"""Who calls: trusted headers from Envoy, or the certificate of an internal workload. Never the request's body."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Mapping

import grpc
import msgspec

from libs.errors import Reason, WeirError
from libs.rpc import peer_service, peer_spiffe
from libs.telemetry.tracing import root, traceparent_or_empty

_LONGEST_HINT = 256
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks; from authentication alone."""

    tenant: str
    plan: str = "free"
    scopes: frozenset[str] = frozenset()
    key_id: str = ""
    request_counted: bool = False
    """The edge has taken this request from requests per minute, and tells the client its limits."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """One call's identity and context."""

    identity: Identity
    request_id: str
    client_request_id: str
    traceparent: str
    remaining: float | None
    """Seconds; None when the caller named none."""
    user: str = ""
    session: str = ""
    last_event_id: str = ""
    """Of the event behind which a stream is to go on: `Last-Event-ID`."""
    idempotency_key: str = ""
    told: Mapping[str, str] = {}
    """What the edge said, by lower-case name; nothing of a call that did not come through it."""

    def edge(self, now: float) -> float:
        """Seconds since the edge had the request, by its clock and by ours, which says `now` (Unix seconds); 0 where it
        does not say: "t=1700000000.123"."""
        try:
            return max(0.0, now - float(self.told["x-request-start"].removeprefix("t=")))
        except (KeyError, ValueError):
            return 0.0


class Identifier:
    """Makes `Caller`s out of call contexts."""

    def __init__(
        self,
        tenant_of: Callable[[str], str],
        *,
        tls: bool,
        sample_ratio: float,
        rng: random.Random,
        fronts: frozenset[str] = frozenset({"envoy"}),
    ) -> None:
        """`tenant_of` gives the tenant that a workload acts as, by its SPIFFE id; empty for one that is unknown. The
        `fronts` are the services whose headers say who calls."""
        self._tenant_of = tenant_of
        self._tls = tls
        self._ratio = sample_ratio
        self._rng = rng
        self._fronts = fronts

    def identify(self, context: grpc.aio.ServicerContext, *, scope: str) -> Caller:
        """The caller of this RPC, who must have `scope`.

        Without TLS (tests) headers are trusted, as if every peer were Envoy.

        :raises WeirError: UNAUTHENTICATED for an unknown peer, SCOPE_MISSING.
        """
        headers: dict[str, str] = {
            key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        via_edge = not self._tls or peer_service(context) in self._fronts
        identity = self._from_edge(headers) if via_edge else self._from_workload(context)
        if scope not in identity.scopes:
            raise WeirError(Reason.SCOPE_MISSING, f"this credential lacks the scope {scope!r}", limit="scope")
        given = headers.get("x-request-id", "") if via_edge else ""
        remaining = context.time_remaining()
        return Caller(
            identity=identity,
            request_id=given if _REQUEST_ID.fullmatch(given) else _uuid(self._rng.getrandbits(128)),
            client_request_id=headers.get("x-client-request-id", "")[:128],
            traceparent=traceparent_or_empty(headers.get("traceparent", "")) or root(self._ratio, self._rng),
            # grpc reports a missing deadline as None, or as a time far beyond any real one.
            remaining=remaining if remaining is not None and remaining < 1e8 else None,
            user=headers.get("x-weir-user", ""),
            session=headers.get("x-weir-session", ""),
            last_event_id=headers.get("last-event-id", ""),
            idempotency_key=headers.get("idempotency-key", ""),
            told=headers if via_edge else {},
        )

    def _from_edge(self, headers: dict[str, str]) -> Identity:
        tenant = headers.get("x-weir-tenant", "")
        if not tenant:
            raise WeirError(Reason.UNAUTHENTICATED, "the edge named no tenant")
        return Identity(
            tenant=tenant,
            plan=headers.get("x-weir-plan", "free"),
            scopes=frozenset(headers.get("x-weir-scopes", "").replace(",", " ").split()),
            key_id=headers.get("x-weir-key-id", ""),
            # Not simply "via Envoy": the edge lets requests through uncounted while the rate limiter is away.
            request_counted=headers.get("x-weir-request-counted", "") == "1",
        )

    def _from_workload(self, context: grpc.aio.ServicerContext) -> Identity:
        spiffe = peer_spiffe(context)
        tenant = self._tenant_of(spiffe)
        if not tenant:
            raise WeirError(Reason.UNAUTHENTICATED, f"{spiffe or 'this peer'} is no registered workload")
        return Identity(
            tenant=tenant,
            plan="paid",
            scopes=frozenset(("inference", "embeddings", "models.read")),
            key_id=spiffe,
        )


def _uuid(bits: int) -> str:
    """As `uuid.UUID(int=bits)` writes itself, at a fifth of the cost."""
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def bounded(hint: str) -> str:
    """A user or session as it travels through the mesh: one of more than 256 characters by its digest."""
    if len(hint) <= _LONGEST_HINT:
        return hint
    return hashlib.blake2b(hint.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
