"""Who is on the other side of a connection: the SPIFFE id in its certificate.

Source: SPIFFE X.509-SVID (https://github.com/spiffe/spiffe), URI SAN `spiffe://weir.internal/sa/<service>`.
"""

from __future__ import annotations

from collections.abc import Container

import grpc

from libs.errors import Reason, WeirError

TRUST_DOMAIN = "weir.internal"
_PREFIX = f"spiffe://{TRUST_DOMAIN}/sa/"


def peer_spiffe(context: grpc.aio.ServicerContext) -> str:
    """The caller's SPIFFE id; empty on a plaintext connection."""
    for name in context.auth_context().get("x509_subject_alternative_name", ()):
        if name.startswith(b"spiffe://"):
            return name.decode()
    return ""


def peer_service(context: grpc.aio.ServicerContext) -> str:
    """The caller's service name, such as "gateway"; empty on a plaintext connection or a foreign trust domain."""
    spiffe = peer_spiffe(context)
    return spiffe[len(_PREFIX) :] if spiffe.startswith(_PREFIX) else ""


def require_peer(context: grpc.aio.ServicerContext, allowed: Container[str], *, tls: bool) -> str:
    """The caller's service name, if it is one of `allowed`. Without TLS (tests) everyone passes as "".

    :raises WeirError: PERMISSION_DENIED for anybody else.
    """
    if not tls:
        return ""
    service = peer_service(context)
    if service not in allowed:
        raise WeirError(Reason.PERMISSION_DENIED, f"{service or 'an unidentified peer'} may not call this")
    return service
