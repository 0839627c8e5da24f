"""What is generated of k8s/base, from the description of a mesh."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from libs.authority.callgraph import calls
from libs.manifests import kubernetes
from services.cli.mesh.rendering import described
from services.cli.mesh.sites import Container
from tests.support.engine import ROOT


@pytest.fixture(scope="module")
def files() -> dict[PurePosixPath, str]:
    site = Container(members=kubernetes.MEMBERS, domains=kubernetes.DOMAINS, public=kubernetes.PUBLIC)
    return kubernetes.files(described(site, "demo"))


def document(files: dict[PurePosixPath, str], path: str) -> dict[str, Any]:
    return yaml.safe_load(files[PurePosixPath(path)])


def test_what_is_checked_in_is_what_the_topology_says(files: dict[PurePosixPath, str]) -> None:
    """If not: bin/k8s-manifests."""
    base = ROOT / "k8s" / "base"
    stale = [path for path, text in files.items() if not (base / path).is_file() or (base / path).read_text() != text]
    assert stale == []


@pytest.mark.parametrize("service", ["gateway", "edge-auth", "worker", "door", "ratelimit", "registry", "rollout"])
def test_a_service_may_send_to_whom_it_calls_and_to_nobody_else(files: dict[PurePosixPath, str], service: str) -> None:
    spec = document(files, f"policies/{service}.yaml")["spec"]
    peers = [peer for rule in spec["egress"] for peer in rule["to"]]
    called = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for peer in peers}
    untraced = {"collector"} if service in ("door", "collector") else set()
    assert called == calls(service) - untraced


def test_pods_of_one_service_have_names_and_keys_of_their_own(files: dict[PurePosixPath, str]) -> None:
    pod = document(files, "zone/worker.yaml")["spec"]["template"]["spec"]
    attributes = next(each["csi"]["volumeAttributes"] for each in pod["volumes"] if each["name"] == "tls")
    assert attributes["csi.cert-manager.io/common-name"] == "${POD_NAME}"
    assert attributes["csi.cert-manager.io/uri-sans"] == (
        "spiffe://weir.internal/sa/worker/instance/${POD_NAME}/pool/demo/zone/zone-a"
    )


def test_a_pod_may_take_what_its_settings_bound(files: dict[PurePosixPath, str]) -> None:
    limits = {
        service: document(files, f"zone/{service}.yaml")["spec"]["template"]["spec"]["containers"][0]["resources"]
        for service in ("predictor", "gateway")
    }
    models = yaml.safe_load(files[PurePosixPath("zone/config/predictor/config.json")])["memory_bytes"]
    assert limits["predictor"]["limits"]["memory"] == f"{(models >> 20) + 1024}Mi"
    assert limits["gateway"]["limits"]["memory"] == "768Mi"


def test_what_etcd_or_a_disk_knows_by_name_keeps_its_name(files: dict[PurePosixPath, str]) -> None:
    kinds = {
        path.stem: document(files, str(path))["kind"]
        for path in files
        if path.parts[0] in ("once", "zone") and len(path.parts) == 2 and path.stem != "kustomization"
    }
    stateful = {"door", "controlplane", "registry", "rollout", "audit", "gateway", "predictor", "ratelimit", "records"}
    assert {name for name, kind in kinds.items() if kind == "StatefulSet"} == stateful
