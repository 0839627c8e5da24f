"""Runs the gate's tests: bin/test says how.

The groups of PARALLEL are one run of several processes, each of SERIAL is a run of its own, of one; what failed in any
of them then runs alone. No failure ends the rest.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.gate import verdict
from tests.support.gate.verdict import Session

PARALLEL = ("unit", "contract", "security", "integration", "e2e", "drills")
SERIAL = ("compose", "k8s")
WORKERS = 4
"""Processes that run tests: more than two cores have, since half of the tests wait."""
PYTEST = ("-q", "--durations=20", "--durations-min=15", "--continue-on-collection-errors")
SECONDS_TO_END = 30.0
"""How long an interrupted pytest has to take down what its tests have set up."""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Groups, options, and what comes behind "--" as `pytest`."""
    ours, theirs = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(
        prog="bin/test", description=__doc__, epilog="Options of pytest come behind `--`: bin/test unit -- -k quota"
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(PARALLEL)}; {', '.join(SERIAL)}")
    parser.add_argument("--ci", action="store_true", help="all groups; what needs root and Docker has to run")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes (default: %(default)s)")
    options = parser.parse_args(ours)
    if unknown := set(options.groups) - {*PARALLEL, *SERIAL}:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    options.groups = options.groups or ([*PARALLEL, *SERIAL] if options.ci else PARALLEL)
    options.pytest = theirs
    return options


class Gate:
    """Runs pytest for one call of bin/test, and keeps each run's wall time, in seconds, for the end."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.records = folder / "records"
        self.walls: list[str] = []

    def run(self, name: str, groups: Sequence[str], *how: str) -> Session:
        """One run of pytest to its end, with `how` as its last arguments."""
        print(f"\n=== {name}", flush=True)
        self.records.write_text("", encoding="utf-8")
        recording = Path(__file__).with_name("recording.py")
        # Tests start hundreds of processes from the same files: byte code is written, whatever is set elsewhere.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
        if self.options.ci and set(groups) <= set(SERIAL):
            environment["WEIR_CI"] = "1"
        command = [sys.executable, str(recording), str(self.records), *PYTEST, *self.options.pytest, *how]
        begun = time.monotonic()
        code = call(command, environment)
        self.walls.append(f"{name} {time.monotonic() - begun:.0f} s")
        return verdict.read(name, groups, code, self.records.read_text(encoding="utf-8"))

    def first(self) -> list[Session]:
        """Every group, once."""
        sessions = []
        if groups := [each for each in PARALLEL if each in self.options.groups]:
            spread = ("-n", str(self.options.workers), "--dist", "loadscope", "--no-loadscope-reorder")
            sessions.append(self.run(", ".join(groups), groups, *(f"tests/{each}" for each in groups), *spread))
        serial = [each for each in SERIAL if each in self.options.groups]
        return sessions + [self.run(each, [each], f"tests/{each}", "-n", "0") for each in serial]

    def alone(self, of: Session, tests: Sequence[str]) -> list[Session]:
        """Tests once more in one process; in another one what is left when one of them takes that with it."""
        sessions = []
        while tests:
            sessions.append(self.run(f"alone, of {of.name}", of.groups, *tests, "-n", "0"))
            left = [test for test in tests if not sessions[-1].met(test)]
            if sessions[-1].ended or len(left) == len(tests):
                break
            tests = left
        return sessions


def call(command: Sequence[str], environment: dict[str, str]) -> int:
    """A command's exit code. The command and its children are a group of their own; an interrupt ends them all."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # who interrupts twice means at once
            process.wait(SECONDS_TO_END)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise


def main() -> int:
    """Everything, and the verdict. Exit code 0 when nothing failed twice, 130 when interrupted."""
    options = arguments(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with TemporaryDirectory(prefix="weir-test-") as folder:
            gate = Gate(options, Path(folder))
            sessions = gate.first()
            reruns = []
            for session, tests in zip(sessions, verdict.to_rerun(sessions), strict=True):
                reruns += gate.alone(session, tests)
    except KeyboardInterrupt:
        print("\ninterrupted: not all tests have run", flush=True)
        return 128 + signal.SIGINT
    told = verdict.judge(sessions, reruns)
    print("", *told.lines(gate.walls), sep="\n")
    return told.code


if __name__ == "__main__":
    sys.exit(main())
