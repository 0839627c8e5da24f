"""What tokens and rows cost: pure, in whole micro-dollars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_MILLION = 1_000_000
_MAX_KNOWN = 10_000
_MOST = 2**44
"""Micro-dollars of one request: sums of it over any period fit 64 bits."""


class Price(NamedTuple):
    """Micro-dollars per million tokens, and per million rows of predictions."""

    input: int
    output: int
    cached: int | None = None
    """Of prompt tokens that the worker had, at most `input`; None: they cost as others do."""
    row: int = 0

    def cost(self, tokens: int, prompt_tokens: int, cached_tokens: int = 0) -> int:
        """Micro-dollars for `tokens`, of which `prompt_tokens` are the prompt's, and of these `cached_tokens` were
        cached; rounded up; at most 2**44. Never more than for the same tokens without a cache, which is what a
        reservation is priced as."""
        return min(_MOST, -(-self._sum(tokens, prompt_tokens, cached_tokens) // _MILLION))

    def of_rows(self, rows: int) -> int:
        """Micro-dollars for rows; rounded up, at most 2**44."""
        return min(_MOST, -(-rows * self.row // _MILLION))

    def exact_rows(self, rows: int) -> float:
        """As `of_rows`, not rounded."""
        return rows * self.row / _MILLION

    def exact(self, tokens: int, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """As `cost`, not rounded: for sums over many requests that are compared with each other."""
        return self._sum(tokens, prompt_tokens, cached_tokens) / _MILLION

    def _sum(self, tokens: int, prompt_tokens: int, cached_tokens: int) -> int:
        prompt = min(prompt_tokens, tokens)
        total = prompt * self.input + (tokens - prompt) * self.output
        if cached_tokens and self.cached is not None:
            total -= min(cached_tokens, prompt) * max(0, self.input - self.cached)
        return total


FREE = Price(0, 0)
"""For what has no price."""


class PriceBook:
    """Prices by name.

    :param prices: by model version, alias or model name; `"*"` for those without their own.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)
        self._known: dict[tuple[str, str], Price] = {}

    @property
    def nothing_is_free(self) -> bool:
        """Every token of every model that was not cached costs something."""
        return all(price.input and price.output for price in (self._prices.get("*", FREE), *self._prices.values()))

    def of(self, version: str, model: str) -> Price:
        """What tokens of a request cost; `FREE` when nothing is declared. See `find`."""
        if not self._prices:
            return FREE
        known = self._known.get((version, model))
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[version, model] = self.find(version, model) or FREE
        return known

    def find(self, version: str, model: str = "") -> Price | None:
        """What is declared for a request; None when nothing is.

        What serves it counts before what it asked for: its version, the version's name without "@", the model that
        was asked for, that without "@", "*". So a smaller model that answers in its place is charged at its own
        price, and neither an alias nor a pinned version is a way around the price of what serves.

        :param version: what serves it; empty while that is not known.
        :param model: as the caller named it: a model, an alias or a version.
        """
        prices = self._prices
        for name in (version, version.partition("@")[0], model, model.partition("@")[0]):
            if name and (price := prices.get(name)) is not None:
                return price
        return prices.get("*")
