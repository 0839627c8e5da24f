"""What safety policies may say; what a pattern may do at run time is the safety service's to bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import check_choice, check_count, shown
from libs.resources.checks.faults import Fault, check_id, check_text

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

ACTIONS = ("flag", "redact", "block")
STAGES = ("input", "output", "both")
MAX_RULES = 500
MAX_PATTERN = 2000
"""Characters of one pattern."""
_CATEGORY = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+){0,3}")


def check_policy(message: pb.SafetyPolicy, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a safety policy."""
    yield from check_id("metadata.name", message.id)
    yield from check_count("spec.rules", message.rules, MAX_RULES)
    seen: set[str] = set()
    for number, rule in enumerate(message.rules[:MAX_RULES]):
        path = f"spec.rules[{number}]"
        yield from _check_rule(path, rule)
        if rule.id in seen:
            yield Fault(f"{path}.id", f"the rule {shown(rule.id)} appears twice")
        seen.add(rule.id)


def _check_rule(path: str, rule: pb.SafetyRule) -> Iterator[Fault]:
    yield from check_id(f"{path}.id", rule.id)
    if not _CATEGORY.fullmatch(rule.category) or len(rule.category) > 100:
        yield Fault(f"{path}.category", "a category looks like 'pii.card_number'")
    yield from check_choice(f"{path}.action", rule.action, ACTIONS)
    yield from check_choice(f"{path}.stage", rule.stage, STAGES)
    yield from check_text(f"{path}.replacement", rule.replacement, 200)
    if rule.replacement and rule.action != "redact":
        yield Fault(f"{path}.replacement", "only redacting rules have a replacement")
    yield from _check_pattern(f"{path}.pattern", rule.pattern)


def _check_pattern(field: str, pattern: str) -> Iterator[Fault]:
    from libs.safety_filter import PatternError, parse_pattern

    if not 1 <= len(pattern) <= MAX_PATTERN:
        yield Fault(field, f"must have between 1 and {MAX_PATTERN} characters")
        return
    try:
        parse_pattern(pattern)
    except PatternError as error:
        yield Fault(field, f"does not compile: {error}")
