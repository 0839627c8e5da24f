"""How a bench ends: with its line whatever happened, green only where it can be believed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from loadtest.figures import NothingFoundError, needed
from loadtest.overload import output


def line_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The last one."""
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def test_what_a_bench_found_is_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    parts = output.Parts()
    with parts.part("one"):
        parts.figures["a"] = 3.0
    output.finish("some", parts, {"a": "≤ 1"}, {"seconds": 2})
    line = line_of(capsys)
    assert line.keys() == {"bench", "figures", "targets", "conditions", "machine"}
    assert line["figures"] == {"a": 3.0}, "a target that is missed ends nothing red"


def test_a_part_that_found_nothing_makes_it_red_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    parts = output.Parts()
    with parts.part("streams"):
        parts.figures["streams"] = needed(0, "number of streams held")
    with parts.part("refused"):
        raise ExceptionGroup("", [RuntimeError("64 of 64 answers failed")])
    with parts.part("other"):
        parts.figures["b"] = 1.0
    with pytest.raises(SystemExit) as ended:
        output.finish("some", parts, {"b": "≤ 1"})
    line = line_of(capsys)
    assert ended.value.code == 1
    assert line["figures"] == {"b": 1.0}
    assert line["faults"] == {
        "streams": f"{NothingFoundError.__name__}: no number of streams held",
        "refused": "RuntimeError: 64 of 64 answers failed",
    }


def test_a_target_that_nobody_measured_makes_it_red_but_for_what_was_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = output.Parts()
    with pytest.raises(SystemExit):
        output.finish("some", parts, {"a": "≤ 1", "b": "≤ 1"}, left_out=["b"])
    assert line_of(capsys)["faults"] == {"a": "not measured"}


def test_a_bench_is_ended_in_the_midst_of_a_part() -> None:
    with pytest.raises(SystemExit), output.Parts().part("one"):
        sys.exit(1)  # as a signal does
