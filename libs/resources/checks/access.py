"""What role bindings may say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import check_count, shown
from libs.resources.checks.faults import Fault, check_name
from libs.resources.checks.tenants import WORKLOAD
from libs.resources.kind import Role

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

MAX_NAMESPACES = 100
_ROLES = tuple(role.value for role in Role)
_IDENTITY = re.compile(r"(?:key|tenant):[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126})")


def check_binding(message: pb.RoleBinding, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a binding. One without roles trusts with nothing."""
    if not (WORKLOAD.fullmatch(message.principal) or _IDENTITY.fullmatch(message.principal)):
        yield Fault("metadata.name", "must be 'key:<id>', 'tenant:<id>' or spiffe://weir.internal/sa/<service>")
    yield from _check_roles(message)
    yield from check_count("spec.namespaces", message.namespaces, MAX_NAMESPACES)
    for number, namespace in enumerate(message.namespaces[:MAX_NAMESPACES]):
        yield from check_name(f"spec.namespaces[{number}]", namespace)
    if message.namespaces and Role.OWNER.value in message.roles:
        yield Fault("spec.namespaces", "an owner has everything; it cannot be kept to namespaces")


def _check_roles(message: pb.RoleBinding) -> Iterator[Fault]:
    if len(set(message.roles)) != len(message.roles):
        yield Fault("spec.roles", "a role appears twice")
    for number, role in enumerate(message.roles):
        if role not in _ROLES:
            yield Fault(f"spec.roles[{number}]", f"{shown(role)} is not one of {', '.join(_ROLES)}")
