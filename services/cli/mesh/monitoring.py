"""How Prometheus and Alertmanager are started and what they are told. Pure.

Services are found by HTTP discovery, which control planes offer beside their own metrics (services/controlplane); what
is in no registry, etcd, Envoy and these two themselves, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

SERVICES = ("prometheus", "alertmanager")
RULES = ("slo.yml", "mesh.yml")
"""Files of deploy/alerts with the rules that Prometheus evaluates."""


def prometheus_config(
    rules: Path,
    *,
    interval: str,
    control_planes: Sequence[str],
    alertmanagers: Sequence[str],
    named: Mapping[str, Mapping[str, str]],
) -> str:
    """Prometheus's configuration file.

    :param rules: the folder of RULES.
    :param interval: between two scrapes, and two evaluations, "15s".
    :param control_planes: their metrics addresses "host:port".
    :param alertmanagers: "host:port".
    :param named: by job, the metrics addresses of its processes by name, with a path where it is not /metrics.
    """
    discovery = [
        {"url": f"http://{address}/targets", "refresh_interval": "5s", "follow_redirects": False}
        for address in control_planes
    ]
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
            "rule_files": [str(rules / name) for name in RULES],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
            "scrape_configs": [
                # The job is in the labels of what is discovered: the service's name.
                {"job_name": "weir", "http_sd_configs": discovery, **_BOUNDS},
                *(_named(job, processes) for job, processes in named.items()),
            ],
        },
        sort_keys=False,
    )


_BOUNDS = {"sample_limit": 50_000, "label_value_length_limit": 500, "body_size_limit": "32MB"}
"""A process whose page grows beyond this is not scraped, which is an alert, rather than taking Prometheus along."""


def _named(job: str, processes: Mapping[str, str]) -> dict[str, Any]:
    targets = []
    for name, at in processes.items():
        address, _, path = at.partition("/")
        path_label = {"__metrics_path__": f"/{path}"} if path else {}
        targets.append({"targets": [address], "labels": {"instance": name, **path_label}})
    return {"job_name": job, "static_configs": targets, **_BOUNDS}


def prometheus_flags(config: Path, data: Path, listen: str) -> Iterable[str]:
    """Prometheus's arguments; it listens on "host:port"."""
    return (
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=15d",
        "--storage.tsdb.retention.size=2GB",
        f"--web.listen-address={listen}",
        "--web.max-connections=64",
        "--query.max-samples=5000000",
        "--query.timeout=30s",
        "--enable-feature=exemplar-storage,native-histograms",
        "--log.level=warn",
    )


def alertmanager_flags(config: Path, data: Path, listen: str) -> Iterable[str]:
    """Alertmanager's arguments; alone, so that it looks for no others."""
    return (
        f"--config.file={config}",
        f"--storage.path={data}",
        f"--web.listen-address={listen}",
        "--cluster.listen-address=",
        "--log.level=warn",
    )
