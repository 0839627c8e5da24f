"""Volumes of pods as folders of the node, with the owners and modes that kubelet gives them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.cluster import csi
from tests.support.cluster.objects import Manifests, Pod, UnknownFieldError

Files = Mapping[str, bytes]


class Volumes:
    """The folders of every pod under one."""

    def __init__(self, folder: Path, manifests: Manifests, secrets: Mapping[str, Files], ca: csi.Authority) -> None:
        """:param secrets: what somebody has put into the cluster beforehand, by name."""
        self._folder, self._manifests, self._secrets, self._ca = folder, manifests, secrets, ca

    def mounts(self, pod: Pod) -> list[str]:
        """Arguments for `docker run`."""
        found = []
        for mount in pod.container.get("volumeMounts", []):
            folder = self._volume(pod, mount["name"])
            path = folder / mount["subPath"] if "subPath" in mount else folder
            found += ["--volume", f"{path}:{mount['mountPath']}" + (":ro" if mount.get("readOnly") else "")]
        return found

    def renew(self, pod: Pod) -> None:
        """New certificates for a running pod, as the CSI driver brings them before the old ones end."""
        for volume in pod.spec.get("volumes", []):
            if "csi" in volume:
                self._issue(pod, self._path(pod.name, volume["name"]), volume["csi"])

    def _volume(self, pod: Pod, name: str) -> Path:
        claims = pod.workload["spec"].get("volumeClaimTemplates", [])
        if any(each["metadata"]["name"] == name for each in claims):
            return self._empty(self._path("claims", f"{name}-{pod.name}"), pod)  # it outlives its pod
        volume = next(each for each in pod.spec["volumes"] if each["name"] == name)
        path = self._path(pod.name, name)
        match next(kind for kind in volume if kind != "name"):
            case "emptyDir":
                return self._empty(path, pod)
            case "persistentVolumeClaim":
                return self._empty(self._path("claims", volume["persistentVolumeClaim"]["claimName"]), pod)
            case "configMap":
                data = self._manifests.named("ConfigMap", volume["configMap"]["name"])["data"]
                self._fill(path, pod, {key: text.encode() for key, text in data.items()}, 0o644)
            case "secret":
                source = volume["secret"]
                self._fill(path, pod, self._secrets[source["secretName"]], source.get("defaultMode", 0o644))
            case "csi":
                self._issue(pod, path, volume["csi"])
            case other:
                raise UnknownFieldError(f"volume {other}")
        return path

    def _issue(self, pod: Pod, path: Path, source: Mapping[str, Any]) -> None:
        if source["driver"] != csi.DRIVER or not source.get("readOnly"):
            raise UnknownFieldError(f"csi {source['driver']}, or not read-only")
        variables = {"POD_NAME": pod.name, "POD_NAMESPACE": "weir"}
        attributes = source["volumeAttributes"]
        self._manifests.named("Issuer", attributes[f"{csi.DRIVER}/issuer-name"])
        self._fill(path, pod, csi.files(self._ca, attributes, variables), 0o640)

    def _fill(self, path: Path, pod: Pod, files: Files, mode: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        group = self._group(pod)
        for name, content in files.items():
            fresh = path / f".{name}.new"
            fresh.write_bytes(content)
            os.chown(fresh, 0, group)
            fresh.chmod(mode)
            fresh.rename(path / name)
        os.chown(path, 0, group)
        path.chmod(0o755)

    def _empty(self, path: Path, pod: Pod) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, 0, self._group(pod))
        path.chmod(0o2777)
        return path

    def _group(self, pod: Pod) -> int:
        return int(pod.spec["securityContext"].get("fsGroup", 0))

    def _path(self, owner: str, name: str) -> Path:
        return self._folder / owner / name
