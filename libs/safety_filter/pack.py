"""Packs of rules: read, checked, compiled per stage, and applied to whole texts."""

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libs.safety_filter.automaton import Automaton
from libs.safety_filter.charset import fold
from libs.safety_filter.checks import BY_NAME
from libs.safety_filter.pattern import Pattern, PatternError, parse_pattern
from libs.safety_filter.stream import BLOCK, FLAG, REDACT, Machine, StreamFilter

ACTIONS = {"flag": FLAG, "redact": REDACT, "block": BLOCK}
"""The actions by name."""
STAGES = ("input", "output", "both")
"""Where a rule applies."""
MAX_RULES = 500
"""Most rules of one pack."""
MAX_PACK_POSITIONS = 20_000
"""Most positions of all patterns of one pack; the shipped ones have about 2,000."""
MAX_REPLACEMENT = 200
"""Longest replacement, in characters."""
_SEVERITY = {FLAG: 1, REDACT: 2, BLOCK: 3}
_FIELDS = frozenset(("id", "category", "pattern", "action", "stage", "replacement"))


class PackError(ValueError):
    """A pack is refused; the message names the rule and the reason."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to look for, as configured. See `weir.registry.v1.SafetyRule`."""

    id: str
    category: str
    pattern: str
    action: str
    stage: str
    replacement: str = ""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A rule ready for a machine."""

    rule: Rule
    pattern: Pattern
    bit: int
    replacement: str

    def needs(self, marker: str) -> bool:
        """Tell whether every match has the character `marker`."""
        return any(chars.has(marker) for chars in self.pattern.needs)

    def passes(self, text: str) -> bool:
        """Tell whether a match passes the checksum, where the pattern asks for one."""
        check = self.pattern.check
        return not check or BY_NAME[check](text)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, without the text found. `action` is "flag", "redact" or "block"."""

    category: str
    pattern: str
    action: str
    pack: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of checking whole texts: `action` is "" or the strictest one, `texts` are those to use instead."""

    action: str
    texts: tuple[str, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """The rules of one stage.

    `light` leaves out the rules that need the character `marker` in each match: for whole texts without it, the result
    is the same and comes several times sooner (e-mail addresses could begin with any word, but all have an "@").
    """

    full: Machine
    light: Machine
    marker: str

    def for_text(self, text: str) -> Machine:
        """Return the machine for a whole text."""
        marked = self.marker in text or (not text.isascii() and self.marker in map(fold, set(text)))
        return self.full if marked else self.light


@dataclass(frozen=True, slots=True)
class Pack:
    """A compiled pack. `name` is "id@version"; `longest` the most characters that one of its matches has."""

    name: str
    longest: int
    input: Stage
    output: Stage

    def open_output(self) -> StreamFilter:
        """Open the filter of one streamed text; its findings are indices into `output.full`."""
        return StreamFilter(self.output.full)

    def finding(self, machine: Machine, index: int) -> Finding:
        """Return the finding for a rule's index in `StreamFilter.findings`."""
        rule = machine.rules[index]
        if not isinstance(rule, _Compiled):
            raise TypeError("not a machine of a pack")
        return Finding(rule.rule.category, rule.rule.id, rule.rule.action, self.name)

    def check_input(self, texts: Sequence[str]) -> Verdict:
        """Check whole texts, each on its own, with the rules of the input stage."""
        return self._check(self.input, texts)

    def check_output(self, text: str) -> Verdict:
        """Check one whole output: the same as streaming it in any pieces."""
        return self._check(self.output, (text,))

    def _check(self, stage: Stage, texts: Sequence[str]) -> Verdict:
        results: list[str] = []
        found: list[tuple[Machine, int]] = []
        for text in texts:
            whole = stage.for_text(text)
            stream = StreamFilter(whole)
            results.append(stream.feed(text) + stream.finish())
            found.extend((whole, index) for index in stream.findings)
        severity = max((_SEVERITY[whole.rules[index].bit] for whole, index in found), default=0)
        action = ("", "flag", "redact", "block")[severity]
        return Verdict(action, tuple(results), tuple(self.finding(whole, index) for whole, index in found))


def compile_pack(identity: str, version: int, rules: Iterable[Rule]) -> Pack:
    """Compile a pack.

    Raises:
        PackError: a rule is malformed, its pattern is outside the dialect, or ids repeat.
    """
    compiled: list[_Compiled] = []
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise PackError(f"rule {rule.id!r} is there twice")
        seen.add(rule.id)
        compiled.append(_compile(rule))
    if len(compiled) > MAX_RULES:
        raise PackError(f"{len(compiled)} rules; the limit is {MAX_RULES}")
    positions = sum(rule.pattern.positions for rule in compiled)
    if positions > MAX_PACK_POSITIONS:
        raise PackError(f"the patterns expand to {positions} positions; the limit is {MAX_PACK_POSITIONS}")
    return Pack(
        name=f"{identity}@{version}",
        longest=max((rule.pattern.longest for rule in compiled), default=0),
        input=_stage(compiled, "input"),
        output=_stage(compiled, "output"),
    )


def rules_from_json(text: str) -> list[Rule]:
    """Read rules from a pack file: `{"rules": [{"id", "category", "pattern", "action", "stage", "replacement"}]}`.

    Raises:
        PackError: it is not such a document.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise PackError(f"not JSON: {error}") from error
    entries = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise PackError("a pack is an object with a list of rules")
    return [_rule(entry) for entry in entries]


def _rule(entry: Mapping[str, Any] | Any) -> Rule:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise PackError("a rule is an object of strings")
    unknown = set(entry) - _FIELDS
    missing = _FIELDS - set(entry) - {"replacement"}
    if unknown or missing:
        raise PackError(f"rule {entry.get('id', '')!r}: unknown fields {sorted(unknown)}, missing {sorted(missing)}")
    return Rule(**entry)


def _compile(rule: Rule) -> _Compiled:
    if not rule.id or not rule.category:
        raise PackError(f"rule {rule.id!r} needs an id and a category")
    if rule.action not in ACTIONS:
        raise PackError(f"rule {rule.id!r}: action is one of {sorted(ACTIONS)}")
    if rule.stage not in STAGES:
        raise PackError(f"rule {rule.id!r}: stage is one of {sorted(STAGES)}")
    if len(rule.replacement) > MAX_REPLACEMENT:
        raise PackError(f"rule {rule.id!r}: the replacement is longer than {MAX_REPLACEMENT} characters")
    try:
        pattern = parse_pattern(rule.pattern)
    except PatternError as error:
        raise PackError(f"rule {rule.id!r}: {error}") from error
    return _Compiled(rule, pattern, ACTIONS[rule.action], rule.replacement)


def _stage(compiled: Sequence[_Compiled], stage: str) -> Stage:
    rules = [rule for rule in compiled if rule.rule.stage in (stage, "both")]
    marker = _marker(rules)
    full = _machine(rules)
    light = _machine([rule for rule in rules if not rule.needs(marker)]) if marker else full
    return Stage(full=full, light=light, marker=marker)


def _marker(rules: Sequence[_Compiled]) -> str:
    """Choose the punctuation mark whose absence spares the most work: that of the longest pattern that needs one."""
    return max(
        ((rule.pattern.longest, mark) for rule in rules for mark in string.punctuation if rule.needs(mark)),
        default=(0, ""),
    )[1]


def _machine(rules: Sequence[_Compiled]) -> Machine:
    return Machine(tuple(rules), Automaton([rule.pattern for rule in rules], [rule.bit for rule in rules]))
