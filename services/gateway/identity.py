"""Who calls: trusted headers from Envoy, or the certificate of an internal workload. Never the request's body."""

from __future__ import annotations

import hashlib
import random
import re
import uuid

import grpc
from msgspec.structs import replace

from libs.errors import Reason, WeirError
from libs.rpc import peer_service, peer_spiffe
from libs.telemetry.tracing import root, traceparent_or_empty
from services.gateway.catalog import Catalog
from services.gateway.policy.spec import Identity, Spec

_LONGEST_HINT = 256
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")


class Caller:
    """One call's identity and context."""

    __slots__ = ("client_request_id", "identity", "remaining", "request_id", "session", "traceparent", "user")

    def __init__(
        self,
        *,
        identity: Identity,
        request_id: str,
        client_request_id: str,
        traceparent: str,
        remaining: float | None,
        user: str = "",
        session: str = "",
    ) -> None:
        self.identity = identity
        self.request_id = request_id
        self.client_request_id = client_request_id
        self.traceparent = traceparent
        self.remaining = remaining
        self.user = user
        self.session = session

    def hinted(self, spec: Spec) -> Spec:
        """The spec with what the headers say of user and session, which goes before what its body says: the edge places
        callers by the headers alone."""
        user, session = bounded(self.user or spec.user), bounded(self.session or spec.session)
        return spec if (user, session) == (spec.user, spec.session) else replace(spec, user=user, session=session)


class Identifier:
    """Makes `Caller`s out of call contexts."""

    def __init__(self, catalog: Catalog, *, tls: bool, sample_ratio: float, rng: random.Random) -> None:
        self._catalog = catalog
        self._tls = tls
        self._ratio = sample_ratio
        self._rng = rng

    def identify(self, context: grpc.aio.ServicerContext, *, scope: str) -> Caller:
        """The caller of this RPC, who must have `scope`.

        Without TLS (tests) headers are trusted, as if every peer were Envoy.

        :raises WeirError: UNAUTHENTICATED for an unknown peer, SCOPE_MISSING.
        """
        headers: dict[str, str] = {
            key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        via_edge = not self._tls or peer_service(context) == "envoy"
        identity = self._from_edge(headers) if via_edge else self._from_workload(context)
        if scope not in identity.scopes:
            raise WeirError(Reason.SCOPE_MISSING, f"this credential lacks the scope {scope!r}", limit="scope")
        given = headers.get("x-request-id", "") if via_edge else ""
        remaining = context.time_remaining()
        return Caller(
            identity=identity,
            request_id=given if _REQUEST_ID.fullmatch(given) else str(uuid.UUID(int=self._rng.getrandbits(128))),
            client_request_id=headers.get("x-client-request-id", "")[:128],
            traceparent=traceparent_or_empty(headers.get("traceparent", "")) or root(self._ratio, self._rng),
            # grpc reports a missing deadline as None, or as a time far beyond any real one.
            remaining=remaining if remaining is not None and remaining < 1e8 else None,
            user=headers.get("x-weir-user", ""),
            session=headers.get("x-weir-session", ""),
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
        tenant = self._catalog.tenant_of_workload(spiffe)
        if not tenant:
            raise WeirError(Reason.UNAUTHENTICATED, f"{spiffe or 'this peer'} is no registered workload")
        return Identity(
            tenant=tenant,
            plan="paid",
            scopes=frozenset(("inference", "embeddings", "models.read")),
            key_id=spiffe,
        )


def bounded(hint: str) -> str:
    """A user or session as it travels through the mesh: one of more than 256 characters by its digest."""
    if len(hint) <= _LONGEST_HINT:
        return hint
    return hashlib.blake2b(hint.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
