"""Lengths of prompts and outputs, drawn from quantile tables that `simulation.fit` made from public traces.

A table says, for each trace, the length at each of 64 probabilities; between them it is linear. Prompt and output of a
request are drawn together: a Gaussian copula with the trace's rank correlation joins them, so that long prompts have
long outputs as often as they did there.
"""

from __future__ import annotations

import bisect
import math
import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

TABLES = Path(__file__).with_name("lengths.toml")
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Lengths:
    """A joint distribution of prompt and output lengths, in tokens."""

    name: str
    probabilities: tuple[float, ...]
    """From 0 to 1, ascending; the same for both tables."""
    prompt: tuple[float, ...]
    """Quantiles of the prompt's length."""
    output: tuple[float, ...]
    """Quantiles of the output's length."""
    correlation: float = 0.0
    """Of the two normal variables that are drawn, -1 to 1; 0 draws them independently."""
    scale: float = 1.0
    """Lengths are multiplied by this: a small context sees the same shape."""
    max_context: int = 0
    """Prompt and output together are at most this; 0 is no bound. The output is cut first, to an eighth at most."""

    @classmethod
    def fixed(cls, prompt: int, output: int) -> Lengths:
        """Always the same lengths."""
        return cls("fixed", (0.0, 1.0), (prompt, prompt), (output, output))

    def scaled(self, scale: float, *, max_context: int = 0) -> Lengths:
        """The same shape at another size."""
        return replace(self, scale=scale, max_context=max_context)

    def for_context(self, context: int, *, quantile: float = 0.99) -> Lengths:
        """Scaled down (never up) so that prompt and output at `quantile` together come to `context` tokens."""
        whole = self.quantile(self.prompt, quantile) + self.quantile(self.output, quantile)
        return self.scaled(min(1.0, context / whole), max_context=context)

    def draw(self, rng: random.Random) -> tuple[int, int]:
        """Prompt and output tokens of one request, each at least 1."""
        if self.correlation:
            one = rng.gauss(0.0, 1.0)
            other = self.correlation * one + math.sqrt(1.0 - self.correlation**2) * rng.gauss(0.0, 1.0)
            u, v = _NORMAL.cdf(one), _NORMAL.cdf(other)
        else:
            u, v = rng.random(), rng.random()
        prompt = max(1, round(self.quantile(self.prompt, u) * self.scale))
        output = max(1, round(self.quantile(self.output, v) * self.scale))
        if self.max_context and prompt + output > self.max_context:
            output = max(1, min(output, max(self.max_context // 8, self.max_context - prompt)))
            prompt = max(1, min(prompt, self.max_context - output))
        return prompt, output

    def quantile(self, table: Sequence[float], probability: float) -> float:
        """The length at a probability, unscaled; `table` is `prompt` or `output`."""
        grid = self.probabilities
        above = min(max(1, bisect.bisect_left(grid, probability)), len(grid) - 1)
        low, high = grid[above - 1], grid[above]
        share = (probability - low) / (high - low)
        return table[above - 1] + share * (table[above] - table[above - 1])

    def mean(self) -> tuple[float, float]:
        """Mean prompt and output, scaled, before the context's bound."""
        return self._mean(self.prompt), self._mean(self.output)

    def _mean(self, table: Sequence[float]) -> float:
        grid = self.probabilities
        spans = range(1, len(grid))
        return self.scale * sum((grid[i] - grid[i - 1]) * (table[i] + table[i - 1]) / 2 for i in spans)


@lru_cache
def load(path: Path = TABLES) -> dict[str, Lengths]:
    """The fitted distributions by name ("azure-conversation", …).

    :raises OSError: the file cannot be read.
    :raises ValueError: it holds something else.
    """
    data = tomllib.loads(path.read_text())
    try:
        grid = tuple(float(each) for each in data["probabilities"])
        tables = {name: _table(name, grid, body) for name, body in data["lengths"].items()}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no table of lengths: {error}") from error
    return tables


def _table(name: str, grid: tuple[float, ...], body: dict[str, object]) -> Lengths:
    prompt, output = body["prompt"], body["output"]
    if not isinstance(prompt, list) or not isinstance(output, list) or not len(prompt) == len(output) == len(grid) > 1:
        raise TypeError(f"{name}: as many lengths as probabilities are needed")
    return Lengths(name, grid, tuple(prompt), tuple(output), float(str(body["correlation"])))
