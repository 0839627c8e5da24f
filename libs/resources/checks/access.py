"""What role bindings may say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.authority.identity import Identity, Operator
from libs.authority.operators import NAMESPACE_ROLES, OPERATOR, TENANT_ROLES
from libs.resources.checks.bounds import check_count, shown
from libs.resources.checks.faults import Fault, check_name
from libs.resources.kind import Role

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

MAX_BOUNDS = 100
"""Namespaces or tenants of one binding."""
_ROLES = tuple(role.value for role in Role)
_IDENTITY = re.compile(r"key:[a-z0-9]{1,64}|oidc:[a-z0-9][a-z0-9-]{0,62}/[A-Za-z0-9][A-Za-z0-9._@+-]{0,253}")


def check_binding(message: pb.RoleBinding, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a binding. One without roles trusts with nothing."""
    if not (_is_person(message.principal) or _is_workload(message.principal) or _IDENTITY.fullmatch(message.principal)):
        yield Fault(
            "metadata.name",
            "must be 'operator:<name>', 'oidc:<issuer>/<name>', 'key:<id>' or spiffe://weir.internal/sa/<service>",
        )
    yield from _check_roles(message)
    yield from _check_bounds("namespaces", message.namespaces, message.roles, NAMESPACE_ROLES)
    yield from _check_bounds("tenants", message.tenants, message.roles, TENANT_ROLES)
    if message.namespaces and message.tenants:
        yield Fault("spec.tenants", "a binding is kept to namespaces or to tenants, not to both")


def _is_person(principal: str) -> bool:
    try:
        return principal.startswith(OPERATOR) and bool(Operator(principal.removeprefix(OPERATOR)))
    except ValueError:
        return False


def _is_workload(principal: str) -> bool:
    workload = Identity.parse(principal)
    return workload is not None and not workload.instance


def _check_bounds(
    field: str, bounds: Sequence[str], roles: Collection[str], bounded: Collection[Role]
) -> Iterator[Fault]:
    yield from check_count(f"spec.{field}", bounds, MAX_BOUNDS)
    for number, name in enumerate(bounds[:MAX_BOUNDS]):
        yield from check_name(f"spec.{field}[{number}]", name)
    able = {role.value for role in bounded}
    if bounds and (whole := sorted(set(roles) - able)):
        yield Fault(f"spec.{field}", f"the role {whole[0]} cannot be kept to {field}; {', '.join(sorted(able))} can")


def _check_roles(message: pb.RoleBinding) -> Iterator[Fault]:
    if len(set(message.roles)) != len(message.roles):
        yield Fault("spec.roles", "a role appears twice")
    for number, role in enumerate(message.roles):
        if role not in _ROLES:
            yield Fault(f"spec.roles[{number}]", f"{shown(role)} is not one of {', '.join(_ROLES)}")
