"""How long answers are: learned per tenant and model version from what requests really generated.

Requests name caps that few of them use. Charging, waits and KV reservations go by what is expected instead; the cap
remains the bound of all of them. A fading mean serves charges and waits (errors cancel out over requests), a high
quantile serves reservations (errors there cost preemptions). Where too few answers of a tenant were seen those of the
model are used, then all, then the cap.

Memory: `max_tracked` tenants × versions, the longest unused forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from services.admission.policy.fading import FadingMean

_Key = TypeVar("_Key")
_QUANTILE = 0.9
_MEMORY = 64.0  # answers
_STEP = 0.2  # of the deviation, by which the quantile follows one answer


class _Length:
    """One source's answers."""

    __slots__ = ("high", "tokens")

    def __init__(self) -> None:
        self.tokens = FadingMean(_MEMORY)
        self.high = 0.0

    def add(self, tokens: float) -> None:
        """Follows the quantile by small steps: up by 0.9 when an answer is above it, down by 0.1 when it is not."""
        self.tokens.add(tokens)
        if self.tokens.count <= 10:  # of ten answers the largest is the 0.9 quantile
            self.high = max(self.high, tokens)
            return
        step = _STEP * max(1.0, self.tokens.deviation)
        self.high += step * (_QUANTILE if tokens > self.high else _QUANTILE - 1.0)
        self.high = max(1.0, self.high)


class Lengths:
    """Output tokens per choice; all answers are None until `min_samples` were seen somewhere."""

    def __init__(self, *, min_samples: int = 8, max_tracked: int = 10_000) -> None:
        self._min_samples = min_samples
        self._max_tracked = max_tracked
        self._tenants: OrderedDict[tuple[str, str], _Length] = OrderedDict()
        self._versions: OrderedDict[str, _Length] = OrderedDict()
        self._all = _Length()

    def __len__(self) -> int:
        return len(self._tenants) + len(self._versions)

    def learn(self, tenant: str, model_version: str, tokens: float) -> None:
        """A choice of the tenant's ended after `tokens`."""
        self._of(self._tenants, (tenant, model_version)).add(tokens)
        self._of(self._versions, model_version).add(tokens)
        self._all.add(tokens)

    def mean(self, tenant: str, model_version: str) -> float | None:
        """What is to be expected."""
        known = self._known(tenant, model_version)
        return known.tokens.mean if known else None

    def high(self, tenant: str, model_version: str) -> float | None:
        """What nine of ten stay below."""
        known = self._known(tenant, model_version)
        return known.high if known else None

    def _known(self, tenant: str, model_version: str) -> _Length | None:
        known = self._tenants.get((tenant, model_version))
        if known is not None and known.tokens.count >= self._min_samples:
            return known
        known = self._versions.get(model_version)
        if known is not None and known.tokens.count >= self._min_samples:
            return known
        return self._all if self._all.tokens.count >= self._min_samples else None

    def _of(self, table: OrderedDict[_Key, _Length], key: _Key) -> _Length:
        length = table.get(key)
        if length is None:
            length = table[key] = _Length()
            if len(table) > self._max_tracked:
                table.popitem(last=False)
        else:
            table.move_to_end(key)
        return length
