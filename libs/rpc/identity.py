"""Who is on the other side of a connection: the SPIFFE id in its certificate (libs.authority.identity)."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple

import grpc

from libs.authority.identity import PERSON, Identity, Operator
from libs.errors import Reason, WeirError

MayCall = Callable[[str, str], bool]
"""Whether a method ("/weir.audit.v1.AuditService/Tail") may be called by a service, or a `PERSON`, or nobody ("")."""


class _Peer(NamedTuple):
    """What the connection of a call says of its other end."""

    context: grpc.aio.ServicerContext
    tls: bool
    spiffe: str


_last: ContextVar[_Peer | None] = ContextVar("weir.peer", default=None)
"""Of this task's call. gRPC makes a dictionary with the whole certificate in it each time that it is asked (12 µs), and
several layers of a call ask."""


def peer_spiffe(context: grpc.aio.ServicerContext) -> str:
    """The caller's SPIFFE id; empty on a plaintext connection, and for a certificate that has not exactly one URI
    (X.509-SVID, section 2)."""
    return _peer(context).spiffe


def peer_identity(context: grpc.aio.ServicerContext) -> Identity | None:
    """The workload that calls; None on a plaintext connection, for a person and for a foreign trust domain."""
    return Identity.parse(peer_spiffe(context))


def peer_service(context: grpc.aio.ServicerContext) -> str:
    """The caller's service name, such as "gateway"; empty where `peer_identity` is None."""
    identity = peer_identity(context)
    return identity.service if identity else ""


def require_caller(context: grpc.aio.ServicerContext, method: str, may: MayCall) -> None:
    """Lets nobody pass that may not call a method. Without TLS (tests) everyone passes.

    :raises WeirError: PERMISSION_DENIED.
    """
    if not _over_tls(context):
        return
    spiffe = peer_spiffe(context)
    workload = Identity.parse(spiffe)
    caller = workload.service if workload else PERSON if Operator.parse(spiffe) else ""
    if not may(method, caller):
        raise WeirError(Reason.PERMISSION_DENIED, f"{caller or 'an unidentified peer'} may not call this")


def _over_tls(context: grpc.aio.ServicerContext) -> bool:
    return _peer(context).tls


def _peer(context: grpc.aio.ServicerContext) -> _Peer:
    peer = _last.get()
    if peer is None or peer.context is not context:
        said = context.auth_context()
        uris = said.get("peer_uri", ())
        spiffe = uris[0].decode(errors="replace") if len(uris) == 1 else ""
        peer = _Peer(context, b"ssl" in said.get("transport_security_type", ()), spiffe)
        _last.set(peer)
    return peer


def require_own(context: grpc.aio.ServicerContext, **claimed: str) -> None:
    """Holds a process of the mesh to its certificate: the service, instance, pool or zone that it says it is. Without
    TLS (tests) everyone is believed.

    :raises WeirError: PERMISSION_DENIED naming the field.
    """
    if not _over_tls(context):
        return
    identity = peer_identity(context)
    if identity is None or not identity.instance:
        raise WeirError(Reason.PERMISSION_DENIED, "this peer's certificate is of no process of the mesh")
    if field := identity.differs(**claimed):
        raise WeirError(
            Reason.PERMISSION_DENIED, f"{field} {claimed[field]!r} is not what the certificate says", limit=field
        )
