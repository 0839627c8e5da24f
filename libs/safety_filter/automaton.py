"""Many patterns as one automaton, built lazily while text is read.

A *run* begins at one place of the text and follows every pattern at once: its state is the set of positions in the
patterns that the text since its start can have reached. A step is one dictionary look-up once a state has seen a
character; there is nothing to backtrack, so the time is linear in the text whatever the patterns. A state tells which
patterns have matched and whether any can still go on: that is what makes an exact hold-back possible.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from libs.safety_filter.charset import WORD, CharSet
from libs.safety_filter.pattern import Alt, Chars, Look, Node, Pattern, Repeat
from libs.safety_filter.view import INVISIBLE, LETTER, OTHER, table_for

MAX_TRANSITIONS = 200_000
"""Most transitions kept; past that all are forgotten and built anew, so that odd text cannot exhaust memory."""
_DEPTH = 5
"""Characters that the prefilter looks at."""
_MAX_PEEKED = 300
"""Most states that it is built from."""
_SIGNS = [*map(chr, range(1, 128)), LETTER, OTHER]
"""The characters of a view of which no pattern names more than ASCII."""


class State:
    """Where a run stands.

    `trans` maps the view's next character to the next state (None: the run ends), `before` maps it to the patterns
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
        """Start states by the character before the run ("" at the beginning); filled by `start`."""
        self._sets = {*self._behind, *(step[0] for step in self._step if step is not None)}
        self._sets |= {jump.look.chars for jumps in self._jumps for jump in jumps if jump.look and jump.look.chars}
        self.table = table_for([bounds for chars in self._sets for bounds in chars.ranges])
        """Views texts, for `Viewer`."""
        self._wide = f"[^{re.escape(''.join(_SIGNS))}]" if isinstance(self.table, dict) else ""
        self.search = re.compile(self._prefilter()).search
        """Finds, in a view, the next character that may begin a match: every such character, and few others."""

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
        """Return the state of a run that begins after the character `before` ("" at the text's beginning)."""
        state = self.starts.get(before)
        if state is None:
            state = self.starts[before] = self._state(self._roots, self._left(before))
        return state

    def advance(self, state: State, char: str) -> State | None:
        """Compute and remember where `state` goes on the character `char` of the view."""
        self._count += 1
        if self._count > MAX_TRANSITIONS:
            self._forget()
        core, accepts = self._closure(state.core, state.left, char)
        early = tuple(sorted(accepts.difference(state.accepts)))
        if early:
            state.before[char] = early
        targets = frozenset(step[1] for at in core if (step := self._step[at]) is not None and step[0].has(char))
        following = self._state(targets, self._left(char)) if targets else None
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

    def _left(self, char: str) -> int:
        """Return, as bits, which of the look-behind sets hold the character before."""
        if not char:
            return 0
        return sum(1 << bit for bit, chars in enumerate(self._behind) if chars.has(char))

    def _holds(self, look: Look, left: int, following: str) -> bool:
        if look.chars is None:
            boundary = bool(left & 1) != bool(following and WORD.has(following))
            return boundary != look.negated
        if look.ahead:
            return bool(following and look.chars.has(following)) != look.negated
        return bool(left >> self._behind.index(look.chars) & 1) != look.negated

    # The prefilter.

    def _prefilter(self) -> str:
        """Build a regular expression that finds every place where a run can survive `_DEPTH` characters, few others.

        It looks at the character before (where that is in the same piece) and at those that have arrived.
        """
        kinds = self._kinds()
        first = self._first_sets()
        everywhere = [char for char in kinds if any(chars.has(char) for chars, _ in first)]
        opens = {before: {char for char in kinds if self._next(self.start(before), char)} for before in kinds}
        # Most patterns must not begin inside a word: what may begin even there needs no look-behind.
        inside = set.union(*(opens[before] for before in kinds if before.isalnum()))
        quiet = [before for before in kinds if opens[before] <= inside]
        roots = {char: self._anywhere(first, char) for char in everywhere}
        end = f"{INVISIBLE}|{self._wide}|\\Z" if self._wide else f"{INVISIBLE}|\\Z"
        known: dict[tuple[State, int], str] = {}

        def tails(state: State, depth: int) -> str:
            """What can follow in `state`, "" for anything."""
            if (state, depth) not in known:
                known[state, depth] = (
                    "" if state.accepts or not depth or len(known) > _MAX_PEEKED else tail(state, depth)
                )
            return known[state, depth]

        def tail(state: State, depth: int) -> str:
            by_tail: dict[str, list[str]] = {}
            for char in kinds:
                following = self._next(state, char)
                if char in state.before:
                    by_tail.setdefault("", []).append(char)
                elif following is not None:
                    by_tail.setdefault(tails(following, depth - 1), []).append(char)
            if len(by_tail.get("", ())) == len(kinds):
                return ""
            options = [_class(kinds, chars) + rest for rest, chars in by_tail.items()]
            return f"(?:{'|'.join([*options, end])})"

        def of(begins: Iterable[str]) -> str:
            """What a run survives that began with the character before, one of these."""
            by_tail: dict[str, list[str]] = {}
            for char in begins:
                by_tail.setdefault(tails(roots[char], _DEPTH - 1), []).append(char)
            return _tree(kinds, [(chars, rest) for rest, chars in by_tail.items()])

        # A class in front is what `re` skips ahead with fastest, so the rest looks back.
        ways = [f"(?<={self._wide})"] if self._wide else []
        if inside:
            ways.append(f"(?<={_class(kinds, inside)}){of(char for char in everywhere if char in inside)}")
        if len(everywhere) > len(inside):
            guard = f"(?<!{_class(kinds, quiet)}(?s:.))" if quiet else ""
            ways.append(guard + of(char for char in everywhere if char not in inside))
        if not ways:
            return r"(?!)"
        union = f"(?:{_class(kinds, everywhere)}|{self._wide})" if self._wide else _class(kinds, everywhere)
        return f"{union}(?:{'|'.join(ways)})"

    def _kinds(self) -> dict[str, str]:
        """Return characters that differ to the patterns, each with all those that do not differ from it."""
        kinds: dict[tuple[bool, ...], list[str]] = {}
        for char in _SIGNS:
            kinds.setdefault(tuple(chars.has(char) for chars in self._sets), []).append(char)
        return {chars[0]: "".join(chars) for chars in kinds.values()}

    def _anywhere(self, first: list[tuple[CharSet, int]], char: str) -> State:
        """Return the state after `char` at a place where every condition holds."""
        return self._state(frozenset(target for begin, target in first if begin.has(char)), self._left(char))

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


def _class(kinds: Mapping[str, str], chars: Iterable[str]) -> str:
    """Return a character class of all that does not differ from `chars`."""
    return f"[{''.join(re.escape(char) for kind in chars for char in kinds[kind])}]"


def _tree(kinds: Mapping[str, str], options: Sequence[tuple[list[str], str]]) -> str:
    """Return an expression for any of (the character before, what follows); it halves them, to try few."""
    if len(options) == 1:
        chars, rest = options[0]
        return f"(?<={_class(kinds, chars)}){rest}"
    if len(options) > 3:
        middle = len(options) // 2
        halves = options[:middle], options[middle:]
        parts = [([char for chars, _ in half for char in chars], _tree(kinds, half)) for half in halves]
    else:
        parts = [([], _tree(kinds, [option])) for option in options]
    return "(?:" + "|".join((f"(?<={_class(kinds, chars)})" if chars else "") + rest for chars, rest in parts) + ")"
