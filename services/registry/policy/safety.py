"""Safety policies: their form; what a pattern may do at run time is the safety service's to bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.registry.policy.faults import Fault, check_id, check_text

ACTIONS = ("flag", "redact", "block")
STAGES = ("input", "output", "both")
MAX_RULES = 500
MAX_PATTERN = 2000
"""Characters of one pattern."""
_CATEGORY = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+){0,3}")


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """Fields as in `weir.registry.v1.SafetyRule`."""

    id: str
    category: str
    pattern: str
    action: str
    stage: str
    replacement: str


PatternCheck = Callable[[str], str]
"""Says why a pattern is refused; empty when it is fine."""


def check_policy(policy_id: str, rules: Sequence[RuleSpec], *, pattern_fault: PatternCheck) -> Fault | None:
    """The first fault of a safety policy, or None."""
    if fault := check_id("policy.id", policy_id):
        return fault
    if len(rules) > MAX_RULES:
        return Fault("policy.rules", f"at most {MAX_RULES} rules")
    seen: set[str] = set()
    for number, rule in enumerate(rules):
        field = f"policy.rules[{number}]"
        if fault := _check_rule(field, rule, pattern_fault):
            return fault
        if rule.id in seen:
            return Fault(f"{field}.id", f"the rule {rule.id!r} appears twice")
        seen.add(rule.id)
    return None


def _check_rule(field: str, rule: RuleSpec, pattern_fault: PatternCheck) -> Fault | None:
    if fault := check_id(f"{field}.id", rule.id) or check_text(f"{field}.replacement", rule.replacement, 200):
        return fault
    if not _CATEGORY.fullmatch(rule.category) or len(rule.category) > 100:
        return Fault(f"{field}.category", "a category looks like 'pii.card_number'")
    if rule.action not in ACTIONS:
        return Fault(f"{field}.action", f"action must be one of {', '.join(ACTIONS)}")
    if rule.stage not in STAGES:
        return Fault(f"{field}.stage", f"stage must be one of {', '.join(STAGES)}")
    if rule.replacement and rule.action != "redact":
        return Fault(f"{field}.replacement", "only redacting rules have a replacement")
    if not 1 <= len(rule.pattern) <= MAX_PATTERN:
        return Fault(f"{field}.pattern", f"a pattern has between 1 and {MAX_PATTERN} characters")
    reason = pattern_fault(rule.pattern)
    return Fault(f"{field}.pattern", f"the pattern does not compile: {reason}") if reason else None
