"""A rollout as requests meet it: who takes part, which arm is whose, and what is answered a second time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest

from libs.registry import RegistrySnapshot
from libs.rollouts import SHADOW_TENANT, StickyBy, arms_of, in_force, mirrored_share, sticky_by
from libs.routing.assignment import Layout, Target, bucket_of

BUCKETS = 10_000
"""Buckets of every rollout, and of every alias as Envoy sees it: one is a basis point."""


@dataclass(frozen=True, slots=True)
class Split:
    """An alias's rollout that is in force."""

    rollout_id: str
    step: int
    sticky: StickyBy
    layout: Layout
    """In basis points; the baseline has all of them unless users meet the arms."""
    only: frozenset[str] | None
    """Tenants within the blast radius; None: all but `never`."""
    never: frozenset[str]
    """Tenants outside of it; also the one in whose name mirrored requests run."""
    shadows: tuple[Target, ...] = ()
    """Arms that answer mirrored requests; their weights are meaningless."""
    shadow_share: int = 0
    """Share of requests that are mirrored, basis points."""
    chosen_from: frozenset[str] | None = None
    """The registered tenants that `only` was chosen from by hash; None when it was not chosen so."""

    @property
    def versions(self) -> Iterator[str]:
        """Those of the baseline and of every arm."""
        return (target.model_version for target in self.layout.targets)

    @property
    def baseline(self) -> Target:
        """What everybody gets who meets no other arm."""
        return self.layout.baseline

    def includes(self, tenant: str) -> bool:
        """The tenant is within the blast radius."""
        return tenant not in self.never and (self.only is None or tenant in self.only)

    def mirrored(self, request_id: str) -> Target | None:
        """The arm that shall answer this request, too; the same one whenever it is asked. None without an id."""
        if not self.shadows or not request_id:
            return None
        drawn = bucket_of(self.rollout_id, f"mirror\0{request_id}", BUCKETS * len(self.shadows))
        share, which = divmod(drawn, len(self.shadows))
        return self.shadows[which] if share < self.shadow_share else None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a caller stands under an alias."""

    target: Target
    """The version and arm that are the caller's."""
    bucket: int
    """In 0 … 9999: the target owns it, unless the target owns none (a caller outside the blast radius of a rollout
    whose baseline has no share left)."""
    rollout_id: str = ""
    """The rollout that placed the caller; empty outside rollouts and for callers outside the blast radius."""


def place(split: Split, tenant: str, user: str = "", session: str = "") -> Placement:
    """Where a caller stands in a rollout: a function of the rollout and the caller alone, so that router, gateways and
    edge agree without talking.

    Users and sessions are a tenant's own: two tenants' users of one name are two callers.
    """
    if not split.includes(tenant):
        return outside(split)
    bucket = bucket_of(split.rollout_id, sticky_key(split.sticky, tenant, user, session), BUCKETS)
    return Placement(split.layout.at(bucket), bucket, split.rollout_id)


def outside(split: Split) -> Placement:
    """Where callers stand who take no part in the rollout."""
    baseline = split.baseline
    return Placement(Target(baseline.model_version, baseline.weight), split.layout.own(baseline) or 0)


def sticky_key(sticky: StickyBy, tenant: str, user: str, session: str) -> str:
    """What a caller keeps its arm by: session, else user, else tenant, as far as the rollout wants it."""
    if sticky is StickyBy.TENANT:
        return tenant
    if session and sticky is StickyBy.SESSION:
        return f"{tenant}\0session\0{session}"
    return f"{tenant}\0user\0{user}" if user else tenant


def split_of(snapshot: RegistrySnapshot, alias: str, tenants: frozenset[str], before: Split | None) -> Split | None:
    """The alias's rollout as requests meet it now; None when none is in force.

    :param tenants: the ids of registered tenants.
    :param before: an earlier result for this alias: the choice among the same tenants is not made again.
    """
    rollout = in_force(snapshot, alias)
    if rollout is None:
        return None
    arms = [Target(arm.model_version, arm.weight, arm.name) for arm in arms_of(rollout)]
    if arms[0].weight < 0:
        # The registry lets no such rollout in; whoever wrote it past the registry gets what is proven.
        return None
    share = mirrored_share(rollout)
    radius = rollout.blast_radius
    never = frozenset((*radius.except_tenants, SHADOW_TENANT))
    only = frozenset(radius.only_tenants) if radius.only_tenants else None
    chosen_from = None
    if radius.max_tenants:
        chosen_from = (tenants if only is None else tenants & only) - never
        only = _chosen(rollout.id, chosen_from, radius.max_tenants, before)
    return Split(
        rollout_id=rollout.id,
        step=rollout.state.step,
        sticky=sticky_by(rollout),
        layout=Layout.of(arms[0], arms[1:]),
        only=only,
        never=never,
        shadows=tuple(arms[1:]) if share else (),
        shadow_share=share,
        chosen_from=chosen_from,
    )


def _chosen(rollout_id: str, tenants: frozenset[str], most: int, before: Split | None) -> frozenset[str]:
    """As `choose_tenants`, but of an earlier choice only its members and newcomers are drawn again: whoever was not
    chosen then has a greater hash than all who were."""
    if before is not None and before.rollout_id == rollout_id and before.only is not None:
        known = before.chosen_from or frozenset()
        if len(before.only) == min(most, len(known)) and before.only <= tenants:
            newcomers = tenants - known
            return choose_tenants(rollout_id, before.only | newcomers, most) if newcomers else before.only
    return choose_tenants(rollout_id, tenants, most)


def choose_tenants(rollout_id: str, tenants: Iterable[str], most: int) -> frozenset[str]:
    """At most `most` of the tenants: those with the least hash under the rollout's id.

    A tenant that is registered later takes a place only if its hash is among the least; then the last one leaves.
    """
    return frozenset(nsmallest(most, tenants, key=lambda tenant: (_draw(rollout_id, tenant), tenant)))


def _draw(rollout_id: str, tenant: str) -> bytes:
    return hashlib.blake2b(f"{rollout_id}\0blast-radius\0{tenant}".encode(), digest_size=8).digest()


def rules_of(splits: Mapping[str, Split]) -> str:
    """A digest of what places callers in rollouts, or outside of them: of everything but the weights. Whoever remembers
    a caller's place may do so while this is the same."""
    rules = [_rule(alias, s.rollout_id, s.sticky, s.only, s.never) for alias, s in sorted(splits.items())]
    return hashlib.blake2b(b"".join(rules), digest_size=8).hexdigest()


# A set of thousands of tenants is hashed once, and read again when it is another one.
@lru_cache(maxsize=1024)
def _rule(alias: str, rollout: str, sticky: StickyBy, only: frozenset[str] | None, never: frozenset[str]) -> bytes:
    tenants = None if only is None else sorted(only)
    return hashlib.blake2b(repr((alias, rollout, sticky, tenants, sorted(never))).encode(), digest_size=16).digest()
