"""Filters a text that arrives in pieces, and releases what no later piece can change.

The meaning is a function of the whole text T, so the pieces cannot matter:

- *Redact*: among the redacting rules' matches, take the leftmost, of those at one place the longest (then the first
  rule), go on after its end: the chain R. A rule with a checksum matches only where the checksum holds.
- *Block*: q is the leftmost start of a blocking rule's match. If there is none, the result is T with R's matches
  replaced. Else the text is cut at q, or at p if a match [p, e) of R has p < q < e, and the result is what is before
  the cut with R's matches there replaced: neither the blocked text nor a piece of a redacted one leaves.
- *Flag*: each flagging rule that matches anywhere is reported once; the text is untouched and not held.

A run (see `automaton`) is kept for every place whose matches are not settled. Text before the first unsettled place
is released at once. A run ends within the longest pattern plus `MAX_IGNORED` invisible characters, and a redaction can
wait for a blocking run that began inside it, so at most twice that is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.safety_filter.automaton import MISSING, Automaton, State
from libs.safety_filter.charset import IGNORABLE, fold

REDACT = 1
BLOCK = 2
FLAG = 4
MAX_IGNORED = 32
"""Most invisible characters inside one match; past that the run ends, so that they cannot make the filter hold on."""


class Checked(Protocol):
    """What the filter needs of a rule."""

    @property
    def bit(self) -> int:
        """REDACT, BLOCK or FLAG."""

    @property
    def replacement(self) -> str:
        """What a redacting rule puts in the place of its match."""

    def passes(self, text: str) -> bool:
        """Tell whether a match passes the rule's checksum (True without one)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rules of one stage and their automaton."""

    rules: Sequence[Checked]
    automaton: Automaton


class _Run:
    __slots__ = ("block", "end", "ignored", "origin", "rule", "start", "state")

    def __init__(self, origin: int, state: State) -> None:
        self.origin = origin
        self.start = origin
        """Where a block from here cuts: `origin`, or later where that was released already (`StreamFilter.seed`)."""
        self.state = state
        self.end = -1
        """End of the longest redacting match so far; -1 when there is none."""
        self.rule = -1
        self.block = -1
        """The blocking rule that matches from here; -1 when none does so far."""
        self.ignored = 0


class StreamFilter:
    """One text's filter. `feed` it the pieces, `finish` it; both return what may leave. After `blocked`, nothing does.

    `findings` collects indices of rules as their effect becomes certain; the caller takes and clears it.
    """

    __slots__ = (
        "_base",
        "_buffer",
        "_flagged",
        "_found",
        "_last",
        "_machine",
        "_out",
        "_pos",
        "_prev",
        "_runs",
        "_search",
        "blocked",
        "findings",
    )

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._search = machine.automaton.search
        self._runs: list[_Run] = []
        self._found: list[_Run] = []
        self._buffer = ""
        self._base = 0
        self._out = 0
        self._pos = 0
        self._last = 0
        """Where the last visible character ended: a match that is certain only later ends there."""
        self._prev = ""
        self._flagged: set[int] = set()
        self.blocked = False
        self.findings: list[int] = []

    @property
    def held(self) -> int:
        """Characters taken in and neither released nor replaced yet."""
        return 0 if self.blocked else self._pos - self._out

    def seed(self, context: str) -> None:
        """Take in text that was settled before this filter was opened, so that what follows is seen in its place.

        Redactions that begin in it were settled with it (one that begins inside another's match never counts). A block
        that begins in it cuts at its end.
        """
        self._scan(context)
        self._out = self._pos
        self._found.clear()
        self.findings.clear()
        for run in self._runs:
            run.start, run.block = self._pos, -1
        self._trim()

    def feed(self, piece: str) -> str:
        """Take in the next piece and return what may leave now."""
        if not self._runs and not self.blocked and self._search(piece) is None:
            # The usual case: nothing is held and nothing in this piece can begin a match.
            if piece:
                self._pos += len(piece)
                self._base = self._out = self._pos
                self._prev = piece[-1]
            return piece
        if self.blocked:
            return ""
        self._scan(piece)
        return self._release()

    def finish(self) -> str:
        """Say that the text has ended and return the rest that may leave."""
        if self.blocked:
            return ""
        for run in self._runs:
            accepts = self._machine.automaton.finish(run.state)
            if accepts:
                self._record(run, accepts, self._last)
            if run.end >= 0 or run.block >= 0:
                self._found.append(run)
        self._runs.clear()
        return self._release()

    def _scan(self, piece: str) -> None:
        """Step all runs over `piece` and begin new ones."""
        automaton = self._machine.automaton
        search, starts, advance = self._search, automaton.starts, automaton.advance
        base = self._pos
        self._buffer += piece
        prev = self._prev
        runs = self._runs
        at, size = 0, len(piece)
        while at < size:
            if not runs:
                hit = search(piece, at)
                if hit is None:
                    prev = piece[-1]
                    break
                skip = hit.start()
                if skip > at:
                    at = skip
                    prev = piece[at - 1]
            char = piece[at]
            if char > "\x7f" and char in IGNORABLE:
                if runs:
                    self._pass_over(base + at)
                    runs = self._runs
                at += 1
                continue
            if runs:
                self._step(char, base + at)
                runs = self._runs
            state = starts.get(prev) or automaton.start(prev)
            following = state.trans.get(char, MISSING)
            if following is MISSING:
                following = advance(state, char)
            if following is not None:
                run = _Run(base + at, following)
                if following.accepts:
                    self._record(run, following.accepts, base + at + 1)
                self._keep(run, runs)
            prev = char
            at += 1
            self._last = base + at
        self._prev = prev
        self._pos = base + size

    def _step(self, char: str, at: int) -> None:
        """Step every run over the character at `at`."""
        kept: list[_Run] = []
        for run in self._runs:
            state = run.state
            following = state.trans.get(char, MISSING)
            if following is MISSING:
                following = self._machine.automaton.advance(state, char)
            if char in state.before:
                self._record(run, state.before[char], self._last)
            if following is None:
                if run.end >= 0 or run.block >= 0:
                    self._found.append(run)
                continue
            run.state = following
            if run.state.accepts:
                self._record(run, run.state.accepts, at + 1)
            self._keep(run, kept)
        self._runs = kept

    def _keep(self, run: _Run, runs: list[_Run]) -> None:
        if run.state.live:
            runs.append(run)
        elif run.end >= 0 or run.block >= 0:
            self._found.append(run)

    def _pass_over(self, at: int) -> None:
        """Step every run over an invisible character."""
        kept: list[_Run] = []
        for run in self._runs:
            run.ignored += 1
            if run.ignored <= MAX_IGNORED:
                kept.append(run)
            elif run.end >= 0 or run.block >= 0:
                self._found.append(run)
        self._runs = kept

    def _record(self, run: _Run, accepts: tuple[int, ...], end: int) -> None:
        """Note that rules match from the run's start to `end`."""
        for index in accepts:
            rule = self._machine.rules[index]
            if not rule.passes(self._plain(run.origin, end)):
                continue
            if rule.bit == FLAG:
                if index not in self._flagged:
                    self._flagged.add(index)
                    self.findings.append(index)
            elif rule.bit == BLOCK:
                if run.block < 0:
                    run.block = index
            elif end > run.end or (end == run.end and index < run.rule):
                run.end, run.rule = end, index

    def _plain(self, start: int, end: int) -> str:
        """Return the text of a match as it was compared."""
        text = self._buffer[start - self._base : end - self._base]
        if text.isascii():
            return text
        return "".join(fold(char) for char in text if char not in IGNORABLE)

    def _release(self) -> str:
        """Return everything that is settled, matches replaced; the module's docstring gives the rule."""
        pos, out = self._pos, self._out
        if not self._runs and not self._found:
            # Candidates came to nothing.
            text = self._buffer[out - self._base :]
            self._buffer, self._base, self._out = "", pos, pos
            return text
        barrier, blocker = self._barrier()
        redactions = sorted((run for run in (*self._runs, *self._found) if run.end >= 0), key=_origin)
        pieces: list[str] = []
        stop = False
        for run in redactions:
            if run.origin < out:
                continue  # Inside an earlier match.
            if run.origin >= barrier or run.origin >= self._unsettled(out):
                break
            pieces.append(self._text(out, run.origin))
            out = run.origin
            if run.end > barrier:
                # It overlaps what is blocked, or may yet be: nothing of it leaves.
                stop = True
                break
            pieces.append(self._machine.rules[run.rule].replacement)
            self.findings.append(run.rule)
            out = run.end
        if not stop:
            limit = min(barrier, self._unsettled(out))
            pieces.append(self._text(out, limit))
            out = limit
            stop = out == barrier
        self._out = out
        if stop and blocker >= 0:
            self._block(blocker)
        else:
            self._trim()
        return "".join(pieces)

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

    def _unsettled(self, out: int) -> int:
        """Return the leftmost place from `out` on where a redaction may yet begin or grow."""
        return min(
            (run.origin for run in self._runs if run.state.live & REDACT and run.origin >= out), default=self._pos
        )

    def _text(self, start: int, end: int) -> str:
        return self._buffer[start - self._base : end - self._base]

    def _block(self, rule: int) -> None:
        self.blocked = True
        self.findings.append(rule)
        self._buffer = ""
        self._runs.clear()
        self._found.clear()

    def _trim(self) -> None:
        """Forget the text that no run and no release needs any more."""
        self._found = [run for run in self._found if run.start >= self._out]
        base = min((run.origin for run in (*self._runs, *self._found)), default=self._out)
        base = min(base, self._out)
        self._buffer = self._buffer[base - self._base :]
        self._base = base


def _origin(run: _Run) -> int:
    return run.origin
