"""What records of a run amount to."""

from __future__ import annotations

import json

from tests.support.gate.verdict import judge, read


def test_a_killed_run_loses_neither_what_it_was_in_nor_what_was_known():
    phases = [
        *({"id": "tests/unit/a.py::ended", "when": when, "outcome": "passed", "seconds": 0.5} for when in PHASES),
        {"id": "tests/unit/a.py::begun", "when": "start"},
        {"id": "tests/unit/a.py::begun", "when": "setup", "outcome": "passed", "seconds": 2.0},
    ]
    text = "".join(json.dumps(event) + "\n" for event in phases) + '{"id": "tests/unit/a.py::begun", "wh'
    session = read("unit", ["unit"], -9, text)
    assert session.outcomes() == {"tests/unit/a.py::ended": "passed", "tests/unit/a.py::begun": "failed"}
    assert session.troubles() == ["unit: pytest got no end: exit code -9"]
    told = judge([session], [])
    assert (told.code, told.failed, told.rows["unit"].passed) == (1, ["tests/unit/a.py::begun"], 1)
    assert told.rows["unit"].seconds == 3.5


def test_what_no_test_is_called_is_not_run_again():
    text = '{"id": "gw1", "when": "collect", "outcome": "failed"}\n{"when": "end", "code": 1}\n'
    session = read("unit", ["unit"], 1, text)
    assert session.failed() == []
    assert session.troubles() == ["unit: pytest reports a failure of gw1"]


def test_what_is_skipped_alone_has_not_passed():
    first = read("unit", ["unit"], 1, lines("failed", 1))
    assert judge([first], [read("alone", ["unit"], 0, lines("skipped", 0))]).code == 1
    assert judge([first], [read("alone", ["unit"], 0, lines("passed", 0))]).code == 0


PHASES = ("setup", "call", "teardown")


def lines(outcome: str, code: int) -> str:
    events = [{"id": "tests/unit/a.py::it", "when": when, "outcome": "passed", "seconds": 0.0} for when in PHASES]
    events[1]["outcome"] = outcome
    return "".join(json.dumps(event) + "\n" for event in [*events, {"when": "end", "code": code}])
