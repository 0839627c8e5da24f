"""Every alert has a page that says what to do, a history that makes it fire, and one near it that does not."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from typing import Any

import pytest
import yaml

from libs.manifests import dashboards
from services.cli.mesh.monitoring import RULES
from tests.support.mesh import ROOT
from tests.support.prometheus import program, promtool

FOLDER, PAGES = ROOT / "deploy" / "alerts", ROOT / "docs" / "runbooks"
PARTS = ("What users see", "What to look at", "What to do", "It is over when")
PAGE = ROOT / "docs" / "metrics.md"


@cache
def alerts() -> list[dict[str, Any]]:
    files = [yaml.safe_load((FOLDER / name).read_text()) for name in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]


NAMES = sorted({rule["alert"] for rule in alerts()})


def test_the_rules_and_their_cases_hold_before_promtool() -> None:
    promtool("check", "rules", *(str(FOLDER / name) for name in RULES))
    promtool("test", "rules", str(FOLDER / "tests" / "mesh.yml"))


def test_each_alert_has_a_history_that_makes_it_fire_and_one_that_does_not() -> None:
    cases = yaml.safe_load((FOLDER / "tests" / "mesh.yml").read_text())["tests"]
    expected = Counter[tuple[str, float]]()
    for case in cases:
        [asked] = case["promql_expr_test"]
        [name] = re.findall(r'alertname="(\w+)"', asked["expr"])
        expected[name, asked["exp_samples"][0]["value"]] += 1
    # Those of objectives have theirs in tests/unit/burn.
    mesh = [name for name in NAMES if name != "WeirSloBurn"]
    assert sorted(expected) == sorted((name, value) for name in mesh for value in (0, 1))


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == NAMES
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
        assert rule["labels"]["severity"] in ("page", "ticket")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_users_see_what_to_look_at_what_to_do_and_when_it_is_over(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    places = [text.index(f"**{part}") for part in PARTS]
    assert places == sorted(places)
    [block] = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    assert all(line.startswith("weir ") for line in block.splitlines())


def test_the_page_of_all_alerts_has_each_once_with_its_severity() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(runbooks/\1\.md\) \| ([a-z, ]+) \|", text, re.MULTILINE)
    severities = {name: {rule["labels"]["severity"] for rule in alerts() if rule["alert"] == name} for name in NAMES}
    assert sorted(rows) == sorted((name, ", ".join(sorted(severities[name]))) for name in NAMES)


def declared() -> dict[str, set[str]]:
    """Every metric that a process of ours has, with its labels: the page is what the code says (`make docs-check`)."""
    rows = re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    return {name: set(re.findall(r"\w+", labels)) for name, labels in rows}


def test_no_rule_and_no_dashboard_reads_what_nobody_counts() -> None:
    read = [rule["expr"] for rule in alerts()]
    for path in (ROOT / "deploy" / "dashboards").glob("*.toml"):
        read += [expr for panel in dashboards.read(path.read_text()).panel for expr in panel.series.values()]
    ours = {name for expr in read for name in re.findall(r"\b(?:weir|gen_ai)_\w+(?=[\s{\[)])", expr)}
    known = {name + end for name in declared() for end in ("", "_total", "_bucket", "_sum", "_count")}
    assert len(ours) > 40
    assert not ours - known - {label for labels in declared().values() for label in labels}


def test_every_metric_is_read_by_somebody_or_said_on_its_services_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|.*\| (.*?) ?\|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(declared())
    assert not [name for name, readers in rows if not readers]


def test_no_metric_has_a_label_of_its_target() -> None:
    """It would be renamed to exported_… ."""
    assert not set().union(*declared().values()) & {"job", "instance", "weir_internal_zone"}


def test_where_alerts_go_is_what_alertmanager_takes() -> None:
    checked = [program("amtool"), "check-config", str(ROOT / "deploy" / "alertmanager.yml")]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
