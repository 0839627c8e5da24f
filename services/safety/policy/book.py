"""The packs in force, and which of them a request falls under."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from libs.safety_filter import Pack


def _nothing() -> Mapping[str, Pack]:
    return MappingProxyType({})


class UnknownPolicyError(LookupError):
    """A request names a policy that no good pack stands for; serving it unfiltered is not an option."""


@dataclass(frozen=True, slots=True)
class PolicyBook:
    """Packs by policy id; immutable, replaced as a whole."""

    default: str
    shipped: Mapping[str, Pack]
    registered: Mapping[str, Pack] = field(default_factory=_nothing)
    tenants: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Tenant id → the policy it names, if it names one."""

    def pack_for(self, tenant: str, policy: str) -> Pack:
        """Return the pack for a request: the policy it names, else its tenant's, else the default.

        Raises:
            UnknownPolicyError: there is no such pack.
        """
        name = policy or self.tenants.get(tenant) or self.default
        pack = self.registered.get(name) or self.shipped.get(name)
        if pack is None:
            raise UnknownPolicyError(name)
        return pack
