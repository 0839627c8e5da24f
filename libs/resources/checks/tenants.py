"""What tenants, their limits and their keys may say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from weir.registry.v1 import registry_pb2 as pb

from libs.authority.identity import Identity
from libs.resources.checks.bounds import (
    DAY,
    MAX_MICROUSD,
    MAX_PER_MINUTE,
    MAX_WEIGHT,
    NANOSECOND,
    UP_TO_A_DAY,
    Span,
    check_count,
    check_duration,
    check_enum,
    check_range,
    check_required,
    shown,
)
from libs.resources.checks.faults import Fault, check_id, check_text
from libs.resources.checks.safety import check_pins

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

RESERVED = frozenset({"shadow"})
"""Tenants that no caller can be; see `libs.rollouts.SHADOW_TENANT`."""
_MAX_WORKLOADS = 100
_MAX_GRANTED = 1000
_SUBJECT = re.compile(r"all|(?:tenant|plan):.+")
_TTL = Span(NANOSECOND, 3650 * DAY, "positive and at most ten years")
_WINDOW = Span(1.0, 31 * DAY, "between a second and 31 days")
_MAX_ZONE = 64
_MAX_REGIONS = 64
# Neither "../etc/passwd" nor "localtime" nor "right/UTC": what it means must not depend on the machine.
_ZONE = re.compile(r"[A-Z][A-Za-z0-9_+-]*(?:/[A-Z][A-Za-z0-9_+-]*){0,2}")


_last: list[Any] = [None, {}]
"""The collection that `_owners` last looked at, and what it found: it asks the same of it for each tenant."""


def check_tenant(message: pb.Tenant, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a tenant."""
    yield from check_id("metadata.name", message.id)
    if message.workloads or message.jwt_issuer:
        yield from _check_reserved("metadata.name", message.id)
    yield from check_text("spec.display_name", message.display_name, 200)
    if message.plan not in (pb.PLAN_FREE, pb.PLAN_PAID):
        yield Fault("spec.plan", "must be free or paid")
    yield from check_range("spec.weight", message, 0, MAX_WEIGHT)
    yield from check_pins(message.safety_policies)
    yield from check_enum("spec.safety_fail_mode", message)
    yield from check_duration("spec.max_deadline", message, UP_TO_A_DAY)
    if message.jwt_issuer and not _is_url(message.jwt_issuer):
        yield Fault("spec.jwt_issuer", "must be an http or https URL")
    if message.time_zone and not _is_zone(message.time_zone):
        yield Fault("spec.time_zone", f"no IANA time zone {shown(message.time_zone)}; one is 'Europe/Berlin'")
    yield from check_count("spec.allowed_regions", message.allowed_regions, _MAX_REGIONS)
    for number, region in enumerate(message.allowed_regions[:_MAX_REGIONS]):
        yield from check_id(f"spec.allowed_regions[{number}]", region)
    yield from _check_workloads(message, snapshot)


def _check_workloads(message: pb.Tenant, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    yield from check_count("spec.workloads", message.workloads, _MAX_WORKLOADS)
    workloads = message.workloads[:_MAX_WORKLOADS]
    if len(set(workloads)) != len(workloads):
        yield Fault("spec.workloads", "a workload appears twice")
    owners = _owners(snapshot) if workloads else {}
    for number, workload in enumerate(workloads):
        field = f"spec.workloads[{number}]"
        if (identity := Identity.parse(workload)) is None or identity.instance:
            # A process of the mesh acts for every tenant; it cannot be one's own.
            yield Fault(field, "must be a SPIFFE id such as spiffe://weir.internal/sa/demo-client")
        for other in owners.get(workload, ()):
            # It could not be told which of the two it acts as.
            if other != message.id:
                yield Fault(field, f"the workload belongs to tenant {other!r}")
                break


def _owners(snapshot: RegistrySnapshot) -> Mapping[str, Sequence[str]]:
    """Who claims each workload; made once for all tenants of a change."""
    if _last[0] is not snapshot.tenants:
        made: dict[str, list[str]] = {}
        for tenant in snapshot.tenants.values():
            for workload in tenant.workloads:
                made.setdefault(workload, []).append(tenant.id)
        _last[:] = [snapshot.tenants, made]
    owners: Mapping[str, Sequence[str]] = _last[1]
    return owners


def check_limits(message: pb.Limits, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of limits."""
    yield from check_range("spec.requests_per_minute", message, 0, MAX_PER_MINUTE)
    yield from check_range("spec.tokens_per_minute", message, 0, MAX_PER_MINUTE)
    yield from check_range("spec.rows_per_minute", message, 0, MAX_PER_MINUTE)
    yield from check_range("spec.spend_microusd", message, 0, MAX_MICROUSD)
    yield from check_duration("spec.spend_window", message, _WINDOW)


def check_model_grant(message: pb.ModelGrant, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a model grant. Namespaces need no model yet; tenants, plans and models must be there."""
    if not _SUBJECT.fullmatch(message.subject):
        yield Fault("metadata.name", "must be 'tenant:<id>', 'plan:<id>' or 'all'")
    for name in ("namespaces", "models", "pinned_namespaces"):
        field, given = f"spec.{name}", getattr(message, name)
        yield from check_count(field, given, _MAX_GRANTED)
        if len(set(given)) != len(given):
            yield Fault(field, "one appears twice")
        for number, each in enumerate(given[:_MAX_GRANTED]):
            at = f"{field}[{number}]"
            yield from check_required(at, each) if name == "models" else check_id(at, each)
    if not (message.namespaces or message.models or message.pinned_namespaces):
        yield Fault("spec", "a grant gives something; delete it to give nothing")


def check_budget(message: pb.Budget, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a budget."""
    yield from check_range("spec.monthly_microusd", message, 0, MAX_MICROUSD)
    yield from check_range("spec.daily_microusd", message, 0, message.monthly_microusd or MAX_MICROUSD)
    if not (message.monthly_microusd or message.daily_microusd):
        yield Fault("spec", "a budget has monthly_microusd, daily_microusd or both")
    yield from check_enum("spec.enforcement", message)
    yield from check_count("spec.alert_percent", message.alert_percent, 10)
    if not all(low < high <= 1000 for low, high in pairwise((0, *message.alert_percent[:10]))):
        yield Fault("spec.alert_percent", "must grow, from 1 to 1000 percent at most")


def check_key(request: pb.CreateKeyRequest, scopes: Collection[str]) -> Iterator[Fault]:
    """Every fault of a key that is asked for.

    :param scopes: that there are.
    """
    yield from check_required("tenant", request.tenant)
    yield from _check_reserved("tenant", request.tenant)
    if not request.scopes:
        yield Fault("scopes", "at least one scope is needed")
    if len(set(request.scopes)) != len(request.scopes):
        yield Fault("scopes", "a scope appears twice")
    for number, scope in enumerate(request.scopes):
        if scope not in scopes:
            yield Fault(f"scopes[{number}]", f"{shown(scope)} is not one of {', '.join(sorted(scopes))}")
    yield from check_duration("ttl", request, _TTL)
    yield from check_text("note", request.note, 200)


def _check_reserved(field: str, tenant: str) -> Iterator[Fault]:
    if tenant in RESERVED:
        yield Fault(field, f"nobody can be the tenant {tenant!r}: mirrored requests run in its name")


def _is_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and value.isprintable() and " " not in value


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if len(name) > _MAX_ZONE or not _ZONE.fullmatch(name):
        return False
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # Also where there is only a folder of that name, or a file that is no zone.
        return False
    return True
