"""py-spy's raw output, summed."""

from __future__ import annotations

import pytest

from loadtest.profiling import parse, render

RAW = """\
main (app.py:1);work (app.py:10) 6
main (app.py:2);work (app.py:12);parse (json.py:3) 3
main (app.py:1) 1
"""


def test_sums_by_function_whatever_the_line() -> None:
    profile = parse(RAW)
    assert profile.samples == 10
    assert profile.own == {"work (app.py)": 0.6, "parse (json.py)": 0.3, "main (app.py)": 0.1}
    assert profile.total["main (app.py)"] == 1.0
    assert profile.total["work (app.py)"] == pytest.approx(0.9)


def test_counts_a_recursion_once() -> None:
    assert parse("f (a.py:1);f (a.py:2);f (a.py:2) 4\n").total == {"f (a.py)": 1.0}


def test_leaves_out_the_thread_that_waits_in_native_code() -> None:
    waiting = "Thread._bootstrap (threading.py:1002);Thread.run (threading.py:982) 90\n"
    assert parse(RAW + waiting) == parse(RAW)


def test_nothing_sampled_is_no_error() -> None:
    assert parse("").own == {}


def test_renders_the_top_first() -> None:
    lines = render("gateway", parse(RAW), seconds=1.0, top=2).splitlines()
    assert lines == [
        "  gateway: 10 samples, 10% of a core (own, with callees)",
        "     60.0%  90.0%  work (app.py)",
        "     30.0%  30.0%  parse (json.py)",
    ]
