"""Drills of alerts: each alert has a fault that provokes it, or a reason why it has none; rules that run faster are the
same rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loadtest.alerts.__main__ import FACTOR, LATEST, figures, wrong
from loadtest.alerts.drills import DRILLS, FASTEST, NOT_DRILLED, QUICK, Result, chosen
from loadtest.alerts.shortened import INTERVAL, seconds, shortened, windows
from loadtest.alerts.watch import Watch
from services.cli.mesh.monitoring import RULES
from tests.support.mesh import ROOT
from tests.support.prometheus import promtool

FOLDER = ROOT / "deploy" / "alerts"
WINDOWS = {name: length for file in RULES for name, length in windows((FOLDER / file).read_text()).items()}


def test_each_alert_has_one_drill_or_a_reason_why_it_has_none() -> None:
    drilled = Counter(name for drill in DRILLS for name in drill.alerts) + Counter(NOT_DRILLED.keys())
    assert drilled == Counter(WINDOWS.keys())
    assert all(NOT_DRILLED.values())
    assert set(QUICK) <= set(drilled)
    assert {name for each in chosen(QUICK) for drill in each for name in drill.alerts} == set(QUICK)


@given(st.integers(1, 10_000), st.sampled_from(("s", "m", "h")), st.floats(1.0, 100.0))
def test_every_window_is_as_many_times_as_short(count: int, unit: str, factor: float) -> None:
    length = f"{count}{unit}"
    expr = f'rate(x_total{{le="5m"}}[{length}]) > 5 and ratio_rate5m offset {length}'
    file = yaml.safe_dump({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": expr, "for": length}]}]})
    [rule] = yaml.safe_load(shortened(file, factor))["groups"][0]["rules"]
    want = seconds(length) / factor
    assert windows(shortened(file, factor))["A"] == pytest.approx(want, abs=0.001)
    told = rule["for"]
    assert rule["expr"] == f'rate(x_total{{le="5m"}}[{told}]) > 5 and ratio_rate5m offset {told}'


def test_a_rule_that_fires_at_once_still_does_and_nothing_gets_slower() -> None:
    file = yaml.safe_dump({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "x", "for": "0s"}]}]})
    assert windows(shortened(file, 15)) == {"A": 0.0}
    with pytest.raises(ValueError, match="at least 1"):
        shortened(file, 0.5)
    with pytest.raises(ValueError, match="duration"):
        seconds("soon")


@pytest.mark.parametrize("name", RULES)
def test_shortened_rules_are_rules_and_no_window_stays(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    made = shortened(text, FACTOR)
    (tmp_path / name).write_text(made)
    promtool("check", "rules", str(tmp_path / name))
    # Under a quarter of an hour, with as many scrapes in it.
    assert max(windows(made).values()) * FACTOR == pytest.approx(max(windows(text).values()))
    assert INTERVAL / FACTOR == 1.0


def test_a_watch_tells_from_when_to_when_an_alert_fired_and_again() -> None:
    watch = Watch("127.0.0.1:9")
    for now, firing in enumerate(({"A"}, {"A", "B"}, {"B"}, {"A"}, set[str]())):
        watch.note(firing, float(now))
    assert [(each.began, each.ended) for each in watch.firings["A"]] == [(0.0, 2.0), (3.0, 4.0)]
    assert [(each.began, each.ended) for each in watch.firings["B"]] == [(1.0, 3.0)]
    assert not watch.firing("A")


def test_a_watch_looks_at_the_labels_it_is_told_to_and_at_all_of_other_alerts() -> None:
    told = [{"alertname": "A", "short_window": "6h"}, {"alertname": "B"}]
    assert Watch("127.0.0.1:9", {"A": {"short_window": "5m"}}).names(told) == {"B"}
    assert (
        Watch("127.0.0.1:9", {"A": {"short_window": "6h"}}).names(told)
        == Watch("127.0.0.1:9").names(told)
        == {"A", "B"}
    )


def test_what_is_waited_for_of_an_alert_is_among_its_rules() -> None:
    rules = [
        {"alertname": rule.get("alert"), **rule.get("labels", {})}
        for file in RULES
        for group in yaml.safe_load((FOLDER / file).read_text())["groups"]
        for rule in group["rules"]
    ]
    assert all(
        any({"alertname": name, **labels}.items() <= rule.items() for rule in rules) for name, labels in FASTEST.items()
    )


def test_what_counts_is_the_time_beyond_the_rules_own_window() -> None:
    results = [Result("A", 9.0, 2.0, 8.0), Result("B", 3.0, 1.0, 0.0)]
    told = figures(results, [], FACTOR)
    assert told == {
        "alerts_fired": 2, "alerts_ended": 2, "alert_s_max": 3.0, "alert_s_max_15s": 31.0, "false_alerts": 0,
    }  # fmt: skip
    assert not wrong(results, told, {"A", "B"})


def test_an_alert_that_is_silent_late_or_false_is_told() -> None:
    silent, late = Result("A", None, None, 8.0, "not within"), Result("B", LATEST + 9.0, 1.0, 8.0)
    told = figures([silent, late], ["C"], FACTOR)
    assert wrong([silent, late], told, {"A", "B"}) == ["A", "alert_s_max", "false_alerts"]
    # What cannot be done on this machine is named, and no fault.
    assert wrong([silent], figures([silent], None, FACTOR), ()) == []
