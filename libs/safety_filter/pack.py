"""Packs of rules: read, checked, compiled per stage, and applied to whole texts."""

import json
import re
import string
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from libs.safety_filter.automaton import Automaton
from libs.safety_filter.checks import BY_NAME
from libs.safety_filter.machine import BLOCK, FLAG, REDACT, Machine, Tokenise
from libs.safety_filter.pattern import Pattern, PatternError, parse_pattern
from libs.safety_filter.stream import StreamFilter
from libs.safety_filter.view import sources

ACTIONS = {"flag": FLAG, "tokenise": REDACT, "redact": REDACT, "block": BLOCK}
"""The actions by name, from the mildest to the strictest."""
STAGES = ("input", "output", "both")
"""Where a rule applies."""
MAX_RULES = 500
"""Most rules of one pack."""
MAX_PACK_POSITIONS = 20_000
"""Most positions of all patterns of one pack; the shipped ones have about 2,000."""
PIECE = 1024
"""Characters of a whole text that are taken in at once."""
MAX_REPLACEMENT = 200
"""Longest replacement, in characters."""
_STRICTNESS = ("", *ACTIONS)
_LABEL = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_EVASION = "evasion.ignored_characters"
"""The category of `Machine`'s own rule."""
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
    """What takes a redacted match's place; what a tokenised match is called in its token, such as "EMAIL"."""
    pack: str = ""
    """Whose it is, "default@1", in a pack that is made of several; empty: the pack's own."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A rule ready for a machine."""

    rule: Rule
    pattern: Pattern
    bit: int
    replacement: str
    tokenises: bool

    def needs(self, marker: str) -> bool:
        """Tell whether every match has the character `marker`."""
        return any(chars.ranges == ((ord(marker),) * 2,) for chars in self.pattern.needs)

    @property
    def behind(self) -> int:
        """Characters before a match that the check sees too."""
        return BY_NAME[self.pattern.check].behind if self.pattern.check else 0

    def passes(self, text: str) -> bool:
        """Tell whether a match passes the check, where the pattern asks for one."""
        return not self.pattern.check or BY_NAME[self.pattern.check].passes(text)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, without the text found. `action` is one of `ACTIONS`."""

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
    marked: Callable[[str], bool]
    """Whether a text has what may come to the marker."""

    def for_text(self, text: str) -> Machine:
        """Return the machine for a whole text."""
        return self.full if self.marked(text) else self.light


@dataclass(frozen=True, slots=True)
class Pack:
    """A compiled pack. `name` is "id@version"; `longest` the most characters that one of its matches has."""

    name: str
    longest: int
    input: Stage
    output: Stage

    @property
    def alters_output(self) -> bool:
        """Whether an output may leave otherwise than it was written: redacted, or cut where it is blocked."""
        return any(rule.bit != FLAG for rule in self.output.full.rules)

    def open_output(self, *, json: bool = False) -> StreamFilter:
        """Open the filter of one streamed text; its findings are indices into `output.full`. `json`: it is JSON."""
        return StreamFilter(self.output.full, json=json)

    def finding(self, machine: Machine, index: int) -> Finding:
        """Return the finding for a rule's index in `StreamFilter.findings`."""
        if index == len(machine.rules):
            return Finding(_EVASION, "", "block", self.name)
        rule = machine.rules[index]
        if not isinstance(rule, _Compiled):
            raise TypeError("not a machine of a pack")
        return Finding(rule.rule.category, rule.rule.id, rule.rule.action, rule.rule.pack or self.name)

    def check_input(self, texts: Sequence[str], tokenise: Tokenise | None = None) -> Verdict:
        """Check whole texts, each on its own, with the rules of the input stage.

        `tokenise` names what tokenising rules find (`Tokens.token`); without it a rule's label takes the place.
        """
        return drained(self.steps(self.input, texts, tokenise))

    def check_output(self, text: str) -> Verdict:
        """Check one whole output: the same as streaming it in any pieces."""
        return drained(self.steps(self.output, (text,)))

    def steps(
        self, stage: Stage, texts: Sequence[str], tokenise: Tokenise | None = None
    ) -> Generator[None, None, Verdict]:
        """Check whole texts with many pauses, each after less than a millisecond; return the verdict after the last."""
        results: list[str] = []
        found: list[Finding] = []
        for text in texts:
            whole = stage.for_text(text)
            stream = StreamFilter(whole, tokenise=tokenise)
            released: list[str] = []
            for at in range(0, len(text), PIECE):
                released.append((yield from stream.feed_in_turns(text[at : at + PIECE])))
                yield
            released.append(stream.finish())
            results.append("".join(released))
            found.extend(self.finding(whole, index) for index in stream.findings)
        action = max((finding.action for finding in found), key=_STRICTNESS.index, default="")
        return Verdict(action, tuple(results), tuple(found))


def drained(steps: Generator[None, None, Verdict]) -> Verdict:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict


def compile_pack(identity: str, version: int | str, rules: Iterable[Rule]) -> Pack:
    """Compile a pack; limits are for each of the packs that it is made of.

    Raises:
        PackError: a rule is malformed, its pattern is outside the dialect, or ids repeat.
    """
    compiled: list[_Compiled] = []
    seen: set[tuple[str, str]] = set()
    positions = 0
    for rule in rules:
        if (rule.pack, rule.id) in seen:
            raise PackError(f"rule {rule.id!r} is there twice")
        seen.add((rule.pack, rule.id))
        packs = len({pack for pack, _ in seen})
        if len(seen) > packs * MAX_RULES:
            raise PackError(f"{len(seen)} rules; the limit is {packs * MAX_RULES}")
        compiled.append(_compile(rule))
        positions += compiled[-1].pattern.positions
        if positions > packs * MAX_PACK_POSITIONS:
            raise PackError(f"the patterns expand to {positions} positions; the limit is {packs * MAX_PACK_POSITIONS}")
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
    except (json.JSONDecodeError, RecursionError) as error:
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
    tokenises = rule.action == "tokenise"
    if tokenises and (rule.stage != "input" or not _LABEL.fullmatch(rule.replacement)):
        raise PackError(f"rule {rule.id!r}: only inputs are tokenised, and the replacement is a label such as EMAIL")
    return _Compiled(rule, pattern, ACTIONS[rule.action], rule.replacement, tokenises)


def _stage(compiled: Sequence[_Compiled], stage: str) -> Stage:
    rules = [rule for rule in compiled if rule.rule.stage in (stage, "both")]
    marker = _marker(rules)
    full = _machine(rules, stage)
    if not marker:
        return Stage(full=full, light=full, marked=lambda text: True)
    light = _machine([rule for rule in rules if not rule.needs(marker)], stage)
    marks = ("\\u", *sources(marker))
    return Stage(full=full, light=light, marked=lambda text: any(mark in text for mark in marks))


def _marker(rules: Sequence[_Compiled]) -> str:
    """Choose the punctuation mark whose absence spares the most work: that of the longest pattern that needs one."""
    return max(
        ((rule.pattern.longest, mark) for rule in rules for mark in string.punctuation if rule.needs(mark)),
        default=(0, ""),
    )[1]


def _machine(rules: Sequence[_Compiled], stage: str) -> Machine:
    automaton = Automaton([rule.pattern for rule in rules], [rule.bit for rule in rules])
    return Machine(tuple(rules), automaton, output=stage == "output")
