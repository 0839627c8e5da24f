"""Whom the registry trusts with what, for services that operators call. The decision is libs.authority.operators."""

from __future__ import annotations

from collections.abc import Collection

import grpc

from libs.authority.operators import Caller, Grant, Refused, authorize, binding_of, parse_scopes
from libs.errors import Reason, WeirError
from libs.resources.kind import Kind, Role
from libs.resources.snapshot import RegistrySnapshot
from libs.rpc import get_metadata, peer_service, peer_spiffe


def caller_of(context: grpc.aio.ServicerContext) -> Caller:
    """What a call tells of who makes it."""
    return Caller(
        peer=peer_service(context),
        spiffe=peer_spiffe(context),
        scopes=parse_scopes(get_metadata(context, "x-weir-scopes")),
        key_id=get_metadata(context, "x-weir-key-id"),
    )


def owners_of(snapshot: RegistrySnapshot) -> list[str]:
    """Principals with the role owner."""
    return [name for name, binding in snapshot.roles.items() if Role.OWNER.value in binding.roles]


def decide(
    call: str,
    caller: Caller,
    snapshot: RegistrySnapshot,
    *,
    kinds: Collection[Kind] = (),
    secrets: bool = False,
    owners: Collection[str] = (),
    tls: bool,
) -> Grant | Refused:
    """`authorize` by a snapshot's bindings.

    :param owners: owners as long as the registry, once it is known, has none.
    """
    bound = snapshot.roles.get(caller.principal)
    return authorize(
        call,
        caller,
        kinds=kinds,
        secrets=secrets,
        bound=binding_of(bound.roles, bound.namespaces, bound.tenants) if bound is not None else None,
        owners=owners if snapshot.revision and not owners_of(snapshot) else (),
        tls=tls,
    )


def refusal(refused: Refused) -> WeirError:
    """What a refused caller is told."""
    return WeirError(Reason.SCOPE_MISSING if refused.scope_missing else Reason.PERMISSION_DENIED, refused.message)


def require_role(call: str, context: grpc.aio.ServicerContext, snapshot: RegistrySnapshot, *, tls: bool) -> Grant:
    """Who calls, if a role of its suffices. Without TLS (tests) everyone passes.

    :param call: as the table in libs.authority.operators names it, "audit.Tail".
    :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED; DEPENDENCY_UNAVAILABLE while the registry is not known.
    """
    if tls and not snapshot.revision:
        raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "who has which role is not known here yet", retry_after=1.0)
    grant = decide(call, caller_of(context), snapshot, tls=tls)
    if isinstance(grant, Refused):
        raise refusal(grant)
    return grant
