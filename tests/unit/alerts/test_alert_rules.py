"""Every alert has a page that says what to do, a history that makes it fire, and one near it that does not."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections import Counter
from functools import cache
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from services.cli.mesh.monitoring import RULES
from tests.support.mesh import ROOT
from tests.support.prometheus import program, promtool

FOLDER, PAGES = ROOT / "deploy" / "alerts", ROOT / "docs" / "runbooks"
PARTS = ("What users see", "What to look at", "What to do", "It is over when")
NOT_OURS = re.compile(r"\b(?:up|etcd_\w+|process_start_time_seconds)\b")
"""Series that Prometheus, etcd and the client library give."""


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


def counted() -> set[str]:
    """Every series that a process of ours can give."""
    files = [*ROOT.glob("services/*/metrics.py"), *ROOT.glob("libs/*/metrics.py"), ROOT / "libs/outcomes/recorder.py"]
    for path in files:
        importlib.import_module(str(path.relative_to(ROOT).with_suffix("")).replace("/", "."))
    return {sample for names in REGISTRY._collector_to_names.values() for sample in names}


def test_no_rule_reads_what_nobody_counts() -> None:
    known = counted() | {"weir_clock_seconds", "weir_disk_free_ratio"}
    known |= {"weir_certificate_expiry_seconds", "weir_certificate_life_seconds"}
    read = {name for rule in alerts() for name in re.findall(r"\bweir_\w+", rule["expr"])}
    assert read
    assert not read - known


def test_nothing_that_a_process_counts_has_the_label_of_its_target() -> None:
    """It would be renamed to exported_… ."""
    counted()
    labels = {label for family in REGISTRY.collect() for sample in family.samples for label in sample.labels}
    assert labels
    assert not labels & {"job", "instance", "weir_internal_zone"}


def test_where_alerts_go_is_what_alertmanager_takes() -> None:
    checked = [program("amtool"), "check-config", str(ROOT / "deploy" / "alertmanager.yml")]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
