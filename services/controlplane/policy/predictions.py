"""Which predictors answer for which name: aliases with the very assignment of libs.routing, and pinned versions."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from libs.routing import BUCKETS, Layout, RoutingTable


@dataclass(frozen=True, slots=True)
class Share:
    """Neighbouring buckets that go to one version."""

    model_version: str
    arm: str
    weight: int
    """Basis points, above 0."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Where requests for one name go."""

    model: str
    """An alias or a pinned "name@version": the value of the header `x-weir-model`."""
    shares: tuple[Share, ...]
    """In the order of the buckets; the weights sum to 10,000."""
    rollout_id: str = ""
    """The shares are those of this rollout, for callers that it placed; empty: for everybody."""
    otherwise: str = ""
    """With a rollout: the version of all other callers."""

    def __hash__(self) -> int:
        # Predictions are looked up by the thousand with every snapshot, and names hardly ever collide.
        return hash((self.model, self.rollout_id))


def predictions_of(table: RoutingTable, served: Set[str]) -> tuple[Prediction, ...]:
    """What predictors answer for: aliases by name, then versions.

    An alias whose own versions are not all served stays with the gateway. An arm of a rollout that no predictor serves
    leaves its buckets to the baseline.

    :param served: versions that at least one live predictor has.
    """
    versions = table.snapshot.model_versions
    live = frozenset(version for version in served if version in versions)
    found = []
    for alias, layout in table.layouts.items():
        if layout is None or "@" in alias or not all(t.model_version in live for t in layout.targets if t.weight):
            continue
        split = table.splits.get(alias)
        if split is None:
            found.append(Prediction(alias, _shares(layout, live)))
            continue
        baseline, shares = split.baseline.model_version, _shares(split.layout, live)
        if {share.model_version for share in shares} == {baseline}:
            found.append(Prediction(alias, (Share(baseline, "", BUCKETS),)))
        else:
            found.append(Prediction(alias, shares, split.rollout_id, baseline))
    return (*sorted(found, key=lambda prediction: prediction.model), *_pinned(live))


@lru_cache(maxsize=4)
def _pinned(live: frozenset[str]) -> tuple[Prediction, ...]:
    return tuple(Prediction(version, (Share(version, "", BUCKETS),)) for version in sorted(live))


def _shares(layout: Layout, live: Set[str]) -> tuple[Share, ...]:
    edges = [0, *(-(-bound * BUCKETS // layout.total) for bound in layout.bounds)]
    owned = [
        (target if target.model_version in live else layout.baseline, high - low)
        for target, low, high in zip(layout.targets, edges[:-1], edges[1:], strict=True)
        if high > low
    ]
    return tuple(
        Share(target.model_version, target.arm, sum(weight for _, weight in neighbours))
        for target, neighbours in groupby(owned, key=lambda item: item[0])
    )
