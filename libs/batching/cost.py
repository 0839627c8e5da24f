"""What a batch costs: seconds as a line in its rows, with a tail factor. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

FORGET = 0.98
"""What an observation is worth after the next one: about the last fifty count."""
RATIOS = 512
REFRESH = 16
LEAST_SPREAD = 1e-3
"""Share of the rows' mean square that must be variance before a slope is read from them."""
LEAST_TAIL = 1.1


class CostModel:
    """ℓ(w) = r₉₉ · (α + β·w) for a batch of w rows: least squares with forgetting, and the p99 of ratios to it.

    :param alpha: seconds that a batch costs whatever its size.
    :param beta: seconds per row.
    """

    def __init__(self, alpha: float, beta: float) -> None:
        self.alpha = alpha
        self.beta = beta
        self.tail_ratio = 1.5  # until there are observations
        self._ratios: deque[float] = deque(maxlen=RATIOS)
        self._unread = 0
        self._n = self._w = self._ww = self._t = self._wt = 0.0

    @classmethod
    def fitted(cls, samples: Iterable[tuple[int, float]]) -> CostModel:
        """From (rows, seconds) measured while the model was loaded; at least one."""
        samples = list(samples)
        rows, seconds = samples[0]
        model = cls(seconds, 0.0)
        for rows, seconds in samples:
            model._add(rows, seconds, forget=1.0)
        model._fit()
        for rows, seconds in samples:
            model._note(rows, seconds)
        model._refresh()
        return model

    def mean(self, rows: int) -> float:
        """Expected seconds."""
        return self.alpha + self.beta * rows

    def tail(self, rows: int) -> float:
        """Seconds that 99 of 100 such batches take at most."""
        return self.tail_ratio * (self.alpha + self.beta * rows)

    def observe(self, rows: int, seconds: float) -> None:
        """A batch of `rows` took `seconds`."""
        self._note(rows, seconds)
        self._add(rows, seconds, forget=FORGET)
        self._fit()
        self._unread += 1
        if self._unread >= REFRESH or len(self._ratios) < REFRESH:
            self._refresh()

    def _note(self, rows: int, seconds: float) -> None:
        expected = self.mean(rows)
        if expected > 0:
            self._ratios.append(seconds / expected)

    def _refresh(self) -> None:
        self._unread = 0
        if self._ratios:
            ranked = sorted(self._ratios)
            self.tail_ratio = max(LEAST_TAIL, ranked[math.ceil(0.99 * len(ranked)) - 1])

    def _add(self, rows: int, seconds: float, *, forget: float) -> None:
        self._n = self._n * forget + 1
        self._w = self._w * forget + rows
        self._ww = self._ww * forget + rows * rows
        self._t = self._t * forget + seconds
        self._wt = self._wt * forget + rows * seconds

    def _fit(self) -> None:
        n, w, ww, t, wt = self._n, self._w, self._ww, self._t, self._wt
        spread = n * ww - w * w
        if spread > LEAST_SPREAD * n * ww:
            self.beta = max(0.0, (n * wt - w * t) / spread)
        else:  # batches of one size for a long time: the slope known before holds, up to what it can be at all
            self.beta = min(self.beta, t / w)
        self.alpha = (t - self.beta * w) / n
        if self.alpha < 0:
            self.alpha, self.beta = 0.0, wt / ww
