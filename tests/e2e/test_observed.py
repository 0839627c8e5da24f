"""A mesh with a real Prometheus and a real Alertmanager: every process is scraped, wherever it went, every rule is
evaluated, and what is wrong reaches whoever is told."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from libs.manifests import dashboards
from tests.support.mesh import ROOT, Mesh, eventually
from tests.support.prometheus import program

SETTINGS = ("replicas.prometheus=1", "replicas.alertmanager=1", "prometheus.interval=1s", "replicas.predictor=1")
PANELS = [
    (path.stem, panel)
    for path in sorted((ROOT / "deploy" / "dashboards").glob("*.toml"))
    for panel in dashboards.read(path.read_text()).panel
]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    for name in ("prometheus", "alertmanager"):
        program(name)
    with Mesh(tmp_path_factory.mktemp("observed"), profile="simulated", settings=SETTINGS) as mesh:
        yield mesh


def asked(mesh: Mesh, process: str, path: str) -> Any:
    address = mesh.file()["services"][process]["address"]
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return json.load(answer)


def test_every_process_is_scraped_under_its_name(observed: Mesh) -> None:
    services = observed.file()["services"]

    def whole() -> bool:
        found = asked(observed, "prometheus", "/api/v1/targets?state=active")["data"]["activeTargets"]
        seen = {(each["labels"]["job"], each["labels"]["instance"]): each["health"] for each in found}
        assert seen == {(each["service"], name): "up" for name, each in services.items()}
        return True

    eventually(whole, what="every process being scraped")


def test_every_rule_can_be_evaluated(observed: Mesh) -> None:
    def evaluated() -> bool:
        groups = asked(observed, "prometheus", "/api/v1/rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
        return len(rules) > 40

    eventually(evaluated, what="every rule being evaluated")


def query(mesh: Mesh, expression: str) -> list[float]:
    """What it gives now; numbers only."""
    asked_for = urllib.parse.quote(expression.replace("$__rate_interval", "1m"))
    answer = asked(mesh, "prometheus", f"/api/v1/query?query={asked_for}")
    assert answer["status"] == "success"
    values = [float(each["value"][1]) for each in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


def test_every_panel_of_a_dashboard_shows_something_of_a_mesh_that_is_used(observed: Mesh, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"features": [[1.0] * 30]}))
    lacking = {(name, panel.title, legend) for name, panel in PANELS for legend in panel.series}

    def shown() -> bool:
        observed.weir("complete", "Tell me about rivers.", "--max-tokens", "20")
        observed.weir("predict", "cancer-gbdt", str(tmp_path / "rows.json"), "--json")
        for name, panel in PANELS:
            for legend, expression in panel.series.items():
                if query(observed, expression) or panel.quiet:
                    lacking.discard((name, panel.title, legend))
        assert not lacking
        return True

    eventually(shown, what="every panel showing something")


def test_what_starts_over_and_over_again_reaches_whoever_is_told(observed: Mesh) -> None:
    """The collector, without which everything goes on."""

    def scraped(lives: int) -> bool:
        answer = asked(observed, "prometheus", '/api/v1/query?query=process_start_time_seconds{instance="collector"}')
        starts.update(each["value"][1] for each in answer["data"]["result"])
        return len(starts) > lives

    starts = set[str]()
    for kills in range(3):
        eventually(partial(scraped, kills), what="the collector being scraped")
        observed.wait_back("collector", observed.kill("collector"))

    def told() -> bool:
        alerts = asked(observed, "alertmanager", "/api/v2/alerts")
        [flapping] = [each for each in alerts if each["labels"]["alertname"] == "WeirProcessFlapping"] or [None]
        assert flapping is not None
        assert flapping["labels"]["instance"] == "collector"
        assert flapping["annotations"]["summary"] == "collector collector started over and over again"
        return True

    eventually(told, what="Alertmanager being told")
