"""`weir safety`: which policies hold for whom, and what they make of a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.safety_filter import Rule
from libs.safety_policies.trial import tried
from tests.support.operator import Operator

POLICIES = """
kind: SafetyPolicy
metadata: {name: floor@1}
spec:
  rules: [{id: phrase, category: house.phrase, pattern: wombat, action: block, stage: output}]
---
kind: SafetyPolicy
metadata: {name: strict@1}
spec:
  rules:
  - {id: card, category: pii.card, pattern: '[0-9]{4}-[0-9]{4}', action: redact, stage: both, replacement: '[card]'}
  - {id: animal, category: house.animal, pattern: wom, action: flag, stage: both}
---
kind: SafetyFloor
metadata: {name: mesh}
spec: {policies: [floor@1]}
---
kind: Tenant
metadata: {name: acme}
spec: {plan: PLAN_PAID, safety_policies: [strict@1]}
---
kind: Tenant
metadata: {name: globex}
spec: {plan: PLAN_PAID}
"""


@pytest.fixture
async def safe(weir: Operator, tmp_path: Path) -> Operator:
    path = tmp_path / "safety.yaml"
    path.write_text(POLICIES)
    assert (await weir("apply", "-f", path)).code == 0
    return weir


async def test_policies_are_listed_with_who_asks_for_them(safe: Operator) -> None:
    assert (await safe("safety", "list", "--json")).json() == [
        {"policy": "floor@1", "rules": 1, "floor": True, "tenants": [], "models": []},
        {"policy": "strict@1", "rules": 2, "floor": False, "tenants": ["acme"], "models": []},
    ]
    shown = await safe("safety", "show", "strict@1")
    assert all(word in shown.out for word in ("acme", "card", "redact", "[card]", "[0-9]{4}-[0-9]{4}"))
    assert (await safe("safety", "show", "gone@1")).code == 1


async def test_a_text_is_tried_and_why_is_told(safe: Operator) -> None:
    asked = ("safety", "try", "wombat 1234-5678", "--tenant")
    told = (await safe(*asked, "acme", "--stage", "output", "--json")).json()
    assert (told["action"], told["text"], told["policies"]) == ("block", "", {"floor@1": "floor", "strict@1": "tenant"})
    assert [(hit["rule"], hit["because_of"], hit["begin"], hit["end"]) for hit in told["hits"]] == [
        ("animal", "tenant", 0, 3),
        ("phrase", "floor", 0, 6),
        ("card", "tenant", 7, 16),
    ]
    told = (await safe(*asked, "acme", "--json")).json()
    assert (told["action"], told["text"]) == ("redact", "wombat [card]")
    plain = await safe(*asked, "globex")
    assert (plain.code, "no rule matches" in plain.out, "pass" in plain.out) == (0, True, True)
    typed = await safe("safety", "try", "-", "--tenant", "acme", "--json", typed="\uff11234-5678")
    assert (typed.json()["text"], typed.json()["reads_as"]) == ("[card]", "1234-5678")
    for wrong in (("gone",), ("acme", "--model", "gone")):
        assert (await safe(*asked, *wrong)).code == 1


@given(st.text("wombat1-5 ", max_size=30))
def test_every_place_that_is_replaced_is_a_hit(text: str) -> None:
    rules = [
        Rule("a", "t", "[0-9]{1,3}-", "redact", "both", "*", "p@1"),
        Rule("b", "t", "-[0-9]{1,3}", "tokenise", "input", "N", "p@1"),
    ]
    trial = tried(("p@1",), {"p@1": rules}, text, "input")
    hits = {at for hit in trial.hits for at in range(hit.begin, hit.end)}
    kept = "".join(char for at, char in enumerate(text) if at not in hits)
    assert bool(trial.hits) == (trial.action != "")
    assert [char for char in kept if char not in trial.text] == []
