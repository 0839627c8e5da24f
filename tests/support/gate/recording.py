"""A run of pytest that also writes down what comes of each test: `recording.py RECORDS [PYTEST ARGUMENT …]`.

RECORDS gets a line of JSON per event, at once, so that it holds what was known when the process died. Keys: `when`, one
of "collected" (`count` tests), "start", "setup", "call", "teardown", "???" (a process died with the test in it),
"collect" (did not pass), "death" (of a process under xdist) and, last of all, "end" (with `code`, pytest's exit code);
`id`, the node id of a test or collector, the name of a process; `outcome` "passed", "failed" or "skipped"; `seconds`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


class Recording:
    """Hooks of the process that reports: the only one, or the one that controls xdist's."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, **event: Any) -> None:
        """One line, out of this process's hands when it returns."""
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write(when="collected", count=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.write(when="collected", count=len(ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(id=nodeid, when="start")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.write(id=report.nodeid, when=report.when, outcome=report.outcome, seconds=report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.write(id=report.nodeid, when="collect", outcome=report.outcome)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self.write(id=node.gateway.id, when="death")


def main() -> int:
    """Runs pytest as `python -m pytest` does; its processes under xdist record nothing themselves."""
    sys.path[0] = os.getcwd()
    recording = Recording(Path(sys.argv[1]))
    code = int(pytest.main(sys.argv[2:], plugins=[recording]))
    recording.write(when="end", code=code)
    return code


if __name__ == "__main__":
    sys.exit(main())
