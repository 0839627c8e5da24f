"""docker-compose.observed.yml: Prometheus finds every process of the mesh beside it, and what is mounted is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.manifests.compose import HARDENED, WITH_REPLICAS
from libs.manifests.watched import RULES
from services.cli.mesh.monitoring import RULES as FILES
from services.cli.mesh.rendering import described
from services.cli.mesh.site import ROOT
from services.cli.mesh.sites import Container
from tests.support.prometheus import promtool

FILE = yaml.safe_load((ROOT / "docker-compose.observed.yml").read_text())
MESH = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
WATCHERS = {"prometheus", "alertmanager", "grafana"}


def content(name: str) -> str:
    """A configuration as its container finds it."""
    text: str = FILE["configs"][name]["content"]
    return text.replace("$$", "$")


@pytest.fixture(scope="module")
def prometheus() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load(content("prometheus"))
    return told


def test_prometheus_takes_its_configuration(prometheus: dict[str, Any], tmp_path: Path) -> None:
    here = prometheus | {
        "rule_files": [path.replace(RULES, str(ROOT / "deploy" / "alerts")) for path in prometheus["rule_files"]]
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(here))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert prometheus["rule_files"] == [f"{RULES}/{name}" for name in FILES]


def test_it_finds_the_control_plane_and_what_is_in_no_registry(prometheus: dict[str, Any]) -> None:
    processes = described(Container(plain_edge=True), "demo", WITH_REPLICAS)["processes"]
    services, *named = prometheus["scrape_configs"]
    [discovery] = services["http_sd_configs"]
    assert discovery["url"] == f"http://controlplane:{processes['controlplane']['ports']['metrics']}/targets"
    found = {job["job_name"]: [each["targets"] for each in job["static_configs"]] for job in named}
    assert found["etcd"] == [[f"etcd:{processes['etcd']['ports']['metrics']}"]]
    assert found["envoy"] == [[f"envoy:{processes['envoy']['ports']['status']}"]]
    [manager] = prometheus["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": found["alertmanager"][0]}]


def test_they_are_no_less_hardened_than_the_mesh_and_reach_nothing_but_it() -> None:
    assert set(FILE["services"]) == WATCHERS
    assert not WATCHERS & set(MESH["services"])
    for name, each in FILE["services"].items():
        assert {key: each[key] for key in HARDENED if key != "user"} == {
            k: v for k, v in HARDENED.items() if k != "user"
        }
        assert not each["user"].startswith("0"), name
        assert each["mem_limit"]
        assert all(port.startswith("127.0.0.1:") for port in each["ports"]), name
        assert each["image"].startswith("${WEIR_" + name.upper() + "_IMAGE:-docker.io/")
        assert ":latest" not in each["image"]
        # What is not written down is not kept.
        written = {volume["target"] for volume in each["volumes"] if not volume.get("read_only")}
        assert len(written) == 1, name


def test_what_is_mounted_is_there_and_only_read() -> None:
    binds = [v for each in FILE["services"].values() for v in each["volumes"] if v["type"] == "bind"]
    assert len(binds) == len(WATCHERS)
    for bind in binds:
        assert (ROOT / bind["source"]).exists(), bind
        assert bind["read_only"]
    assert {each["source"] for service in FILE["services"].values() for each in service.get("configs", ())} == set(
        FILE["configs"]
    )


def test_grafana_has_prometheus_and_every_dashboard() -> None:
    [source] = yaml.safe_load(content("grafana-source"))["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    [provider] = yaml.safe_load(content("grafana-pages"))["providers"]
    [pages] = [v for v in FILE["services"]["grafana"]["volumes"] if v["target"] == provider["options"]["path"]]
    described_here = {path.stem for path in (ROOT / "deploy" / "dashboards").glob("*.toml")}
    assert {path.stem for path in (ROOT / pages["source"]).glob("*.json")} == described_here
    # A provisioned page chooses among sources of this type.
    for path in (ROOT / pages["source"]).glob("*.json"):
        assert '"query": "prometheus"' in path.read_text()
