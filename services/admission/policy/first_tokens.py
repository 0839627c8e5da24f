"""How far first tokens come from what the formula says (`Estimates.computed_first_token`), as learned from those seen.

What is off has three causes that must not be mixed up: the model version (its prompts, its grammars), the worker (one
that is slow or hangs) and the tenant (its own requests). So errors are kept by version × worker and, beside that, by
tenant × version, and whoever asks gets the lower of the two: a tenant that is served quickly is not refused for what
another one's requests take, nor for what a worker does that it need not go to. Before the worker is known the lower
median of the version's workers stands for it.

Everything fades with time: an estimate counts in full for `_FRESH` seconds after its last sample and loses 1/e in each
`_FRESH` thereafter, so nobody is refused for ever by what refusing keeps from being seen again. At most `_MAX_TRACKED`
of each kind are kept, the longest unused forgotten first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple, TypeVar

from services.admission.policy.fading import TimedMean
from services.admission.policy.model import Request

_Key = TypeVar("_Key")
_MEMORY = 30.0  # seconds after which a sample counts 1/e
_FRESH = 10.0
_ENOUGH = 8  # samples after which a tenant's own count, and one that is far off counts as …
_OUTLIER, _OUTLIER_SECONDS = 4.0, 0.1  # … no further off than so many mean deviations and seconds
_CAUTION = 3.0  # mean deviations above the mean that a first token may take: some 99 of 100 come before
_LOOK = 0.1  # seconds between two looks at all workers of a version
_STEP = 0.1  # seconds; smaller differences between workers are noise
_MAX_TRACKED = 4096


class Beyond(NamedTuple):
    """Seconds to add to what was computed."""

    mean: float
    at_worst: float


_NOTHING = Beyond(0.0, 0.0)


class FirstTokens:
    """Of one pool."""

    def __init__(self) -> None:
        self._cells: OrderedDict[tuple[str, str], TimedMean] = OrderedDict()  # by version and worker
        self._tenants: OrderedDict[tuple[str, str], TimedMean] = OrderedDict()  # by tenant and version
        self._workers: OrderedDict[str, TimedMean] = OrderedDict()
        self._typical: OrderedDict[str, tuple[float, Beyond]] = OrderedDict()  # by version, until when

    def learn(self, request: Request, worker: str, error: float, now: float) -> None:
        """A first token came `error` seconds after what was computed for this worker."""
        version = request.model_version
        _add(_of(self._cells, (version, worker)), error, now)
        _add(_of(self._workers, worker), error, now)
        _add(_of(self._tenants, (request.tenant, version)), error, now)

    def beyond(self, request: Request, worker: str | None, now: float) -> Beyond:
        """What to add for this request, on this worker or on one like all."""
        version = request.model_version
        cell = self._cells.get((version, worker)) if worker is not None else None
        shared = self._typical_of(version, now) if cell is None else _told(cell, now)
        own = self._tenants.get((request.tenant, version))
        if own is None or own.count < _ENOUGH or now - own.at > _MEMORY:
            return shared
        mine = _told(own, now)
        return Beyond(min(mine.mean, shared.mean), min(mine.at_worst, shared.at_worst))

    def slowness(self, worker: str, now: float) -> float:
        """Seconds that the worker takes beyond what it tells of itself, in whole steps."""
        seen = self._workers.get(worker)
        if seen is None or seen.mean < _STEP:
            return 0.0
        return _STEP * math.floor(_told(seen, now).mean / _STEP)

    def _typical_of(self, version: str, now: float) -> Beyond:
        known = self._typical.get(version)
        if known is not None and now < known[0]:
            return known[1]
        told = sorted((_told(cell, now) for key, cell in self._cells.items() if key[0] == version), key=_at_worst)
        found = told[(len(told) - 1) // 2] if told else _NOTHING
        self._typical[version] = now + _LOOK, found
        if len(self._typical) > _MAX_TRACKED:
            self._typical.popitem(last=False)
        return found


def _at_worst(beyond: Beyond) -> float:
    return beyond.at_worst


def _told(seen: TimedMean, now: float) -> Beyond:
    old = now - seen.at - _FRESH
    belief = 1.0 if old <= 0.0 else math.exp(-old / _FRESH)
    mean = belief * seen.mean
    return Beyond(mean, mean + belief * _CAUTION * seen.deviation)


def _add(seen: TimedMean, error: float, now: float) -> None:
    if seen.count >= _ENOUGH:  # one first token that took a minute must not make all the others look slow
        most = _OUTLIER * seen.deviation + _OUTLIER_SECONDS
        error = min(seen.mean + most, max(seen.mean - most, error))
    seen.add(now, error)


def _of(table: OrderedDict[_Key, TimedMean], key: _Key) -> TimedMean:
    seen = table.get(key)
    if seen is None:
        seen = table[key] = TimedMean(_MEMORY)
        if len(table) > _MAX_TRACKED:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    return seen
