"""What runs of pytest amount to: pure functions over what tests/support/gate/recording.py wrote down.

A test has failed when one of its phases has, or when it began and never ended. One that failed in the gate's run and
passes alone is unsteady: no reason to hold back a change, and a fault all the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

RERUN_MAX = 40
"""With more failures than these, something is broken for all of them: each alone would tell nothing new, for hours."""
EXITS = {2: "it was interrupted", 3: "internal error", 4: "it could not start", 5: "there was no test to run"}
"""pytest's exit codes that are no verdict on tests."""
UNSTEADY = """\
**UNSTEADY**: failed in the run and passed alone. The gate lets that pass, but it is a fault, of the test or of what it
tests: mend it first of all, before the next change."""


@dataclass(frozen=True)
class Session:
    """One run of pytest: what it ran, its process's exit code, and what was recorded, in that order."""

    name: str
    groups: tuple[str, ...]
    code: int
    events: tuple[Mapping, ...]

    def outcomes(self) -> dict[str, str]:
        """ "passed", "failed" or "skipped" by node id, of the tests that began and of collections that did not pass."""
        told: dict[str, set[str]] = {}
        for event in self.events:
            if event["when"] not in ("collected", "death", "end"):
                told.setdefault(event["id"], set()).add(event.get("outcome") or event["when"])
        ended = {event["id"] for event in self.events if event["when"] in ("teardown", "collect")}
        return {test: _worst(words) if test in ended else "failed" for test, words in told.items()}

    def failed(self) -> list[str]:
        """Node ids of what failed and can be run again."""
        return [test for test, outcome in self.outcomes().items() if outcome == "failed" and self.group(test)]

    def group(self, test: str) -> str | None:
        """The group of a node id; None for what is no test's, such as a process's name."""
        folder, _, rest = test.partition("/")
        group = rest.partition("/")[0]
        return group if folder == "tests" and group in self.groups else None

    def met(self, test: str) -> bool:
        """Whether a test, or something of a file, was reached."""
        return any(each == test or each.startswith(test + "::") for each in self.outcomes())

    def passes(self, test: str) -> bool:
        """Whether a test passed here; a file that could not be collected passes when it is."""
        outcomes = self.outcomes()
        return outcomes[test] == "passed" if test in outcomes else self.met(test)

    @property
    def ended(self) -> bool:
        """Whether pytest came to its end, well or not."""
        return bool(self.events) and self.events[-1]["when"] == "end"

    def troubles(self) -> list[str]:
        """What is wrong besides tests that failed, a line each."""
        told = []
        failed = [test for test, outcome in self.outcomes().items() if outcome == "failed"]
        told += [f"pytest reports a failure of {test}" for test in failed if not self.group(test)]
        whens = Counter(event["when"] for event in self.events)
        collected = max((event["count"] for event in self.events if event["when"] == "collected"), default=0)
        begun = {event["id"] for event in self.events if event["when"] in ("start", "???")}
        if self.ended and (unrun := collected - len(begun)) > 0:
            told.append(f"{unrun} of {collected} tests did not run")
        if whens["death"] > whens["???"]:
            told.append(f"{whens['death'] - whens['???']} of pytest's processes died between tests")
        if not self.ended:
            told.append(f"pytest got no end: exit code {self.code}")
        elif self.code != self.events[-1]["code"]:
            told.append(f"pytest's process died at its end: exit code {self.code}")
        elif self.code not in (0, 1):
            told.append(f"pytest: {EXITS.get(self.code, 'stopped')} (exit code {self.code})")
        elif self.code == 1 and not failed:
            told.append("pytest is red and names no test")
        return [f"{self.name}: {each}" for each in told]


def _worst(outcomes: set[str]) -> str:
    return next((each for each in ("failed", "skipped") if each in outcomes), "passed")


def read(name: str, groups: Sequence[str], code: int, text: str) -> Session:
    """A session from its records; a last line that was cut off is none."""
    whole = text[: text.rfind("\n") + 1]
    return Session(name, tuple(groups), code, tuple(json.loads(line) for line in whole.splitlines()))


def to_rerun(sessions: Iterable[Session]) -> list[list[str]]:
    """What to run alone, session by session; nothing when there is too much."""
    failed = [session.failed() for session in sessions]
    return failed if sum(map(len, failed)) <= RERUN_MAX else [[] for _ in failed]


@dataclass
class Row:
    """A group's numbers; `seconds` is the sum of its tests', whatever ran beside them."""

    passed: int = 0
    failed: int = 0
    unsteady: int = 0
    skipped: int = 0
    seconds: float = 0.0


@dataclass
class Verdict:
    """All there is to say: numbers by group, node ids, and what no test can be blamed for."""

    rows: dict[str, Row] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def code(self) -> int:
        """The exit code: 0 when nothing failed twice."""
        return 1 if self.failed or self.troubles else 0

    def lines(self, walls: Sequence[str]) -> list[str]:
        """The table with what each run took by the wall, the names, and a last line that says it all."""
        said = [
            f"{'group':12} {'passed':>7} {'failed':>7} {'passed only alone':>18} {'skipped':>8} {'test seconds':>13}"
        ]
        for name, row in self.rows.items():
            numbers = f"{row.passed:7} {row.failed:7} {row.unsteady:18} {row.skipped:8} {row.seconds:13.1f}"
            said.append(f"{name:12} {numbers}")
        said.append(f"wall time: {'; '.join(walls)}")
        for title, names in ((UNSTEADY, self.unsteady), ("FAILED:", self.failed), ("BROKEN:", self.troubles)):
            said += ["", title, *(f"  {name}" for name in names)] if names else []
        numbers = f"{len(self.failed)} failed, {len(self.unsteady)} unsteady, {len(self.troubles)} broken"
        return [*said, "", f"{'RED' if self.code else 'UNSTEADY' if self.unsteady else 'GREEN'}: {numbers}"]


def judge(sessions: Sequence[Session], reruns: Sequence[Session]) -> Verdict:
    """The verdict over the gate's sessions and those in which their failures ran alone."""
    verdict = Verdict()
    for session in sessions:
        verdict.rows |= {group: Row() for group in session.groups}
        for test, outcome in session.outcomes().items():
            if (group := session.group(test)) is None:
                continue
            row = verdict.rows[group]
            if outcome != "failed":
                setattr(row, outcome, getattr(row, outcome) + 1)
            elif any(rerun.passes(test) for rerun in reruns):
                row.unsteady += 1
                verdict.unsteady.append(test)
            else:
                row.failed += 1
                verdict.failed.append(test)
        for event in session.events:
            if group := session.group(event.get("id", "")):
                verdict.rows[group].seconds += event.get("seconds", 0.0)
    # The tests of a file that could be collected only now.
    for rerun in reruns:
        for test in rerun.failed():
            if test not in verdict.failed:
                verdict.rows[str(rerun.group(test))].failed += 1
                verdict.failed.append(test)
    if not reruns and (count := len(verdict.failed)) > RERUN_MAX:
        verdict.troubles.append(f"{count} failed, more than {RERUN_MAX}: none of them was run again alone")
    verdict.troubles += chain.from_iterable(session.troubles() for session in (*sessions, *reruns))
    return verdict
