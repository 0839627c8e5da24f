"""Prometheus's files of rules as Prometheus's operator takes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import yaml

_HEAD = "# Written by bin/k8s-manifests from deploy/alerts: change that.\n"
_LABELS = {"app.kubernetes.io/part-of": "weir"}


def rules(files: Mapping[str, str], namespace: str) -> str:
    """One PrometheusRule for each of these files, by name."""
    documents = [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": f"weir-{PurePosixPath(name).stem}", "namespace": namespace, "labels": _LABELS},
            "spec": yaml.safe_load(text),
        }
        for name, text in files.items()
    ]
    return _HEAD + "---\n".join(yaml.safe_dump(each, sort_keys=False, width=120) for each in documents)
