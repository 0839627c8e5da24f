"""What tokens cost: pure, in whole micro-dollars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_MILLION = 1_000_000
_MAX_KNOWN = 10_000


class Price(NamedTuple):
    """Micro-dollars per million tokens."""

    input: int
    output: int

    def cost(self, tokens: int, prompt_tokens: int) -> int:
        """Micro-dollars for `tokens`, of which `prompt_tokens` are the prompt's; rounded up."""
        prompt = min(prompt_tokens, tokens)
        return -(-(prompt * self.input + (tokens - prompt) * self.output) // _MILLION)


FREE = Price(0, 0)
"""For what has no price."""


class PriceBook:
    """Prices by name.

    :param prices: by model version, alias or model name; `"*"` for those without their own.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)
        self._known: dict[tuple[str, str], Price] = {}
        self._default = self._prices.get("*", FREE)

    @property
    def nothing_is_free(self) -> bool:
        """Every token of every model costs something."""
        return all(price.input and price.output for price in (self._default, *self._prices.values()))

    def of(self, version: str, model: str) -> Price:
        """The price of what serves a request (`version`, may be empty), else of what it named (`model`), else of the
        model without its version, else of everything."""
        prices = self._prices
        if not prices:
            return FREE
        known = self._known.get((version, model))
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[version, model] = self._look_up(version, model)
        return known

    def _look_up(self, version: str, model: str) -> Price:
        prices = self._prices
        for name in (version, model, version.partition("@")[0], model.partition("@")[0]):
            if name and (price := prices.get(name)) is not None:
                return price
        return self._default
