"""What safety policies may say; what a pattern may do at run time is the safety service's to bound."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import check_choice, check_count, shown
from libs.resources.checks.faults import Fault, check_id, check_text, check_version

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

ACTIONS = ("flag", "tokenise", "redact", "block")
STAGES = ("input", "output", "both")
MAX_RULES = 500
MAX_PATTERN = 2000
"""Characters of one pattern."""
MAX_POLICIES = 8
"""Policies that one resource may add: those of floor, tenant and model version are compiled together."""
SHIPPED = "0"
"""The version of policies that the safety service brings along; nobody registers it."""
_LABEL = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_CATEGORY = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+){0,3}")


def check_policy(message: pb.SafetyPolicy, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a safety policy."""
    yield from check_id("metadata.name", message.id)
    for fault in check_version("metadata.name", message.version):
        yield Fault(fault.field, f"the version behind '@' {fault.message}")
    if message.version == SHIPPED:
        yield Fault("metadata.name", f"the version {SHIPPED!r} is that of policies which come with the safety service")
    yield from check_count("spec.rules", message.rules, MAX_RULES)
    seen: set[str] = set()
    for number, rule in enumerate(message.rules[:MAX_RULES]):
        path = f"spec.rules[{number}]"
        yield from _check_rule(path, rule)
        if rule.id in seen:
            yield Fault(f"{path}.id", f"the rule {shown(rule.id)} appears twice")
        seen.add(rule.id)


def check_floor(message: pb.SafetyFloor, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of the safety floor: one without policies would be none."""
    yield from check_count("spec.policies", message.policies, MAX_POLICIES, least=1)
    yield from _check_once("spec.policies", message.policies)


def check_pins(pins: Sequence[str]) -> Iterator[Fault]:
    """Every fault of the policies that a tenant or a model version adds; whether they exist is for references."""
    yield from check_count("spec.safety_policies", pins, MAX_POLICIES)
    yield from _check_once("spec.safety_policies", pins)


def _check_once(field: str, pins: Sequence[str]) -> Iterator[Fault]:
    for number, pin in enumerate(pins[:MAX_POLICIES]):
        if not pin:
            yield Fault(f"{field}[{number}]", "names no policy")
        elif pin in pins[:number]:
            yield Fault(f"{field}[{number}]", "a policy appears twice")


def _check_rule(path: str, rule: pb.SafetyRule) -> Iterator[Fault]:
    yield from check_id(f"{path}.id", rule.id)
    if not _CATEGORY.fullmatch(rule.category) or len(rule.category) > 100:
        yield Fault(f"{path}.category", "a category looks like 'pii.card_number'")
    yield from check_choice(f"{path}.action", rule.action, ACTIONS)
    yield from check_choice(f"{path}.stage", rule.stage, STAGES)
    yield from check_text(f"{path}.replacement", rule.replacement, 200)
    if rule.action == "tokenise":
        yield from _check_tokenising(path, rule)
    elif rule.replacement and rule.action != "redact":
        yield Fault(f"{path}.replacement", "only redacting and tokenising rules have a replacement")
    yield from _check_pattern(f"{path}.pattern", rule.pattern)


def _check_tokenising(path: str, rule: pb.SafetyRule) -> Iterator[Fault]:
    if rule.stage != "input":
        yield Fault(f"{path}.stage", "only inputs are tokenised: an output's match was never the caller's")
    if not _LABEL.fullmatch(rule.replacement):
        yield Fault(
            f"{path}.replacement", "a token is called something like 'EMAIL', at most 32 capitals, digits and '_'"
        )


def _check_pattern(field: str, pattern: str) -> Iterator[Fault]:
    from libs.safety_filter import PatternError, parse_pattern

    if not 1 <= len(pattern) <= MAX_PATTERN:
        yield Fault(field, f"must have between 1 and {MAX_PATTERN} characters")
        return
    try:
        parse_pattern(pattern)
    except PatternError as error:
        yield Fault(field, f"does not compile: {error}")
