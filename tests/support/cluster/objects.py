"""What manifests say. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

_CONTAINER = {
    *("name", "image", "imagePullPolicy", "command", "args", "env", "ports", "resources", "securityContext"),
    *("volumeMounts", "readinessProbe", "livenessProbe", "startupProbe", "lifecycle", "workingDir"),
}
_POD = {
    *("automountServiceAccountToken", "containers", "enableServiceLinks", "securityContext", "serviceAccountName"),
    *("terminationGracePeriodSeconds", "volumes", "restartPolicy", "affinity", "topologySpreadConstraints"),
    *("nodeSelector", "tolerations", "priorityClassName"),
}
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class UnknownFieldError(ValueError):
    """The manifests use something that this tool does not do."""


@dataclass(frozen=True)
class Pod:
    """A pod that there is, or is to be."""

    name: str
    address: str
    workload: Document

    @property
    def template(self) -> Document:
        """Its template."""
        return self.workload["spec"]["template"]

    @property
    def spec(self) -> Document:
        """Its specification."""
        return self.template["spec"]

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self.template["metadata"].get("labels", {})

    @property
    def container(self) -> Document:
        """Its one container."""
        return self.spec["containers"][0]

    def port(self, wanted: int | str) -> int:
        """A port by number or name."""
        if isinstance(wanted, int):
            return wanted
        return next(each["containerPort"] for each in self.container["ports"] if each["name"] == wanted)


@dataclass(frozen=True)
class Manifests:
    """Everything that was rendered."""

    documents: Sequence[Document]

    def kind(self, *kinds: str) -> list[Document]:
        """The documents of these kinds."""
        return [each for each in self.documents if each["kind"] in kinds]

    def named(self, kind: str, name: str) -> Document:
        """One document.

        :raises KeyError: there is none.
        """
        for each in self.kind(kind):
            if each["metadata"]["name"] == name:
                return each
        raise KeyError(f"{kind} {name}")

    def check(self) -> None:
        """:raises UnknownFieldError: a workload uses a field that this tool would leave out without a word."""
        for workload in self.kind("Deployment", "StatefulSet", "Job"):
            spec, where = workload["spec"]["template"]["spec"], f"{workload['kind']} {workload['metadata']['name']}"
            found = set(spec) - _POD
            if len(spec["containers"]) != 1:
                raise UnknownFieldError(f"{where}: one container to a pod")
            found |= set(spec["containers"][0]) - _CONTAINER
            if found:
                raise UnknownFieldError(f"{where}: {', '.join(sorted(found))}")


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector chooses these labels; the empty one chooses everything."""
    selector = selector or {}
    for rule in selector.get("matchExpressions", []):
        value = labels.get(rule["key"])
        match rule["operator"]:
            case "In" if value not in rule["values"]:
                return False
            case "NotIn" if value in rule["values"]:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def environment(pod: Pod) -> dict[str, str]:
    """A container's variables, those that name others filled in."""
    found: dict[str, str] = {}
    for each in pod.container.get("env", []):
        if "value" in each:
            found[each["name"]] = expand(each["value"], found)
        else:
            found[each["name"]] = field(pod, each["valueFrom"]["fieldRef"]["fieldPath"])
    return found


def field(pod: Pod, path: str) -> str:
    """A field of a pod as the downward API knows it.

    :raises UnknownFieldError: it does not.
    """
    if label := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
        return pod.labels[label[1]]
    try:
        return {"status.podIP": pod.address, "metadata.name": pod.name, "metadata.namespace": "weir"}[path]
    except KeyError:
        raise UnknownFieldError(path) from None


def expand(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) of known variables replaced, as kubelet does."""
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


def command(pod: Pod) -> tuple[list[str], list[str]]:
    """Entry point and arguments, empty where the image's are meant."""
    variables = environment(pod)
    entry = [expand(each, variables) for each in pod.container.get("command", [])]
    return entry, [expand(each, variables) for each in pod.container.get("args", [])]


def host_names(services: Iterable[Document], pods: Iterable[Pod], addresses: Mapping[str, str]) -> dict[str, str]:
    """What the cluster's DNS would answer: a service's address, and those of the pods of a headless one, by name.

    A headless service's own name is left out: a hosts file has one address for a name.
    """
    found: dict[str, str] = {}
    pods = list(pods)
    for service in services:
        name = service["metadata"]["name"]
        if service["spec"].get("clusterIP") != "None":
            found |= dict.fromkeys(_qualified(name), addresses[name])
            continue
        for pod in pods:
            if pod.workload["spec"].get("serviceName") == name:
                found |= dict.fromkeys(_qualified(f"{pod.name}.{name}"), pod.address)
    return found


def _qualified(name: str) -> list[str]:
    return [name, *(f"{name}.{suffix}" for suffix in ("weir", "weir.svc", "weir.svc.cluster.local"))]
