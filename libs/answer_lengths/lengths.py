"""How long answers are: learned per tenant and model version from what requests really generated.

Requests name caps that few of them use. Charging, waits and KV reservations go by what is expected instead; the cap
remains the bound of all of them. The mean serves charges and waits (errors cancel out over requests), a high quantile
serves reservations (errors there cost preemptions).

An answer that was **cut** (at its cap, by its caller, at its deadline) says only that it would have been at least so
long: it is a censored sample, and the last `_MEMORY` answers are read by the product-limit estimator (Kaplan and Meier,
1958), which counts it among those that could still have ended until it was cut, and not as an end. So a hundred answers
cut after one token teach nothing of what comes after one token: there the cap counts. The same curve says what a
sequence that has so many tokens may still come to.

Where too few answers of a tenant were seen those of the model are used, then all, then the cap. Memory: `max_tracked`
tenants × versions of some 2 kB, the longest unused forgotten first.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import TypeVar

_Key = TypeVar("_Key")
_MEMORY = 64  # answers
_RENEWED = 8  # of so many answers one is new when the curve is drawn anew, which costs as much as a grant
_LONGEST = 1 << 30  # tokens
_ROUNDING = 1e-9


class _Curve:
    """S(x), the share of answers that are longer than x tokens; constant after the longest that ended by itself."""

    __slots__ = ("area", "at", "high", "share")

    def __init__(self, ordered: array[int], beyond: float) -> None:
        at, shares, areas = [0.0], [1.0], [0.0]
        left, share, area, before = len(ordered), 1.0, 0.0, 0
        for code in ordered:
            if not code & 1:
                tokens = code >> 1
                area += share * (tokens - before)
                share *= (left - 1) / left
                before = tokens
                at.append(tokens)
                shares.append(share)
                areas.append(area)
            left -= 1
        self.at = array("d", at)
        self.share = array("d", shares)  # from there on
        self.area = array("d", areas)  # under S up to there
        self.high = self.reaches(beyond)  # of all, which is asked for several times per request

    def longer(self, tokens: float) -> float:
        """S."""
        return self.share[bisect_right(self.at, tokens) - 1]

    def until(self, tokens: float) -> float:
        """The area under S up to there."""
        last = bisect_right(self.at, tokens) - 1
        share = self.share[last]
        return self.area[last] + (share * (tokens - self.at[last]) if share else 0.0)

    def reaches(self, share: float) -> float:
        """The first number of tokens at which S is no more than a share; infinity when it never is."""
        # S falls, and bisect wants what rises.
        first = bisect_left(self.share, -share - _ROUNDING, key=lambda each: -each)
        return self.at[first] if first < len(self.at) else math.inf


class _Length:
    """One source's answers."""

    __slots__ = ("_beyond", "_curve", "_next", "_ordered", "_recent", "_since")

    def __init__(self, beyond: float) -> None:
        self._beyond = beyond
        # Twice the tokens, and one more of a cut answer: where one ended and another was cut, the end comes first.
        self._recent = array("I")  # a ring
        self._ordered = array("I")
        self._next = 0  # place in the ring
        self._curve: _Curve | None = None
        self._since = 0  # answers that it does not know

    @property
    def count(self) -> int:
        """Answers that are remembered."""
        return len(self._recent)

    @property
    def curve(self) -> _Curve:
        """What they say."""
        if self._curve is None or _RENEWED * self._since >= len(self._ordered):
            self._curve = _Curve(self._ordered, self._beyond)
            self._since = 0
        return self._curve

    def add(self, tokens: float, *, cut: bool) -> None:
        """One more; beyond `_MEMORY` the oldest is forgotten."""
        code = 2 * min(_LONGEST, math.ceil(tokens)) + cut
        if len(self._recent) < _MEMORY:
            self._recent.append(code)
        else:
            del self._ordered[bisect_left(self._ordered, self._recent[self._next])]
            self._recent[self._next] = code
        self._next = (self._next + 1) % _MEMORY
        insort(self._ordered, code)
        self._since += 1


class Lengths:
    """Output tokens per choice; all answers are None until `min_samples` were seen somewhere."""

    def __init__(self, *, min_samples: int = 8, max_tracked: int = 10_000, beyond: float = 0.1) -> None:
        """`beyond`: the share of the answers that are longer than the high quantile."""
        self._beyond = beyond
        self._min_samples = min_samples
        self._max_tracked = max_tracked
        self._tenants: OrderedDict[tuple[str, str], _Length] = OrderedDict()
        self._versions: OrderedDict[str, _Length] = OrderedDict()
        self._all = _Length(beyond)

    def __len__(self) -> int:
        return len(self._tenants) + len(self._versions)

    @property
    def seen(self) -> int:
        """Answers that are remembered of all tenants and versions."""
        return self._all.count

    def learn(self, tenant: str, model_version: str, tokens: float, *, cut: bool = False) -> None:
        """A choice of the tenant's ended after `tokens`; `cut`: it would have gone on."""
        self._of(self._tenants, (tenant, model_version)).add(tokens, cut=cut)
        self._of(self._versions, model_version).add(tokens, cut=cut)
        self._all.add(tokens, cut=cut)

    def mean(self, tenant: str, model_version: str, *, after: int = 0, most: float = math.inf) -> float | None:
        """Tokens to be expected after the first `after`, if no more than `most` may come."""
        known = self._known(tenant, model_version)
        if known is None:
            return None
        curve = known.curve
        going = curve.longer(after)
        if not going:  # nobody was seen to come so far
            return most
        return (curve.until(after + most) - curve.until(after)) / going

    def high(self, tenant: str, model_version: str, *, after: int = 0) -> float | None:
        """What all but `beyond` of those that have `after` tokens stay below, these included; infinity where nobody
        was seen to end."""
        known = self._known(tenant, model_version)
        if known is None:
            return None
        curve = known.curve
        going = curve.longer(after)
        if going == 1.0:
            return curve.high
        return curve.reaches(self._beyond * going) if going else math.inf

    def _known(self, tenant: str, model_version: str) -> _Length | None:
        known = self._tenants.get((tenant, model_version))
        if known is not None and known.count >= self._min_samples:
            return known
        known = self._versions.get(model_version)
        if known is not None and known.count >= self._min_samples:
            return known
        return self._all if self._all.count >= self._min_samples else None

    def _of(self, table: OrderedDict[_Key, _Length], key: _Key) -> _Length:
        length = table.get(key)
        if length is None:
            length = table[key] = _Length(self._beyond)
            if len(table) > self._max_tracked:
                table.popitem(last=False)
        else:
            table.move_to_end(key)
        return length
