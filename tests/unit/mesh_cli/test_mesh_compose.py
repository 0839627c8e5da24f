"""docker-compose.yml is what the topology makes of it, and lets a container have no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from libs.manifests.compose import HARDENED, REPLICATED, WITH_REPLICAS, compose
from services.cli.mesh.rendering import described
from services.cli.mesh.site import ROOT, load_topology
from services.cli.mesh.sites import Container

FILE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())["services"]


@pytest.mark.parametrize("writer", ["compose-file", "image-locks"])
def test_what_is_checked_in_is_what_would_be_written(writer: str) -> None:
    """`bin/compose-file` and `bin/image-locks` write it; CI fails here when someone did not."""
    done = subprocess.run(
        [sys.executable, ROOT / "bin" / writer, "--check"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_process_of_the_topology_is_a_container(services: dict[str, Any]) -> None:
    processes = load_topology(ROOT).process
    always = {name for name, each in services.items() if "profiles" not in each}
    assert always == {"files", "rights", "init", *processes}
    assert {services[name]["labels"]["weir.zone"] for name in processes} == {"zone-a", "zone-b"}


def test_with_replicas_there_are_two_of_each_in_two_zones(services: dict[str, Any]) -> None:
    replicas = {name for name, each in services.items() if each.get("profiles") == ["replicas"]}
    assert replicas == {f"{name}-2" for name in REPLICATED}
    for name in REPLICATED:
        assert services[name]["labels"]["weir.zone"] == "zone-a"
        labels = services[f"{name}-2"]["labels"]
        assert (labels["weir.service"], labels["weir.zone"]) == (name, "zone-b")
    # What a process says of its zone is what its certificate says.
    (certificate,) = described(Container(), "demo", WITH_REPLICAS)["processes"]["gateway-2"]["certificates"]
    assert certificate["uri"].endswith("/instance/gateway-2/zone/zone-b")


def test_another_profile_is_another_container(services: dict[str, Any]) -> None:
    """Its settings lie in a volume, and Compose replaces a container only where the file says something else of it."""
    for name in load_topology(ROOT).process:
        assert services[name]["labels"]["weir.profile"] == "${WEIR_PROFILE:-demo}", name
    assert "--profile=${WEIR_PROFILE:-demo}" in services["files"]["command"]


def test_a_predictors_models_and_its_container_have_one_bound(services: dict[str, Any]) -> None:
    for name, process in described(Container(), "demo")["processes"].items():
        models = process["settings"].get("memory_bytes")
        assert (process["service"] == "predictor") is bool(models), name
        if models:
            limit = services[name]["mem_limit"]
            assert limit == f"{process['memory'] >> 20}m"
            assert process["memory"] - models >= 1 << 30, "it needs some itself, and for what it tries out"
    more = described(Container(plain_edge=True), "demo", (f"predictor-b.memory_bytes={5 << 30}",))
    assert compose(more)["services"]["predictor-b"]["mem_limit"] == "6144m"


def test_logs_do_not_fill_the_disk(services: dict[str, Any]) -> None:
    assert {each["logging"]["driver"] for each in services.values()} == {"local"}


def test_every_container_is_hardened(services: dict[str, Any]) -> None:
    for name, each in services.items():
        assert {key: each[key] for key in HARDENED} == HARDENED, name


def test_what_is_built_here_is_asked_of_no_registry(services: dict[str, Any]) -> None:
    """Without a policy Compose pulls first: whoever owns that name in a registry would run in every container."""
    assert {each["pull_policy"] for each in services.values()} == {"${WEIR_PULL:-never}"}
    assert all("build" in each for each in services.values())


def test_nobody_sees_anybody_elses_files(services: dict[str, Any]) -> None:
    """Only the job that makes them has the whole volume; everybody else has the folder of his name, to read."""
    folders = {}
    tools = {"locust"}
    for name in services.keys() - tools:
        for volume in services[name]["volumes"]:
            if volume["source"] == "mesh":
                folders[name] = (volume["target"], volume.get("read_only"), volume.get("volume", {}).get("subpath"))
    assert folders.pop("files") == ("/mesh", None, None)
    assert folders.pop("init") == ("/etc/weir", True, "seed")
    assert folders.pop("weir") == ("/etc/weir", True, "operator")
    others = services.keys() - tools - {"files", "init", "weir"}
    assert folders == {name: ("/etc/weir", True, name) for name in others}


def test_nobody_writes_what_another_reads_but_model_files(services: dict[str, Any]) -> None:
    writers: dict[str, set[str]] = {}
    for name, each in services.items():
        for volume in each["volumes"]:
            if not volume.get("read_only"):
                writers.setdefault(volume["source"], set()).add(name)
    assert writers.pop("blobs") == {"init", "audit"}
    assert all(len(names) == 1 for names in writers.values()), writers


def test_only_the_edge_is_published_and_only_on_loopback(services: dict[str, Any]) -> None:
    published = {name: each["ports"] for name, each in services.items() if "ports" in each}
    assert list(published) == ["envoy"]
    assert all(port.startswith("127.0.0.1:") for port in published["envoy"])


def test_no_one_is_let_at_etcd_before_it_has_users(services: dict[str, Any]) -> None:
    for name, each in services.items():
        if name not in ("files", "rights", "etcd", "weir", "locust"):
            after = set(each["depends_on"])
            assert "rights" in after or "registry" in after, name


def test_a_container_is_not_killed_while_it_drains(services: dict[str, Any]) -> None:
    drains = {
        name: each["settings"].get("drain_seconds", 10)
        for name, each in described(Container(), "demo")["processes"].items()
    }
    for name, seconds in drains.items():
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > seconds
