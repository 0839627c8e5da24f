"""What tokens cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.quota import FREE, Price, PriceBook

BOOK = PriceBook({"fast@2": Price(1, 1), "fast": Price(2, 2), "cheapest": Price(3, 3), "*": Price(4, 4)})


@pytest.mark.parametrize(
    ("version", "model", "price"),
    [
        ("fast@2", "fast", 1),
        ("fast@1", "fast", 2),
        ("fast@1", "cheapest", 2),
        ("fast@1", "fast@2", 2),
        ("fast@1", "other", 2),
        ("big@1", "cheapest", 3),
        ("big@1", "fast@2", 1),
        ("big@1", "fast@1", 2),
        ("", "fast@1", 2),
        ("", "fast@2", 1),
        ("big@1", "big", 4),
    ],
)
def test_what_serves_counts_before_what_was_asked_for(version: str, model: str, price: int) -> None:
    assert BOOK.of(version, model) == BOOK.find(version, model) == Price(price, price)


def test_a_smaller_model_in_the_place_of_another_costs_its_own_price() -> None:
    book = PriceBook({"big@1": Price(9, 9), "big": Price(8, 8), "small": Price(1, 1)})
    assert book.of("small@1", "big@1") == book.of("small@1", "big") == Price(1, 1)
    assert book.of("big@1", "small") == Price(9, 9)


def test_a_declared_nothing_is_told_from_no_price() -> None:
    book = PriceBook({"gift": FREE})
    assert book.find("gift@1") == FREE
    assert book.find("other@1") is None


def test_without_prices_nothing_costs() -> None:
    assert PriceBook({}).of("fast@1", "fast") == FREE
    assert PriceBook({}).find("fast@1", "fast") is None
    assert FREE.cost(10**9, 0) == 0


@given(
    tokens=st.integers(0, 10**7),
    prompt=st.integers(0, 10**7),
    cached=st.integers(0, 10**7),
    price=st.tuples(*[st.integers(0, 10**8)] * 3),
)
def test_c7_cached_tokens_cost_their_own_price_and_never_more_than_was_reserved(
    tokens: int, prompt: int, cached: int, price: tuple[int, int, int]
) -> None:
    high, low = max(price[:2]), min(price[:2])
    declared, without = Price(high, price[2], low), Price(high, price[2])
    assert without.cost(tokens, prompt, cached) == without.cost(tokens, prompt)
    assert declared.cost(tokens, prompt, cached) <= declared.cost(tokens, prompt) == without.cost(tokens, prompt)
    within = min(cached, prompt, tokens)
    rest = min(prompt, tokens) - within
    paid = low * within + high * rest + price[2] * (tokens - within - rest)
    assert declared.exact(tokens, prompt, cached) == paid / 1_000_000


@given(tokens=st.integers(0, 10**7), prompt=st.integers(0, 10**7), price=st.integers(0, 10**8))
def test_cost_is_rounded_up_and_never_below_that_of_less(tokens: int, prompt: int, price: int) -> None:
    both = Price(price, 2 * price)
    cost = both.cost(tokens, prompt)
    assert both.cost(tokens + 1, prompt) >= cost
    assert both.cost(tokens, 0) >= cost
    assert cost * 1_000_000 >= min(prompt, tokens) * price
