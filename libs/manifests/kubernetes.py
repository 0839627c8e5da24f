"""From the description of a mesh of containers (`weir render`) to the manifests of k8s/base. Pure.

A workload per service, whose pods are told apart by their names: what the topology says of a service's first process
holds for all of them. `shared` and `once` are there once, `zone` once per zone (k8s/README.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from libs.authority.stores import ROWS

Document = dict[str, Any]
Described = Mapping[str, Any]

NAMESPACE = "weir"
DOMAINS = ("weir.svc", "weir.svc.cluster.local")
"""What a host's name may be followed by in this namespace."""
PUBLIC = ("weir.example.org",)
"""Names of the edge for the public; an overlay has its own."""
MEMBERS = ("etcd-0",)
"""Members of etcd in the base; an overlay that has more says so (k8s/overlays/prod)."""
ZONE = "weir.internal/zone"
"""The label that names a pod's zone."""
USER = 10001
_NAME, _PART = "app.kubernetes.io/name", "app.kubernetes.io/part-of"
HEAD = "# Written by bin/k8s-manifests from deploy/topology.toml: change that, or an overlay.\n"
_STABLE = frozenset(service for service, row in ROWS.items() if row.direct)
"""Services whose pods keep their names, since each is a user of etcd."""
_ONCE = ("audit", "collector", "records")
"""Services with one process: one log, in which a record is once and whoever reads it finds all; traces in one place;
and the store of records, whose database may lie beside it."""
_STATE = "/var/lib/weir"
_MEMBERS = "--initial-cluster="
_JOBS = ("rights", "seed")
_MARGIN = 10.0
"""Seconds that a pod has beyond its own drain before it is killed: starting the hook, writing the last logs."""
_FRONT = 18.0
"""Seconds for Envoy's requests to end before it is told to (deploy/images/drain)."""
_PUBLIC = 443
_MIB = 1 << 20
_RESOURCES: Mapping[str, tuple[str, str, str]] = {
    "control": ("100m", "160Mi", "768Mi"),
    "records": ("100m", "160Mi", "768Mi"),
    # The limit of one whose versions have no bound; a model in a process of its own is an interpreter more.
    "predictor": ("500m", "512Mi", "4Gi"),
    "engine": ("1", "2Gi", "8Gi"),
    # Its own bound (--max-heap in its bootstrap) is 1 GiB; the limit is what is left when that failed.
    "edge": ("200m", "128Mi", "1280Mi"),
    "etcd": ("200m", "256Mi", "2Gi"),
}
"""By image: CPU and memory asked for, memory at most. No limit of CPU: it would stop a process in the middle of a step
for up to 100 ms, and what is asked for already divides a busy node."""


def files(described: Described) -> dict[PurePosixPath, str]:
    """Every generated file of k8s/base, by its path there."""
    units = _first_of_each(described["processes"])
    found: dict[PurePosixPath, str] = {
        PurePosixPath("shared/services.yaml"): _yaml(map(_service, units.values())),
        PurePosixPath("shared/accounts.yaml"): _yaml(map(_account, (*units, *_JOBS))),
        PurePosixPath("shared/budgets.yaml"): _yaml(map(_budget, units)),
        PurePosixPath("shared/rights.yaml"): _yaml([_rights(described["jobs"]["rights"])]),
        PurePosixPath("shared/etcd.yaml"): _yaml([_workload(units["etcd"])]),
        PurePosixPath("seed/job.yaml"): _yaml([_job("seed", described["jobs"]["seed"])]),
    }
    for policy in _policies(units, described):
        found[PurePosixPath(f"policies/{policy['metadata']['name']}.yaml")] = _yaml([policy])
    policies = [path.name for path in found if path.parent.name == "policies"]
    found[PurePosixPath("policies/kustomization.yaml")] = _yaml([_kustomization(policies)])
    for folder, once in (("once", True), ("zone", False)):
        there = {name: unit for name, unit in units.items() if name != "etcd" and (name in _ONCE) is once}
        for service, unit in there.items():
            found[PurePosixPath(f"{folder}/{service}.yaml")] = _yaml([_workload(unit)])
            for path, content in unit["files"].items():
                found[PurePosixPath(f"{folder}/{_config(service)}/{PurePosixPath(path).name}")] = content
        found[PurePosixPath(f"{folder}/kustomization.yaml")] = _yaml([_set(there)])
    return found


def _first_of_each(processes: Mapping[str, Described]) -> dict[str, Described]:
    found: dict[str, Described] = {}
    for name, process in processes.items():
        found.setdefault(process["service"], {**process, "name": name})
    return found


def _labels(service: str) -> dict[str, str]:
    return {_NAME: service, _PART: "weir"}


def _meta(name: str, labels: Mapping[str, str]) -> Document:
    return {"name": name, "namespace": NAMESPACE, "labels": dict(labels)}


def _config(service: str) -> str:
    return f"config/{service}"


def _service(unit: Described) -> Document:
    service, ports = unit["service"], dict(unit["ports"])
    status = ports.pop("status", None)
    listed = [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]
    if status is not None:
        listed.append({"name": "metrics", "port": status, "targetPort": "metrics"})
        listed = [{**each, "port": _PUBLIC} if each["name"] == "https" else each for each in listed]
    spec: Document = {"selector": _labels(service), "ports": listed}
    if unit["kind"] == "etcd":
        # Its members find one another by name before any of them is ready.
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(service, _labels(service)), "spec": spec}


def _account(name: str) -> Document:
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(name, _labels(name))}
    return {**made, "automountServiceAccountToken": False}


def _budget(service: str) -> Document:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _labels(service)}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    return {**kind, "metadata": _meta(service, _labels(service)), "spec": spec}


def _workload(unit: Described) -> Document:
    service = unit["service"]
    stable = unit["kind"] == "etcd" or unit["state"]["durable"] or service in _STABLE
    zone = {} if unit["kind"] == "etcd" else {ZONE: unit["zone"]}
    labels = _labels(service) | zone
    blobs = {"weir.internal/blobs": "write" if unit["blobs"]["write"] else "read"} if unit["blobs"] else {}
    template = {"metadata": {"labels": labels | blobs}, "spec": _pod(unit)}
    spec: Document = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    if stable:
        spec |= {"serviceName": service, "podManagementPolicy": "Parallel"}
    else:
        spec |= {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}
    if unit["state"]["durable"]:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}}
        spec["volumeClaimTemplates"] = [{"metadata": {"name": "state"}, "spec": claim}]
    kind = {"apiVersion": "apps/v1", "kind": "StatefulSet" if stable else "Deployment"}
    return {**kind, "metadata": _meta(service, labels | blobs), "spec": spec}


def _pod(unit: Described) -> Document:
    service, front = unit["service"], unit["kind"] == "envoy"
    volumes, mounts = _volumes(unit)
    container: Document = {
        "name": service,
        "image": f"weir/{unit['image']}",
        "imagePullPolicy": "IfNotPresent",
        # An overlay with more members says so in the environment.
        "command": [f"{_MEMBERS}$(MEMBERS)" if each.startswith(_MEMBERS) else each for each in unit["command"]],
        "env": [*_environment(unit)],
        "ports": [*_ports(unit["ports"])],
        **_probes(unit),
        "resources": _resources(unit["image"], unit["memory"]),
        "securityContext": _confined(),
        "volumeMounts": mounts,
    }
    if front:
        # Who and where it is, in place of what its bootstrap says; one file serves all pods.
        container["command"] += ["--service-node", "$(POD_NAME)", "--service-zone", "$(WEIR_ZONE)"]
        drain = ["python3", "-S", "-E", "/usr/local/bin/drain", str(_FRONT)]
        container["lifecycle"] = {"preStop": {"exec": {"command": drain}}}
    return {
        **_pod_defaults(service),
        "terminationGracePeriodSeconds": math.ceil(unit["stop_seconds"] + _MARGIN + (_FRONT if front else 0)),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": _labels(service)},
            }
        ],
        "containers": [container],
        "volumes": volumes,
    }


def _pod_defaults(account: str) -> Document:
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _confined() -> Document:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def _resources(image: str, most: int | None = None) -> Document:
    """:param most: bytes that the process may take, where its settings say it."""
    cpu, memory, usual = _RESOURCES[image]
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": f"{most // _MIB}Mi" if most else usual}}


def _environment(unit: Described) -> Iterator[Document]:
    yield _from("POD_NAME", "metadata.name")
    if unit["kind"] == "etcd":
        yield {"name": "MEMBERS", "value": _members(unit)}
    if unit["kind"] != "etcd":
        yield _from("WEIR_ZONE", f"metadata.labels['{ZONE}']")
    if unit["kind"] == "service":
        yield {"name": "WEIR_INSTANCE", "value": "$(POD_NAME)"}
        yield _from("WEIR_ADVERTISE", "status.podIP")
    yield from ({"name": name, "value": value} for name, value in unit["environment"].items())


def _members(unit: Described) -> str:
    return next(each for each in unit["command"] if each.startswith(_MEMBERS)).removeprefix(_MEMBERS)


def _from(name: str, path: str) -> Document:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _ports(ports: Mapping[str, int]) -> Iterator[Document]:
    yield from ({"name": _port_name(name), "containerPort": port} for name, port in ports.items())


def _port_name(name: str) -> str:
    return "metrics" if name == "status" else name


def _probes(unit: Described) -> Document:
    probes = unit["probes"]
    ready = {"httpGet": {"path": probes["ready"], "port": "metrics"}, "periodSeconds": 2, "timeoutSeconds": 2}
    # A member without a leader, and an Envoy that drains, are not ready, and would be no better for a restart.
    alive: Document = {"httpGet": {"path": probes["live"], "port": "metrics"}}
    if unit["kind"] != "service":
        alive = {"tcpSocket": {"port": "metrics"}}
    return {
        "startupProbe": {**alive, "periodSeconds": 1, "failureThreshold": math.ceil(probes["seconds_to_ready"])},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
        "readinessProbe": {**ready, "failureThreshold": 2},
    }


def _volumes(unit: Described) -> tuple[list[Document], list[Document]]:
    """Volumes, and where they are mounted."""
    service = unit["service"]
    volumes: list[Document] = [{"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}]
    mounts: list[Document] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - the pod's own
    if not unit["state"]["durable"]:
        volumes.append({"name": "state", "emptyDir": {"sizeLimit": "16Gi"}})
    elif unit["kind"] == "job":
        volumes.append({"name": "state", "persistentVolumeClaim": {"claimName": service}})
    mounts.append({"name": "state", "mountPath": unit["state"]["path"]})
    if unit["files"]:
        volumes.append({"name": "config", "configMap": {"name": service}})
        # By file: other volumes lie in the same folder, and a new configuration is a new pod.
        mounts += (
            {"name": "config", "mountPath": path, "subPath": PurePosixPath(path).name, "readOnly": True}
            for path in unit["files"]
        )
    for name, path in unit["secrets"].items():
        volumes.append({"name": name, "secret": {"secretName": f"weir-{name}", "defaultMode": 0o440}})
        mounts.append({"name": name, "mountPath": path, "subPath": name, "readOnly": True})
    for certificate in unit["certificates"]:
        name = PurePosixPath(certificate["cert"]).parent.name
        volumes.append({"name": name, "csi": _certificate(certificate)})
        mounts.append({"name": name, "mountPath": str(PurePosixPath(certificate["cert"]).parent), "readOnly": True})
    return volumes, mounts


def _certificate(wanted: Described) -> Document:
    """A volume of cert-manager's CSI driver: a key of the pod's own, and the names that libs.pki would give it."""
    instance = wanted["uri"].replace(f"/instance/{wanted['name']}/", "/instance/${POD_NAME}/")
    own = instance != wanted["uri"]
    usages = ["digital signature", *["server auth"] * wanted["serves"], *["client auth"] * wanted["calls"]]
    said = {
        "issuer-name": "weir",
        # etcd's users are the common names; its members share one.
        "common-name": "${POD_NAME}" if own and "/sa/etcd/" not in wanted["uri"] else wanted["name"],
        "dns-names": ",".join([*wanted["names"], *(each for each in wanted["hosts"] if not _is_address(each))]),
        "ip-sans": ",".join(each for each in wanted["hosts"] if _is_address(each)),
        "uri-sans": wanted["uri"] if "/sa/etcd/" in wanted["uri"] else instance,
        "key-usages": ",".join(usages),
        "duration": "24h",
        "renew-before": "8h",
        "fs-group": str(USER),
        **{f"{part}-file": PurePosixPath(wanted[key]).name for part, key in _FILES},
    }
    attributes = {f"csi.cert-manager.io/{name}": value for name, value in said.items() if value}
    return {"driver": "csi.cert-manager.io", "readOnly": True, "volumeAttributes": attributes}


_FILES = (("ca", "ca"), ("certificate", "cert"), ("privatekey", "key"))


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _rights(job: Described) -> Document:
    """The job that gives the base's processes their rights: there they are called by their ordinals."""
    argv = [f"{each}-0" if each.startswith(tuple(f"{name}/" for name in _STABLE)) else each for each in job["command"]]
    return _job("rights", {**job, "command": argv})


def _job(name: str, job: Described) -> Document:
    unit = {"service": name, "environment": {}, "files": {}, "secrets": {}, "kind": "job"}
    unit |= {"state": job.get("state", {"path": _STATE, "durable": False}), "certificates": job["certificates"]}
    volumes, mounts = _volumes(unit)
    container = {
        "name": name,
        "image": f"weir/{job['image']}",
        "imagePullPolicy": "IfNotPresent",
        "command": job["command"],
        "resources": _resources("control"),
        "securityContext": _confined(),
        "volumeMounts": mounts,
    }
    pod = {**_pod_defaults(name), "restartPolicy": "OnFailure", "containers": [container], "volumes": volumes}
    blobs = {"weir.internal/blobs": "write"} if job.get("blobs") else {}
    template = {"metadata": {"labels": _labels(name) | blobs}, "spec": pod}
    spec = {"backoffLimit": 20, "ttlSecondsAfterFinished": 600, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(name, _labels(name) | blobs), "spec": spec}


def _set(units: Mapping[str, Described]) -> Document:
    # A changed file gives its map another name, and so its pods are replaced.
    maps = [
        {"name": service, "files": [f"{_config(service)}/{PurePosixPath(path).name}" for path in unit["files"]]}
        for service, unit in units.items()
        if unit["files"]
    ]
    return {**_kustomization([f"{service}.yaml" for service in units]), "configMapGenerator": maps}


def _kustomization(resources: list[str]) -> Document:
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return {**kind, "namespace": NAMESPACE, "resources": sorted(resources)}


def _policies(units: Mapping[str, Described], described: Described) -> Iterator[Document]:
    """Nobody may anything; then one rule at either end of each edge of the call graph."""
    everybody: Document = {}
    yield _policy("default-deny", everybody, ingress=[], egress=[])
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    resolver = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    yield _policy("dns", everybody, egress=[{"to": [resolver], "ports": dns}])
    jobs = {name: described["jobs"][name] for name in _JOBS}
    callers = {**units, **jobs, "operator": described["operator"]}
    edges = sorted({edge for name, caller in callers.items() for edge in _edges(name, caller, units)})
    for service in callers:
        ingress = [_rule("from", caller, port) for caller, called, port in edges if called == service]
        egress = [_rule("to", called, port) for caller, called, port in edges if caller == service]
        yield _policy(service, {"matchLabels": _labels(service)}, ingress=ingress, egress=egress)
    public = [{"ports": [{"protocol": "TCP", "port": units["envoy"]["ports"]["https"]}]}]
    yield _policy("public", {"matchLabels": _labels("envoy")}, ingress=public)
    tenants = {"namespaceSelector": {"matchLabels": {"weir.internal/workloads": "true"}}}
    for _, service, port in _edges("", described["client"], units):
        rule = {"from": [tenants], "ports": [{"protocol": "TCP", "port": port}]}
        yield _policy(f"workloads-to-{service}", {"matchLabels": _labels(service)}, ingress=[rule])


def _edges(name: str, caller: Described, units: Mapping[str, Described]) -> list[tuple[str, str, int]]:
    """Caller, called and port."""
    by_process = {unit["name"]: service for service, unit in units.items()}
    found = {(by_process[each["process"]], each["port"]) for each in caller["calls"] if each["process"] in by_process}
    return sorted((name, service, port) for service, port in found)


def _rule(direction: str, service: str, port: int) -> Document:
    peer = {"podSelector": {"matchLabels": _labels(service)}}
    return {direction: [peer], "ports": [{"protocol": "TCP", "port": port}]}


def _policy(name: str, pods: Document, **directions: list[Document]) -> Document:
    spec = {"podSelector": pods, "policyTypes": [each.capitalize() for each in directions], **directions}
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": _meta(name, {_PART: "weir"}), "spec": spec}


def _yaml(documents: Iterable[Document]) -> str:
    return HEAD + "---\n".join(yaml.dump(each, Dumper=_Plain, sort_keys=False, width=1000) for each in documents)


class _Plain(yaml.SafeDumper):
    """Without anchors, which kustomize would take for aliases of one another."""

    def ignore_aliases(self, data: Any) -> bool:
        """Every value is written out."""
        return True
