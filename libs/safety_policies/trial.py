"""What a set of policies makes of a text, and which of their rules say so: for people who write policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from libs.safety_filter import Pack, Rule, StreamFilter, Tokens, compile_pack
from libs.safety_filter.stream import Machine
from libs.safety_filter.view import Viewer
from libs.safety_policies.composition import compose, united


@dataclass(frozen=True, slots=True)
class Hit:
    """A place that a rule matches."""

    rule: Rule
    begin: int
    end: int
    """Behind its last character."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A text under policies."""

    action: str
    """The strictest that was taken; empty: none."""
    text: str
    """What goes on: to the model or to the caller. Of a blocked output, what had left before; of a blocked input
    nothing."""
    view: str
    """The text as patterns see it."""
    hits: tuple[Hit, ...]
    """Every match of every rule, also of one that another's action leaves without effect, by place."""


def tried(pins: Sequence[str], policies: Mapping[str, Sequence[Rule]], text: str, stage: str) -> Trial:
    """Try a whole text as an "input" or an "output". Compiles each rule by itself: for people, not for requests.

    :raises PackError: the policies do not make a pack.
    """
    pack = compose(tuple(pins), policies)
    verdict = pack.check_input([text], Tokens([text]).token) if stage == "input" else pack.check_output(text)
    rules = [rule for rule in united(policies[pin] for pin in pins) if rule.stage in (stage, "both")]
    hits = [Hit(rule, begin, end) for rule in rules for begin, end in _places(rule, text, stage)]
    machine = _machine(pack, stage)
    return Trial(
        action=verdict.action,
        text="" if verdict.action == "block" and stage == "input" else verdict.texts[0],
        view=Viewer(machine.automaton.table, json=False, limited=machine.output).take(text, last=True),
        hits=tuple(sorted(hits, key=lambda hit: (hit.begin, hit.end))),
    )


def _places(rule: Rule, text: str, stage: str) -> list[tuple[int, int]]:
    """Where a rule matches: what it would replace if that were all it did."""
    alone = compile_pack("alone", 1, [replace(rule, action="redact", stage=stage, replacement="")])
    stream = StreamFilter(_machine(alone, stage))
    stream.feed(text)
    stream.finish()
    return stream.replaced


def _machine(pack: Pack, stage: str) -> Machine:
    return (pack.input if stage == "input" else pack.output).full
