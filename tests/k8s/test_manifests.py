"""Every overlay, rendered: schemas, hardening, network policies, certificates, and that nothing generated is stale."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.artifacts.local import LocalBlobStore
from libs.authority.calls import CALLS
from libs.authority.identity import Identity, Operator
from libs.authority.stores import ROWS
from libs.backup import Manifest
from libs.config.convention import fields, variable
from libs.pki import dns_names
from services.cli.__main__ import call
from services.cli.mesh.seed import Seeded
from tests.k8s.conftest import OVERLAYS, documents, read, render
from tests.support.cluster.objects import selects
from tests.support.engine import ROOT

WORKLOADS = ("Deployment", "StatefulSet", "Job", "CronJob")
TOOLS = ROOT / "build" / "k8s-env" / "bin" / "python"
CHECKOV = ROOT / "build" / "checkov-env" / "bin" / "checkov"
EXCEPTIONS = {
    # It stops a process in the middle of a step; what is asked for already divides a busy node.
    "CKV_K8S_11": "CPU limits",
    # Tags are the releases', whose images are signed; an overlay may name digests.
    "CKV_K8S_43": "images by digest",
    # A tag is never pushed twice.
    "CKV_K8S_15": "always pull",
    # It looks for the word "=true" behind the flag.
    "CKV_K8S_117": "etcd's --client-cert-auth",
}


def workloads(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in documents(overlay):
        if each["kind"] in WORKLOADS:
            spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
            yield each["metadata"]["name"], spec["template"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_document_has_the_fields_of_its_kind(overlay: str, tmp_path: Path) -> None:
    rendered = tmp_path / f"{overlay}.yaml"
    rendered.write_text(render(f"overlays/{overlay}"), encoding="utf-8")
    done = subprocess.run((TOOLS, ROOT / "tests/k8s/schemas.py", rendered), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_a_field_that_there_is_not_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    scaled = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "x"}}
    trigger = {"type": "prometheus", "metadata": {"query": "1"}}
    scaled["spec"] = {"scaleTargetRef": {"name": "w"}, "maxReplicas": 3, "triggers": [trigger]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "y"}, "spec": {"prots": []}}
    wrong.write_text(yaml.safe_dump_all([scaled, service]), encoding="utf-8")
    done = subprocess.run((TOOLS, ROOT / "tests/k8s/schemas.py", wrong), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no such field: .spec.maxReplicas" in done.stdout
    assert "'prots' was unexpected" in done.stdout


def test_checkov_finds_nothing_but_the_exceptions(tmp_path: Path) -> None:
    rendered = tmp_path / "prod.yaml"
    rendered.write_text(render("overlays/prod"), encoding="utf-8")
    argv = (CHECKOV, "-f", rendered, "--framework", "kubernetes", "--skip-download", "--output", "json", "--compact")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    results = json.loads(done.stdout)["results"]
    found = {each["check_id"]: f"{each['check_name']}: {each['resource']}" for each in results["failed_checks"]}
    assert len(results["passed_checks"]) > 1000
    assert {check: told for check, told in found.items() if check not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) - set(found) == set()  # an exception that nothing needs goes


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_what_the_namespace_admits(overlay: str) -> None:
    """The profile "restricted" of the pod security standards, whose admission cannot be run here."""
    (namespace,) = (each for each in documents(overlay) if each["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, template in workloads(overlay):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec), name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        kinds = {kind for volume in spec["volumes"] for kind in volume} - {"name"}
        assert kinds <= {"configMap", "csi", "emptyDir", "persistentVolumeClaim", "secret"}, name
        for container in spec["containers"]:
            confined = container["securityContext"]
            assert confined["allowPrivilegeEscalation"] is False
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert confined["readOnlyRootFilesystem"] is True
            assert all("hostPort" not in port for port in container.get("ports", []))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_manifest_holds_a_secret(overlay: str) -> None:
    assert [each for each in documents(overlay) if each["kind"] == "Secret"] == []
    assert not re.search(
        r"PRIVATE KEY|\bwk_[a-z0-9]{4,32}_[A-Za-z0-9-]{16,64}|AKIA[A-Z0-9]{12}", render(f"overlays/{overlay}")
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_come_from_the_node_or_from_a_registry_that_is_named(overlay: str) -> None:
    """A name without a registry is the public one's, where anybody may own it."""
    for name, template in workloads(overlay):
        container = template["spec"]["containers"][0]
        named = "." in container["image"].partition("/")[0]
        assert (container["imagePullPolicy"] == "Never") is not named, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_outside_there_is_https_and_nothing_else(overlay: str) -> None:
    """A load balancer or a node port for the admin API or for metrics would leave them to network policies alone."""
    services = [each["spec"] for each in documents(overlay) if each["kind"] == "Service"]
    outside = [each for each in services if each.get("type", "ClusterIP") != "ClusterIP"]
    assert [port["targetPort"] for each in outside for port in each["ports"]] == ["https"] * len(outside)
    assert len(outside) == (overlay != "ci")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_variable_is_a_setting_of_the_service(overlay: str) -> None:
    """A service leaves alone what it does not know: a misspelt one would change nothing, and nobody would be told."""
    for name, template in workloads(overlay):
        container = template["spec"]["containers"][0]
        if container["command"][:2] != ["python", "-m"]:
            continue
        settings = import_module(f"{container['command'][2]}.config").Settings
        known = {variable(path) for path, _ in fields(settings)}
        said = {each["name"] for each in container["env"] if each["name"].startswith("WEIR_")}
        assert said <= known, name


def test_what_workers_are_scaled_by_is_measured() -> None:
    declared = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "services").glob("*/metrics.py"))
    for each in documents("prod"):
        if each["kind"] == "ScaledObject":
            (trigger,) = each["spec"]["triggers"]
            names = re.findall(r"weir_\w+", trigger["metadata"]["query"])
            assert names
            assert [name for name in names if f'"{name}"' not in declared] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_longer_than_its_drain(overlay: str) -> None:
    maps = {each["metadata"]["name"]: each for each in documents(overlay) if each["kind"] == "ConfigMap"}
    for name, template in workloads(overlay):
        spec, container = template["spec"], template["spec"]["containers"][0]
        variables = {each["name"]: each.get("value") for each in container.get("env", [])}
        names = [each["configMap"]["name"] for each in spec["volumes"] if "configMap" in each]
        files = [text for each in names for key, text in maps[each]["data"].items() if key == "config.json"]
        if files:
            drain = float(variables.get("WEIR_DRAIN_SECONDS") or json.loads(files[0]).get("drain_seconds", 10))
            assert spec["terminationGracePeriodSeconds"] >= drain + 10, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_certificates_carry_the_names_that_the_mesh_asks_for(overlay: str) -> None:
    for name, template in workloads(overlay):
        zone = template["metadata"]["labels"].get("weir.internal/zone", "zone-a")
        for volume in (each for each in template["spec"]["volumes"] if "csi" in each):
            said = {key.split("/")[1]: value for key, value in volume["csi"]["volumeAttributes"].items()}
            if volume["name"] == "edge":
                assert "uri-sans" not in said
                assert "client auth" not in said["key-usages"]
                continue
            uri = said["uri-sans"].replace("${POD_NAME}", f"{name}-0")
            who = Operator.parse(uri) or Identity.parse(uri)
            assert who is not None, uri
            if isinstance(who, Identity):
                assert set(dns_names(who)) <= set(said["dns-names"].split(",")), name
            if isinstance(who, Identity) and who.zone:
                assert who.zone == zone, name
            if isinstance(who, Identity) and who.instance and who.service != "etcd":
                assert said["common-name"] == "${POD_NAME}"


def test_zones_are_apart_and_complete() -> None:
    found = [each for each in documents("prod") if each["kind"] in ("Deployment", "StatefulSet")]
    etcd = next(each for each in found if each["metadata"]["name"] == "etcd")
    assert etcd["spec"]["replicas"] == 3
    spread = {each["topologyKey"]: each for each in etcd["spec"]["template"]["spec"]["topologySpreadConstraints"]}
    assert spread["topology.kubernetes.io/zone"]["whenUnsatisfiable"] == "DoNotSchedule"
    zones: dict[str, set[str]] = {}
    once = []
    for each in found:
        spec, labels = each["spec"]["template"]["spec"], each["spec"]["template"]["metadata"]["labels"]
        assert spec["affinity"]["podAntiAffinity"]
        if each is not etcd:
            zone = labels["weir.internal/zone"]
            assert spec["nodeSelector"]["topology.kubernetes.io/zone"] == zone
            assert each["spec"]["selector"]["matchLabels"]["weir.internal/zone"] == zone
            service = labels["app.kubernetes.io/name"]
            once.append(service) if service in ("audit", "collector", "records") else zones.setdefault(zone, set()).add(
                service
            )
    assert set(zones) == {"zone-a", "zone-b", "zone-c"}
    assert zones["zone-a"] == zones["zone-b"] == zones["zone-c"] >= set(ROWS) - set(once)
    # Of two logs neither has everything, and a record that was sent twice may be in both.
    assert sorted(once) == ["audit", "collector", "records"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_whoever_speaks_with_etcd_is_given_its_rights(overlay: str) -> None:
    command = dict(workloads(overlay))["rights"]["spec"]["containers"][0]["command"]
    wanted = set()
    for each in documents(overlay):
        service = each["metadata"].get("labels", {}).get("app.kubernetes.io/name", "")
        if each["kind"] == "StatefulSet" and service in ROWS and ROWS[service].direct:
            wanted |= {f"{service}/{each['metadata']['name']}-{at}" for at in range(each["spec"]["replicas"])}
    assert wanted
    assert {each for each in command if "/" in each and not each.startswith("--")} == wanted


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_command_line_takes_what_jobs_say(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlays say anew what the base says: a command that the program does not have any more would be found by nobody
    but the job, and etcd would stay open to the four that connect."""
    called: dict[str, Any] = {}

    async def save(_: Any, *, audit: Path | None, records: Path | None, **parts: Any) -> tuple[str, Manifest]:
        named = {"backup-audit": audit, "backup-records": records}
        called[next((name for name, folder in named.items() if folder), "backup-etcd")] = audit or records or parts
        return "", Manifest(taken_at=0.0)

    async def establish(*arguments: Any, **_: Any) -> list[str]:
        called["rights"] = arguments
        return []

    def plant(*arguments: Any, **_: Any) -> Seeded:
        called["seed"] = arguments
        return Seeded({}, [])

    monkeypatch.setattr("libs.registry.authorities.establish", establish)
    monkeypatch.setattr("services.cli.mesh.initial.plant", plant)
    monkeypatch.setattr("libs.backup.save", save)
    monkeypatch.setattr("libs.artifacts.open_store", lambda _: LocalBlobStore(tmp_path))
    commands = {name: template["spec"]["containers"][0]["command"] for name, template in workloads(overlay)}
    jobs = {name: words for name, words in commands.items() if words[0] == "weir"}
    assert {name: call(words[1:]) for name, words in jobs.items()} == dict.fromkeys(jobs, 0)
    assert set(called) == set(jobs)
    members, _, identities = called["rights"]
    (etcd,) = (
        each for each in documents(overlay) if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "etcd"
    )
    assert members == [f"etcd-{at}.etcd:18010" for at in range(etcd["spec"]["replicas"])]
    assert {each.service for each in identities} == {name for name, row in ROWS.items() if row.direct}
    if overlay == "prod":
        backup = called["backup-etcd"]
        assert (list(backup["endpoints"]), backup["tls"].cert) == (members, "/etc/weir/tls/tls.crt")
        for service in ("audit", "records"):
            assert str(called[f"backup-{service}"]) == json.loads(config_of(overlay, service))["state_dir"]


def config_of(overlay: str, service: str) -> str:
    """The settings of a service of which there is one."""
    maps = [each for each in documents(overlay) if each["kind"] == "ConfigMap"]
    (found,) = (each["data"]["config.json"] for each in maps if re.match(rf"{service}-", each["metadata"]["name"]))
    return str(found)


def test_backups_have_what_they_save() -> None:
    found = dict(workloads("prod"))
    for service in ("audit", "records"):
        job = found[f"backup-{service}"]["spec"]
        (claim,) = (each["persistentVolumeClaim"] for each in job["volumes"] if each["name"] == "state")
        (owner,) = (
            each
            for each in documents("prod")
            if each["kind"] == "StatefulSet" and each["metadata"]["labels"]["app.kubernetes.io/name"] == service
        )
        (volume,) = owner["spec"]["volumeClaimTemplates"]
        assert claim == {"claimName": f"{volume['metadata']['name']}-{owner['metadata']['name']}-0", "readOnly": True}
        (near,) = job["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert selects(near["labelSelector"], owner["spec"]["template"]["metadata"]["labels"])
    rules = [each["spec"] for each in documents("prod") if each["kind"] == "NetworkPolicy"]
    for name in ("backup-audit", "backup-etcd", "backup-records"):
        mine = [each for each in rules if selects(each["podSelector"], found[name]["metadata"]["labels"])]
        ports = {port["port"] for each in mine for rule in each.get("egress", []) for port in rule["ports"]}
        assert ports == {53, 443} | ({18010} if name == "backup-etcd" else set())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_flow_is_allowed_at_both_ends_or_not_at_all(overlay: str) -> None:
    rules = [each for each in documents(overlay) if each["kind"] == "NetworkPolicy"]
    labels = {name: template["metadata"]["labels"] for name, template in workloads(overlay)}
    leaving = {(one, other) for one, other in _flows(rules, labels, "Egress")}
    arriving = {(other, one) for one, other in _flows(rules, labels, "Ingress")}
    assert leaving == arriving
    (deny,) = (each["spec"] for each in rules if each["metadata"]["name"] == "default-deny")
    assert deny["podSelector"] == {}
    assert set(deny["policyTypes"]) == {"Ingress", "Egress"}
    callers = {"weir.audit.v1.AuditService": "audit", "weir.safety.v1.SafetyService": "safety"}
    by_service = {
        (labels[one]["app.kubernetes.io/name"], labels[other]["app.kubernetes.io/name"]) for one, other in leaving
    }
    for service, called in callers.items():
        wanted = set().union(*CALLS[service].values()) - {"operator"}
        assert {one for one, other in by_service if other == called} == wanted


def _flows(rules: list[dict], labels: dict[str, dict[str, str]], direction: str) -> Iterator[tuple[str, str]]:
    peers = {"Egress": "to", "Ingress": "from"}[direction]
    for rule in rules:
        for name, own in labels.items():
            if not selects(rule["spec"]["podSelector"], own):
                continue
            for allowed in rule["spec"].get(direction.lower(), []):
                for peer in allowed.get(peers, []):
                    if set(peer) == {"podSelector"}:
                        yield from ((name, other) for other in labels if selects(peer["podSelector"], labels[other]))


def test_generated_manifests_are_what_the_topology_says() -> None:
    argv = (sys.executable, ROOT / "bin" / "k8s-manifests", "--check")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("component", ["gpu", "gpu-mig"])
def test_workers_on_gpus(component: str) -> None:
    resource = {"gpu": "nvidia.com/gpu", "gpu-mig": "nvidia.com/mig-1g.10gb"}[component]
    workers = [
        each
        for each in _with(component)
        if each["metadata"]["name"].startswith("worker-") and each["kind"] == "Deployment"
    ]
    assert len(workers) == 3
    for each in workers:
        container = each["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"][resource] == 1
        assert container["image"].endswith("/engine-cuda:v0.1.0")
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_an_external_etcd_takes_the_place_of_the_meshs_own() -> None:
    found = {(each["kind"], each["metadata"]["name"]) for each in _with("external-etcd")}
    assert not {kind for kind, name in found if name == "etcd"}
    assert ("NetworkPolicy", "external-etcd") in found


def _with(component: str) -> list[dict[str, Any]]:
    """The overlay prod with one of the components that it leaves out."""
    folder = ROOT / "build" / "k8s-test" / component
    folder.mkdir(parents=True, exist_ok=True)
    text = (ROOT / "k8s/overlays/prod/kustomization.yaml").read_text(encoding="utf-8")
    up = "../../../k8s"
    text = text.replace("../../", f"{up}/").replace("- zone-", f"- {up}/overlays/prod/zone-")
    text = text.replace(f"# - {up}/components/{component}\n", f"- {up}/components/{component}\n")
    if component == "external-etcd":
        text = text.replace("  - {path: etcd.yaml}\n", "")
    for patch in (ROOT / "k8s/overlays/prod").glob("*.yaml"):
        (folder / patch.name).write_text(patch.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
    return read(render(f"../build/k8s-test/{component}"))
