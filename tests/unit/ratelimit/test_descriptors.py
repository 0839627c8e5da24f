"""What Envoy's descriptors mean."""

from dataclasses import dataclass

import pytest

from libs.quota import LimitKind
from services.ratelimit.policy.descriptors import EdgeQuestion, edge_question


@dataclass
class Pair:
    key: str
    value: str


ACME = Pair("tenant", "acme")
TOKENS = Pair("unit", "tokens")


def test_a_request_and_its_tokens() -> None:
    question = edge_question([([ACME], 0), ([ACME, TOKENS], 250)])
    assert question == EdgeQuestion("acme", 1, 250, (LimitKind.REQUESTS, LimitKind.TOKENS))


def test_a_request_costs_one_whatever_the_addend_says() -> None:
    assert edge_question([([ACME], 99)]).requests == 1


def test_tokens_without_an_estimate_count_as_one() -> None:
    assert edge_question([([ACME, Pair("kind", "tokens")], 0)]) == EdgeQuestion("acme", 0, 1, (LimitKind.TOKENS,))


def test_descriptors_of_others_are_let_through() -> None:
    assert edge_question([([Pair("remote_address", "10.0.0.1")], 0), ([ACME], 0)]).kinds == (None, LimitKind.REQUESTS)


@pytest.mark.parametrize("descriptors", [[], [([], 0)], [([Pair("tenant", "")], 0)], [([TOKENS], 0)]])
def test_a_tenant_is_needed(descriptors: list[tuple[list[Pair], int]]) -> None:
    with pytest.raises(ValueError, match="tenant"):
        edge_question(descriptors)


def test_two_tenants_are_refused() -> None:
    with pytest.raises(ValueError, match="two tenants"):
        edge_question([([ACME], 0), ([Pair("tenant", "globex")], 0)])


def test_somebody_may_know_the_pool() -> None:
    question = edge_question([([ACME], 0), ([ACME, Pair("pool", "fast-pool")], 0)])
    assert (question.pool, question.kinds) == ("fast-pool", (LimitKind.REQUESTS, None))
