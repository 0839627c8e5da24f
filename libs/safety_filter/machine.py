"""What a stream filter runs on: rules and their automaton, and the runs of it over one text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.safety_filter.automaton import Automaton, State

BEHIND = 2
"""Most characters before a match that a rule's check sees too."""
REDACT = 1
BLOCK = 2
FLAG = 4

Tokenise = Callable[[str, str], str]
"""Called with a rule's replacement (such as "EMAIL") and a match; returns the token that takes its place."""


class Checked(Protocol):
    """What the filter needs of a rule."""

    @property
    def bit(self) -> int:
        """REDACT, BLOCK or FLAG."""

    @property
    def replacement(self) -> str:
        """What a redacting rule puts in the place of its match; what a tokenising one calls it."""

    @property
    def tokenises(self) -> bool:
        """Whether a token takes the match's place; such a rule's `bit` is REDACT."""

    @property
    def behind(self) -> int:
        """Characters before a match that the rule's check sees too; at most `BEHIND`."""

    def passes(self, text: str) -> bool:
        """Tell whether a match passes the rule's check (True without one)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rules of one stage and their automaton. The index after the last rule is that of blocks by ignored characters."""

    rules: Sequence[Checked]
    automaton: Automaton
    output: bool
    """Whether runs of ignored characters are limited."""


class Run:
    """What all patterns can match from one place of the view, and have."""

    __slots__ = ("block", "end", "origin", "rule", "start", "state", "strict")

    def __init__(self, origin: int, state: State) -> None:
        self.origin = origin
        self.start = origin
        """Where a block from here cuts: `origin`, or later where that was released already (`StreamFilter.seed`)."""
        self.state = state
        self.end = -1
        """End of the longest redacting match so far; -1 when there is none."""
        self.rule = -1
        self.strict = -1
        """A redacting rule that matches from here and does not tokenise."""
        self.block = -1
        """The blocking rule that matches from here; -1 when none does so far."""
