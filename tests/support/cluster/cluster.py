"""Workloads: what controllers and kube-proxy do with them. See the package's docstring."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from tests.support.cluster import csi, rules
from tests.support.cluster.node import GATEWAY, SERVICES, End, Node
from tests.support.cluster.objects import Document, Manifests, Pod, host_names
from tests.support.cluster.volumes import Files, Volumes

LOOK_SECONDS = 0.2
"""Between two looks at pods that are not ready."""
BACK_OFF_SECONDS = 3.0
"""Between two attempts of a job that fails: a tenth of kubelet's."""


class NotReadyError(RuntimeError):
    """Pods did not become ready in time; the message has the end of their logs."""


class Cluster:
    """One namespace on one node."""

    def __init__(self, documents: list[Document], folder: Path, secrets: Mapping[str, Files], image: str) -> None:
        """:param folder: for volumes.
        :param secrets: what somebody has put into the cluster beforehand.
        :param image: any that has `sleep`; see `Node`.
        :raises UnknownFieldError: the manifests use something that this tool does not do."""
        self.manifests = Manifests(documents)
        self.manifests.check()
        self.ca = csi.Authority.new()
        self.volumes = Volumes(folder, self.manifests, secrets, self.ca)
        self.pods: dict[str, Pod] = {}
        self._numbers = count(10)
        self._ready: set[str] = set()
        self._gone: list[str] = []
        self._again: dict[str, float] = {}
        self._services = self.manifests.kind("Service")
        self.addresses = {each["metadata"]["name"]: f"10.98.0.{at}" for at, each in enumerate(self._services, 10)}
        self._planned = [pod for each in self._workloads() for pod in self._pods_of(each)]
        self.node = Node(image)

    def up(self, timeout: float) -> dict[str, float]:
        """Starts everything at once, as `kubectl apply` would; seconds by pod until it was ready, of jobs until done.

        :raises NotReadyError: not all are in time.
        """
        began = time.monotonic()
        self._create(self._planned)
        return {name: at - began for name, at in self._wait(self._planned, began + timeout)}

    def down(self) -> None:
        """Removes all pods."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.node.remove, list(self.pods.values())))
        self.pods.clear()
        self.node.close()

    def of(self, workload: str) -> list[Pod]:
        """The pods of a workload."""
        return [pod for pod in self.pods.values() if pod.workload["metadata"]["name"] == workload]

    def replace(self, workload: str, timeout: float) -> list[End]:
        """A rolling replacement. Of a Deployment one more pod comes before one goes; of a StatefulSet each makes place.

        :raises NotReadyError: a new pod is not ready in time; the others stay.
        """
        ends = []
        for old in self.of(workload):
            if old.workload["kind"] == "StatefulSet":
                ends.append(self._end(old))
                fresh = old
            else:
                fresh = self._pod(old.workload, f"{workload}-{next(self._numbers):05d}")
            self._create([fresh])
            list(self._wait([fresh], time.monotonic() + timeout))
            if fresh is not old:
                ends.append(self._end(old))
        return ends

    def save_logs(self, folder: Path) -> None:
        """Writes what every pod has written to a file each."""
        folder.mkdir(parents=True, exist_ok=True)
        for pod in self.pods.values():
            (folder / f"{pod.name}.log").write_text(self.node.logs(pod, lines=2000), encoding="utf-8")

    def denied(self) -> dict[str, int]:
        """Packets that no policy allows, by pod."""
        return {name: self.node.denied(name) for name in self.pods}

    def _workloads(self) -> list[Document]:
        return self.manifests.kind("StatefulSet", "Deployment", "Job")

    def _pods_of(self, workload: Document) -> list[Pod]:
        replicas = 1 if workload["kind"] == "Job" else workload["spec"].get("replicas", 1)
        name = workload["metadata"]["name"]
        stable = workload["kind"] == "StatefulSet"
        return [
            self._pod(workload, f"{name}-{at if stable else f'{next(self._numbers):05d}'}") for at in range(replicas)
        ]

    def _pod(self, workload: Document, name: str) -> Pod:
        at = next(self._numbers)
        return Pod(name, f"10.99.{at // 250}.{at % 250 + 2}", workload)

    def _create(self, pods: list[Pod]) -> None:
        names = host_names(self._services, self._planned, self.addresses)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda pod: self.node.sandbox(pod, names), pods))
            self.pods.update((pod.name, pod) for pod in pods)
            self._rules()
            list(pool.map(lambda pod: self.node.start(pod, self.volumes.mounts(pod)), pods))

    def _wait(self, pods: list[Pod], deadline: float) -> Iterator[tuple[str, float]]:
        left = list(pods)
        while left:
            done = [pod for pod in left if self._is_done(pod)]
            for pod in done:
                left.remove(pod)
                yield pod.name, time.monotonic()
            if done:
                self._ready.update(pod.name for pod in done if pod.workload["kind"] != "Job")
                self._rules()
            elif time.monotonic() > deadline:
                raise NotReadyError(
                    "\n\n".join(f"{pod.name} {self.node.state(pod)}:\n{self._told(pod)}" for pod in left)
                )
            else:
                time.sleep(LOOK_SECONDS)

    def _told(self, pod: Pod) -> str:
        return f"{self.node.logs(pod)}\ndenied: {self.node.denied(pod.name)}"

    def _is_done(self, pod: Pod) -> bool:
        if pod.workload["kind"] != "Job":
            return self.node.ready(pod)
        status, code, _ = self.node.state(pod)
        if status == "exited" and code and time.monotonic() > self._again.get(pod.name, 0):
            self.node.restart(pod)
            self._again[pod.name] = time.monotonic() + BACK_OFF_SECONDS
        return status == "exited" and code == 0

    def _end(self, pod: Pod) -> End:
        self._ready.discard(pod.name)
        self._rules()
        end = self.node.end(pod)
        del self.pods[pod.name]
        if pod.workload["kind"] != "StatefulSet":  # whose pods keep their address here: a hosts file stands for the DNS
            self._gone.append(pod.address)
        self._rules()
        return end

    def _rules(self) -> None:
        """Policies and services, for everybody, after any change."""
        pods = list(self.pods.values())
        ready = [pod for pod in pods if pod.name in self._ready]
        policies = self.manifests.kind("NetworkPolicy")

        def apply(numbered: tuple[int, Pod]) -> None:
            turn, pod = numbered
            # Not those alone that nobody serves now: between the two tables a service that changes would be in neither.
            text = rules.policies(pod, pods, [*self._gone, SERVICES], policies, GATEWAY)
            self.node.apply(pod.name, text + rules.services(turn, ready, self._services, self.addresses))

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(apply, enumerate(pods)))
        self.node.apply_here(rules.services(0, ready, self._services, self.addresses))
