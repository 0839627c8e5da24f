"""Filters a text that arrives in pieces, and releases what no later piece can change.

Patterns are compared with the *view* of the text T (see `view`); what they match there stands for the characters of T
that it came from, ignored ones between them included. The meaning is a function of T, so the pieces cannot matter:

- *Redact* and *tokenise*: among these rules' matches, take the leftmost, of those at one place the longest (then the
  first rule), go on after its end: the chain R. A match that begins inside another and ends behind it makes that one
  longer: whatever any rule matches is replaced, so that another rule never brings back what was gone without it. A
  rule with a check matches only where that passes. A tokenised match that a redacting one overlaps is redacted.
- *Block*: q is the leftmost start of a blocking rule's match. If there is none, the result is T with R's matches
  replaced. Else the text is cut at q, or at p if a match [p, e) of R has p < q < e, and the result is what is before
  the cut with R's matches there replaced: neither the blocked text nor a piece of a redacted one leaves.
- *Flag*: each flagging rule that matches anywhere is reported once; the text is untouched and not held.
- In outputs, more than `MAX_IGNORED` ignored characters in a row inside what can be a match block from where that
  began: they would hold it for ever.

A run (see `automaton`) is kept for every place whose matches are not settled. Text before the first unsettled place
is released at once. A run ends within the longest pattern, and a redaction can wait for a blocking run that began
inside it, so an output holds at most twice the longest pattern in characters of the view, each of one character
or an escape (12) and up to `MAX_IGNORED` ignored ones. Tokenising, which is for whole inputs, waits for what overlaps.
"""

import sys
from collections.abc import Generator, Sequence

from libs.safety_filter.automaton import MISSING
from libs.safety_filter.machine import BEHIND, BLOCK, FLAG, REDACT, Machine, Run, Tokenise
from libs.safety_filter.view import INVISIBLE, Viewer

_CHECK = 20
"""Steps that a match's check counts for."""
TURN = 1000
"""Steps of a turn: less than a millisecond."""


class StreamFilter:
    """One text's filter. `feed` it the pieces, `finish` it; both return what may leave. After `blocked`, nothing does.

    `findings` collects indices of rules as their effect becomes certain, `replaced` what was replaced, as characters
    (begin, end) of the pieces; the caller takes and clears them. Inside, places are those of the view.
    """

    __slots__ = (
        "_base",
        "_before",
        "_begins",
        "_ends",
        "_flagged",
        "_found",
        "_machine",
        "_new",
        "_new_at",
        "_out",
        "_pos",
        "_raw",
        "_raw_base",
        "_raw_out",
        "_runs",
        "_search",
        "_seeded",
        "_shift",
        "_taken",
        "_tokenise",
        "_view",
        "_viewer",
        "_work",
        "blocked",
        "findings",
        "replaced",
    )

    def __init__(self, machine: Machine, *, json: bool = False, tokenise: Tokenise | None = None) -> None:
        """`json`: the text is JSON. `tokenise` is needed where rules tokenise."""
        self._machine = machine
        self._search = machine.automaton.search
        self._viewer = Viewer(machine.automaton.table, json=json, limited=machine.output)
        self._tokenise = tokenise
        self._runs: list[Run] = []
        self._found: list[Run] = []
        self._view = ""
        """The view from `_base` on."""
        self._shift: int | None = 0
        """From a place of the kept view to that of the same character in the text; None where these differ."""
        self._begins: list[int] = []
        """Where each character of the kept view begins in the text (`_ends`: ends), if `_shift` is None."""
        self._ends: list[int] = []
        self._base = self._out = self._pos = 0
        self._new = ""
        """The part of the view that is being scanned, from the place `_new_at` on."""
        self._new_at = self._work = 0
        self._raw = ""
        """The text from `_raw_base` to `_taken`."""
        self._raw_base = self._raw_out = self._taken = self._seeded = 0
        self._before = ""
        """The view's last characters before `_base`."""
        self._flagged: set[int] = set()
        self.blocked = False
        self.findings: list[int] = []
        self.replaced: list[tuple[int, int]] = []

    @property
    def held(self) -> int:
        """Characters taken in and neither released nor replaced yet."""
        return 0 if self.blocked else len(self._raw) + len(self._viewer.tail)

    def seed(self, context: str) -> None:
        """Take in text that was settled before this filter was opened, so that what follows is seen in its place.

        Redactions that begin in it were settled with it; one that goes on behind its end began inside another's match
        and makes that longer. A block that begins in it cuts at its end.
        """
        if self._begin(context, last=True):
            self._scan(0)
        self._out = self._pos
        self._raw_out = self._seeded = self._taken
        self._found.clear()
        self.findings.clear()
        for run in self._runs:
            run.start, run.block = self._pos, -1
        self._trim()

    def feed(self, piece: str) -> str:
        """Take in the next piece and return what may leave now."""
        if self.blocked:
            return ""
        if not self._begin(piece):
            return self._viewer.taken
        self._scan(0)
        return self._release()

    def feed_in_turns(self, piece: str) -> Generator[None, None, str]:
        """As `feed`, with a pause each time that `TURN` steps were made."""
        if self.blocked:
            return ""
        if not self._begin(piece):
            return self._viewer.taken
        at = 0
        while (at := self._scan(at, TURN)) < len(self._new):
            yield
        return self._release()

    def finish(self) -> str:
        """Say that the text has ended and return the rest that may leave."""
        text = ""
        if self._viewer.tail and not self.blocked:
            if not self._begin("", last=True):
                return self._viewer.taken
            self._scan(0)
            text = self._release()
        if self.blocked:
            return text
        for run in self._runs:
            accepts = self._machine.automaton.finish(run.state)
            if accepts:
                self._record(run, accepts, self._pos)
            self._close(run)
        self._runs.clear()
        return text + self._release()

    def _begin(self, piece: str, *, last: bool = False) -> bool:
        """Take in a piece; return whether there is anything to scan: a run, or a place where one may begin."""
        viewer = self._viewer
        view, taken = viewer.take(piece, last=last), viewer.taken
        at = 0
        if not self._runs:
            # Nothing is kept, and nothing before the first hit is needed. Usually there is none.
            behind = len(self._before)
            text = self._before + view
            hit = self._search(text, behind)
            if hit is None:
                self._before = text[-BEHIND:]
                self._pos += len(view)
                self._taken += len(taken)
                return False
            at = hit.start() - behind
            self._before = text[max(0, behind + at - BEHIND) : behind + at]
            self._shift = self._taken - self._pos if viewer.plain else None
            self._pos = self._base = self._out = self._pos + at
            self._raw_base = self._raw_out = self._taken
        elif not viewer.plain:
            self._spread()
        if self._shift is None:
            begins, ends = viewer.offsets(self._taken)
            self._begins += begins[at:]
            self._ends += ends[at:]
        self._new, self._new_at = view[at:], self._pos
        self._view += self._new
        self._raw += taken
        self._taken += len(taken)
        return True

    def _spread(self) -> None:
        """Note for each character of the kept view where it is in the text: what follows does not keep to `_shift`."""
        if self._shift is not None:
            first, behind = self._base + self._shift, self._pos + self._shift
            self._begins, self._ends = list(range(first, behind)), list(range(first + 1, behind + 1))
            self._shift = None

    def _scan(self, at: int, most: int = sys.maxsize) -> int:
        """Step all runs over the new part of the view, from its place `at` on, and begin new ones.

        Return where that ended: behind the end, or earlier when `most` steps were made.
        """
        automaton = self._machine.automaton
        search, starts, advance = automaton.search, automaton.starts, automaton.advance
        view, base = self._new, self._new_at
        prev = view[at - 1] if at else self._seen(base - 1, base)
        size = len(view)
        self._work = 0
        while at < size and self._work < most:
            char = view[at]
            self._pos = base + at
            if self._runs:
                self._step(char)
            state = starts.get(prev) or automaton.start(prev)
            following = state.trans.get(char, MISSING)
            if following is MISSING:
                following = advance(state, char)
            if following is not None and char != INVISIBLE:
                run = Run(base + at, following)
                if following.accepts:
                    self._record(run, following.accepts, base + at + 1)
                self._keep(run, self._runs)
            prev = char
            at += 1
            self._work += 1
            if not self._runs:
                hit = search(view, at)
                if hit is None:
                    at = size
                elif hit.start() > at:
                    at = hit.start()
                    prev = view[at - 1]
        self._pos = base + at
        return at

    def _step(self, char: str) -> None:
        """Step every run over the character at `_pos`."""
        at = self._pos
        self._work += len(self._runs)
        kept: list[Run] = []
        for run in self._runs:
            state = run.state
            following = state.trans.get(char, MISSING)
            if following is MISSING:
                following = self._machine.automaton.advance(state, char)
            if char in state.before:
                self._record(run, state.before[char], at)
            if char == INVISIBLE:
                following = None
                if state.live & (REDACT | BLOCK) and run.block < 0:
                    run.block = len(self._machine.rules)
            if following is None:
                self._close(run)
                continue
            run.state = following
            if following.accepts:
                self._record(run, following.accepts, at + 1)
            self._keep(run, kept)
        self._runs = kept

    def _keep(self, run: Run, runs: list[Run]) -> None:
        if run.state.live:
            runs.append(run)
        else:
            self._close(run)

    def _close(self, run: Run) -> None:
        """Note a run that has ended, where it has found something."""
        if run.end >= 0 or run.block >= 0:
            self._found.append(run)

    def _record(self, run: Run, accepts: tuple[int, ...], end: int) -> None:
        """Note that rules match from the run's start to `end`."""
        for index in accepts:
            rule = self._machine.rules[index]
            self._work += _CHECK
            if not rule.passes(self._seen(run.origin - rule.behind, end)):
                continue
            if rule.bit == FLAG:
                if index not in self._flagged:
                    self._flagged.add(index)
                    self.findings.append(index)
            elif rule.bit == BLOCK:
                if run.block < 0:
                    run.block = index
            else:
                if end > run.end or (end == run.end and index < run.rule):
                    run.end, run.rule = end, index
                if run.strict < 0 and not rule.tokenises:
                    run.strict = index

    def _seen(self, start: int, end: int) -> str:
        """Return the view from `start`, which may be a little before all that is kept, to `end`."""
        if start >= self._base:
            return self._view[start - self._base : end - self._base]
        return self._before[start - self._base :] + self._view[: end - self._base]

    def _release(self) -> str:
        """Return everything that is settled, matches replaced; the module's docstring gives the rule."""
        barrier, blocker = self._barrier()
        if not self._found and not any(run.end >= 0 or run.block >= 0 for run in self._runs):
            # Candidates came to nothing, or to nothing yet.
            text = self._until(min(barrier, self._unsettled()))
            self._trim()
            return text
        redactions = sorted((run for run in (*self._runs, *self._found) if run.end > self._out), key=_origin)
        pieces: list[str] = []
        for number, run in enumerate(redactions):
            if run.end <= self._out:
                continue
            inside = run.origin < self._out
            if not inside:
                if run.origin >= min(barrier, self._unsettled()):
                    pieces.append(self._until(min(barrier, self._unsettled())))
                    break
                pieces.append(self._until(run.origin))
            index, end = (run.rule, run.end) if inside else self._joined(redactions[number:])
            if end > barrier or (self._machine.rules[index].tokenises and self._grows(end)):
                # It overlaps what is blocked, or may yet be, and nothing of it leaves; or its end is not known.
                barrier = min(barrier, self._out) if end > barrier else barrier
                break
            text = self._replaced(index, end)
            if not inside:
                pieces.append(text)
        else:
            pieces.append(self._until(min(barrier, self._unsettled())))
        if blocker >= 0 and self._out == barrier:
            self._block(blocker)
        else:
            self._trim()
        return "".join(pieces)

    def _joined(self, redactions: Sequence[Run]) -> tuple[int, int]:
        """Return the rule and the end of the first match; a tokenised one has all that overlaps it."""
        first = redactions[0]
        if not self._machine.rules[first.rule].tokenises:
            return first.rule, first.end
        end, strict = first.end, first.strict
        for run in redactions[1:]:
            if run.origin >= end:
                break
            end = max(end, run.end)
            strict = strict if strict >= 0 else run.strict
        return (strict if strict >= 0 else first.rule), end

    def _grows(self, end: int) -> bool:
        """Tell whether a match that begins before `end` may yet be found, or grow."""
        return any(run.state.live & REDACT and run.origin < end for run in self._runs)

    def _barrier(self) -> tuple[int, int]:
        """Return the leftmost place where a block begins or may yet begin, and its rule (-1: not certain)."""
        barrier, blocker = self._pos, -1
        for run in self._runs:
            if run.block < 0 and run.state.live & BLOCK:
                barrier = min(barrier, run.start)
        for run in (*self._runs, *self._found):
            # A certain block wins over an uncertain one at the same place.
            if run.block >= 0 and run.start <= barrier:
                barrier, blocker = run.start, run.block
        return barrier, blocker

    def _unsettled(self) -> int:
        """Return the leftmost place not released yet where a redaction may begin or grow."""
        return min((max(run.origin, self._out) for run in self._runs if run.state.live & REDACT), default=self._pos)

    def _until(self, place: int) -> str:
        """Release the text before a place of the view."""
        if place >= self._pos:
            end = self._taken
        else:
            end = self._begins[place - self._base] if self._shift is None else place + self._shift
        text = self._raw[self._raw_out - self._raw_base : max(end - self._raw_base, 0)]
        self._out, self._raw_out = place, max(end, self._raw_out)
        return text

    def _replaced(self, index: int, end: int) -> str:
        """Settle the match of a rule from here to `end`; return what takes its place."""
        rule = self._machine.rules[index]
        begin, self._out = self._raw_out, end
        last = self._ends[end - 1 - self._base] if self._shift is None else end + self._shift
        self._raw_out = max(last, begin)
        self.findings.append(index)
        self.replaced.append((begin - self._seeded, self._raw_out - self._seeded))
        if not rule.tokenises or self._tokenise is None:
            return rule.replacement
        return self._tokenise(rule.replacement, self._raw[begin - self._raw_base : self._raw_out - self._raw_base])

    def _block(self, rule: int) -> None:
        self.blocked = True
        self.findings.append(rule)
        self._view = self._raw = ""
        self._runs.clear()
        self._found.clear()

    def _trim(self) -> None:
        """Forget the text that no run and no release needs any more."""
        self._raw, self._raw_base = self._raw[self._raw_out - self._raw_base :], self._raw_out
        base = self._out
        if self._found:
            self._found = [run for run in self._found if run.start >= base or run.end > base]
        for run in (*self._runs, *self._found):
            base = min(base, run.origin)
        cut = base - self._base
        self._before = (self._before + self._view[max(0, cut - BEHIND) : cut])[-BEHIND:]
        self._view, self._base = self._view[cut:], base
        del self._begins[:cut], self._ends[:cut]


def _origin(run: Run) -> int:
    return run.origin
