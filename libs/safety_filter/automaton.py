"""Many patterns as one automaton, built lazily while text is read.

A *run* begins at one place of the text and follows every pattern at once: its state is the set of positions in the
patterns that the text since its start can have reached. A step is one dictionary look-up once a state has seen a
character; there is nothing to backtrack, so the time is linear in the text whatever the patterns. A state tells which
patterns have matched and whether any can still go on: that is what makes an exact hold-back possible.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libs.safety_filter.charset import WORD, CharSet, fold
from libs.safety_filter.pattern import Alt, Chars, Look, Node, Pattern, Repeat

MAX_TRANSITIONS = 50_000
"""Most transitions kept; past that all are forgotten and built anew, so that odd text cannot exhaust memory."""

WIDE = r"\x80-\U0010ffff"
"""All that is not ASCII, as members of a character class."""
_ASCII = [chr(code) for code in range(128)]


class State:
    """Where a run stands.

    `trans` maps the next raw character to the next state (None: the run ends), `before` maps it to the patterns
    that match just before that character; both are filled on demand by `Automaton.advance`.
    """

    __slots__ = ("accepts", "before", "core", "left", "live", "trans")

    def __init__(self, core: frozenset[int], left: int, accepts: tuple[int, ...], live: int) -> None:
        self.core = core
        self.left = left
        self.accepts = accepts
        """Patterns that match on entering, whatever follows."""
        self.live = live
        """Bits of the groups that can still match from here."""
        self.trans: dict[str, State | None] = {}
        self.before: dict[str, tuple[int, ...]] = {}


MISSING = State(frozenset(), 0, (), 0)
"""Stands for a transition that was not computed yet, as the default of `trans.get`; None is a run's computed end."""


@dataclass(frozen=True, slots=True)
class _Jump:
    """A free move to `target`; `look` None is unconditional."""

    target: int
    look: Look | None


class Automaton:
    """The automaton of `patterns`; `groups[i]` is the bit of pattern i's group. Not thread-safe (fills caches)."""

    def __init__(self, patterns: Sequence[Pattern], groups: Sequence[int]) -> None:
        self._jumps: list[list[_Jump]] = []
        self._step: list[tuple[CharSet, int] | None] = []
        self._accepts: dict[int, int] = {}
        self._live: list[int] = []
        self._behind: list[CharSet] = [WORD]
        starts = []
        for index, (pattern, group) in enumerate(zip(patterns, groups, strict=True)):
            starts.append(self._new(group))
            self._accepts[self._build(pattern.node, starts[-1], group)] = index
        self._roots = frozenset(starts)
        self._states: dict[tuple[frozenset[int], int, tuple[int, ...]], State] = {}
        self._count = 0
        self.starts: dict[str, State] = {}
        """Start states by the raw character before the run ("" at the beginning); filled by `start`."""
        self.search = re.compile(self._prefilter()).search
        """Finds, in raw text, the next character that may begin a match: every such character, and few others."""

    # Construction (Thompson's).

    def _new(self, group: int) -> int:
        self._jumps.append([])
        self._step.append(None)
        self._live.append(group)
        return len(self._step) - 1

    def _build(self, node: Node, start: int, group: int) -> int:
        """Add `node` from state `start` and return its end state."""
        if isinstance(node, Chars):
            end = self._new(group)
            self._step[start] = (node.chars, end)
            return end
        if isinstance(node, Look):
            if node.chars is not None and not node.ahead and node.chars not in self._behind:
                self._behind.append(node.chars)
            return self._jump(start, self._new(group), node)
        if isinstance(node, Alt):
            end = self._new(group)
            for option in node.options:
                self._jump(self._build(option, self._jump(start, self._new(group)), group), end)
            return end
        if isinstance(node, Repeat):
            end = self._new(group)
            for turn in range(node.high):
                if turn >= node.low:
                    self._jump(start, end)
                start = self._build(node.item, self._jump(start, self._new(group)), group)
            self._jump(start, end)
            return end
        for item in node.items:
            start = self._build(item, self._jump(start, self._new(group)), group)
        return start

    def _jump(self, source: int, target: int, look: Look | None = None) -> int:
        self._jumps[source].append(_Jump(target, look))
        return target

    # Reading.

    def start(self, before: str) -> State:
        """Return the state of a run that begins after the raw character `before` ("" at the text's beginning)."""
        state = self.starts.get(before)
        if state is None:
            if len(self.starts) > 4096:
                self.starts.clear()
            state = self.starts[before] = self._state(self._roots, self._left(fold(before) if before else ""))
        return state

    def advance(self, state: State, char: str) -> State | None:
        """Compute and remember where `state` goes on the raw character `char`."""
        self._count += 1
        if self._count > MAX_TRANSITIONS:
            self._forget()
        folded = fold(char)
        core, accepts = self._closure(state.core, state.left, folded)
        early = tuple(sorted(accepts.difference(state.accepts)))
        if early:
            state.before[char] = early
        targets = frozenset(step[1] for at in core if (step := self._step[at]) is not None and step[0].has(folded))
        following = self._state(targets, self._left(folded)) if targets else None
        if following is not None and not following.live and not following.accepts:
            following = None
        state.trans[char] = following
        return following

    def finish(self, state: State) -> tuple[int, ...]:
        """Return the patterns that match if the text ends here, those of `state.accepts` left out."""
        return tuple(sorted(self._closure(state.core, state.left, "")[1].difference(state.accepts)))

    def _forget(self) -> None:
        for state in self._states.values():
            state.trans.clear()
            state.before.clear()
        self._states.clear()
        self.starts.clear()
        self._count = 0

    def _state(self, targets: frozenset[int], left: int) -> State:
        core, accepts = self._closure(targets, None, "")
        going = [at for at in core if self._step[at] is not None or any(jump.look for jump in self._jumps[at])]
        if not any(jump.look for at in going for jump in self._jumps[at]):
            # Nothing here asks about the character before: states that differ only in it are one.
            left = 0
        key = (frozenset(going), left, tuple(sorted(accepts)))
        state = self._states.get(key)
        if state is None:
            live = 0
            for at in going:
                live |= self._live[at]
            state = self._states[key] = State(*key, live)
        return state

    def _closure(self, core: frozenset[int], left: int | None, following: str) -> tuple[set[int], set[int]]:
        """Follow free moves; conditional ones only where `left` is given. Returns (states, patterns accepted)."""
        seen = set(core)
        todo = list(core)
        accepts = set()
        while todo:
            at = todo.pop()
            if at in self._accepts:
                accepts.add(self._accepts[at])
            for jump in self._jumps[at]:
                if jump.target in seen:
                    continue
                if jump.look is None or (left is not None and self._holds(jump.look, left, following)):
                    seen.add(jump.target)
                    todo.append(jump.target)
        return seen, accepts

    def _left(self, folded: str) -> int:
        """Return, as bits, which of the look-behind sets hold the character before."""
        if not folded:
            return 0
        return sum(1 << bit for bit, chars in enumerate(self._behind) if chars.has(folded))

    def _holds(self, look: Look, left: int, following: str) -> bool:
        if look.chars is None:
            boundary = bool(left & 1) != bool(following and WORD.has(following))
            return boundary != look.negated
        if look.ahead:
            return bool(following and look.chars.has(following)) != look.negated
        return bool(left >> self._behind.index(look.chars) & 1) != look.negated

    # The prefilter.

    def _prefilter(self) -> str:
        """Build a regular expression that finds every place where a run can survive two characters, and little else.

        It looks at the character before (where that is ASCII and in the same piece), at the first and at the second
        (where that has arrived). Whatever is not ASCII is a candidate.
        """
        first = self._first_sets()
        everywhere = {char for char in _ASCII if any(chars.has(char) for chars, _ in first)}
        by_state = {state: self._begins(state) for state in {self.start(before) for before in _ASCII}}
        by_before = {before: by_state[self.start(before)] for before in _ASCII}
        # Most patterns must not begin inside a word: what may begin even there needs no look-behind.
        inside = set.union(*(by_before[before] for before in _ASCII if before.isalnum()))
        quiet = [before for before in _ASCII if by_before[before] <= inside]
        parts = [f"[{WIDE}]"]
        if inside:
            parts.append(self._pairs(first, inside))
        if everywhere - inside:
            guard = f"(?<!{_class(quiet)})" if quiet else ""
            parts.append(f"{guard}(?:{self._pairs(first, everywhere - inside)})")
        return "|".join(parts)

    def _begins(self, state: State) -> set[str]:
        """Return the ASCII characters that begin a run from a start state."""
        return {char for char in _ASCII if self._next(state, char) is not None}

    def _next(self, state: State, char: str) -> State | None:
        return state.trans[char] if char in state.trans else self.advance(state, char)

    def _first_sets(self) -> list[tuple[CharSet, int]]:
        """Return every first step of every pattern, conditions left out: a superset of what any place allows."""
        seen = set(self._roots)
        todo = list(seen)
        while todo:
            for jump in self._jumps[todo.pop()]:
                if jump.target not in seen:
                    seen.add(jump.target)
                    todo.append(jump.target)
        return [step for at in seen if (step := self._step[at]) is not None]

    def _pairs(self, first: list[tuple[CharSet, int]], chars: set[str]) -> str:
        """Return an expression for `chars`, each followed by one that goes on from it, or by the piece's end."""
        by_seconds: dict[frozenset[str], list[str]] = {}
        for char in sorted(chars):
            state = self._state(frozenset(target for begin, target in first if begin.has(char)), self._left(char))
            seconds = frozenset(_ASCII)
            if not state.accepts:
                seconds = frozenset(d for d in _ASCII if self._next(state, d) is not None or d in state.before)
            by_seconds.setdefault(seconds, []).append(char)
        return "|".join(
            _class(begins) if len(seconds) == len(_ASCII) else f"{_class(begins)}(?:{_class(seconds, wide=True)}|\\Z)"
            for seconds, begins in by_seconds.items()
        )


def _class(chars: Iterable[str], *, wide: bool = False) -> str:
    """Return a character class; `wide` adds all that is not ASCII."""
    return f"[{''.join(map(re.escape, sorted(chars)))}{WIDE if wide else ''}]"
