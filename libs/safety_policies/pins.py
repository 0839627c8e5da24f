"""Whose policies a request has: the floor's, its tenant's and its model version's, each once, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.kinds import FLOOR
from libs.resources.snapshot import RegistrySnapshot


class Origin(Enum):
    """Who asks for a policy."""

    FLOOR = "floor"
    TENANT = "tenant"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A policy and everybody who asks for it."""

    pin: str
    """ "id@version"."""
    origins: tuple[Origin, ...]


def floor_of(snapshot: RegistrySnapshot) -> tuple[str, ...]:
    """The floor's policies; none while the registry names no floor (the safety service then brings its own)."""
    floor = snapshot.safety_floors.get(FLOOR)
    return tuple(floor.policies) if floor is not None else ()


def pinned(
    floor: Sequence[str], tenant: pb.Tenant | None = None, version: pb.ModelVersion | None = None
) -> tuple[Pinned, ...]:
    """What holds for a request of a tenant to a version, and why; a tenant or version that is None adds nothing."""
    found: dict[str, list[Origin]] = {}
    for origin, pins in (
        (Origin.FLOOR, floor),
        (Origin.TENANT, tenant.safety_policies if tenant is not None else ()),
        (Origin.MODEL, version.safety_policies if version is not None else ()),
    ):
        for pin in pins:
            found.setdefault(pin, []).append(origin)
    return tuple(Pinned(pin, tuple(dict.fromkeys(origins))) for pin, origins in found.items())


def pins_of(floor: Sequence[str], tenant: pb.Tenant, version: pb.ModelVersion) -> tuple[str, ...]:
    """As `pinned`, without the reasons."""
    return tuple(dict.fromkeys((*floor, *tenant.safety_policies, *version.safety_policies)))
