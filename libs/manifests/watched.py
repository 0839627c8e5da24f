"""Prometheus, Alertmanager and Grafana over a Compose file of a mesh. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from libs.manifests.compose import HARDENED

PROMETHEUS, ALERTMANAGER, GRAFANA = (
    "docker.io/prom/prometheus:v2.53.3",
    "docker.io/prom/alertmanager:v0.28.0",
    "docker.io/grafana/grafana:11.4.0",
)
"""Upstream's own; of Prometheus and Alertmanager the versions that Debian has. A variable names another one, best by
its digest."""
RULES = "/etc/prometheus/rules"
"""Where Prometheus finds deploy/alerts."""
PORTS = {"prometheus": 9090, "alertmanager": 9093}
_GRAFANA = 3000
_HEADER = """\
# Written by bin/compose-file. Over docker-compose.yml: what watches the mesh. docs/alerts.md says what it sees.
#
#   export COMPOSE_FILE=docker-compose.yml:docker-compose.observed.yml
#   docker compose up --wait        Prometheus http://127.0.0.1:19090, Alertmanager :19093, Grafana :13000
#
# WEIR_PROMETHEUS_IMAGE, WEIR_ALERTMANAGER_IMAGE, WEIR_GRAFANA_IMAGE: other images, best by digest;
# WEIR_PROMETHEUS_PORT and so on: other ports on this machine. Grafana shows its pages to whoever reaches that port,
# lets nobody change them, and has no users.
"""


def watched(prometheus: str) -> str:
    """The file's text.

    :param prometheus: Prometheus's configuration, which says where everything is.
    """
    services = {
        "prometheus": {
            **_container("prometheus", PROMETHEUS, user="65534:65534", data="/prometheus", memory="1g"),
            "command": [
                "--config.file=/etc/prometheus/prometheus.yml",
                "--storage.tsdb.path=/prometheus",
                "--storage.tsdb.retention.time=15d",
                "--storage.tsdb.retention.size=2GB",
                "--enable-feature=exemplar-storage",
                "--query.max-samples=5000000",
                "--query.timeout=30s",
            ],
            "configs": [{"source": "prometheus", "target": "/etc/prometheus/prometheus.yml"}],
            "healthcheck": _healthy(PORTS["prometheus"], "/-/ready"),
            "depends_on": {"controlplane": {"condition": "service_healthy"}},
        },
        "alertmanager": {
            **_container("alertmanager", ALERTMANAGER, user="65534:65534", data="/alertmanager", memory="256m"),
            "command": [
                "--config.file=/etc/alertmanager/alertmanager.yml",
                "--storage.path=/alertmanager",
                "--cluster.listen-address=",
            ],
            "healthcheck": _healthy(PORTS["alertmanager"], "/-/ready"),
        },
        "grafana": {
            **_container("grafana", GRAFANA, user="472:0", data="/var/lib/grafana", memory="512m", port=_GRAFANA),
            "environment": {
                "GF_AUTH_ANONYMOUS_ENABLED": "true",
                "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
                "GF_AUTH_DISABLE_LOGIN_FORM": "true",
                "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
                # Nobody is told that it runs, and nothing is fetched.
                "GF_ANALYTICS_REPORTING_ENABLED": "false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
                "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
            },
            "configs": [
                {"source": "grafana-source", "target": "/etc/grafana/provisioning/datasources/weir.yml"},
                {"source": "grafana-pages", "target": "/etc/grafana/provisioning/dashboards/weir.yml"},
            ],
            "healthcheck": _healthy(_GRAFANA, "/api/health"),
            "depends_on": {"prometheus": {"condition": "service_healthy"}},
        },
    }
    services["prometheus"]["volumes"].append(_bind("./deploy/alerts", RULES))
    services["alertmanager"]["volumes"].append(_bind("./deploy/alertmanager.yml", "/etc/alertmanager/alertmanager.yml"))
    services["grafana"]["volumes"].append(_bind("./k8s/components/monitoring/dashboards", _PAGES))
    content = {
        "services": services,
        # Compose would take "$" for a variable.
        "configs": {name: {"content": text.replace("$", "$$")} for name, text in _configs(prometheus).items()},
        "volumes": {name: {} for name in services},
    }
    return _HEADER + yaml.safe_dump(content, sort_keys=False, width=120)


_PAGES = "/var/lib/grafana-pages"
"""Where Grafana finds the dashboards."""


def _configs(prometheus: str) -> dict[str, str]:
    source = {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",
                "uid": "prometheus",
                "type": "prometheus",
                "access": "proxy",
                "url": f"http://prometheus:{PORTS['prometheus']}",
                "isDefault": True,
                "editable": False,
            }
        ],
    }
    pages = {
        "apiVersion": 1,
        "providers": [{"name": "weir", "folder": "Weir", "type": "file", "options": {"path": _PAGES}}],
    }
    written = {"grafana-source": source, "grafana-pages": pages}
    return {"prometheus": prometheus, **{name: yaml.safe_dump(each, sort_keys=False) for name, each in written.items()}}


def _container(name: str, image: str, *, user: str, data: str, memory: str, port: int = 0) -> dict[str, Any]:
    port = port or PORTS[name]
    hardened = json.loads(json.dumps(HARDENED)) | {"user": user}
    return {
        **hardened,
        "image": f"${{WEIR_{name.upper()}_IMAGE:-{image}}}",
        "ports": [f"127.0.0.1:${{WEIR_{name.upper()}_PORT:-{10_000 + port}}}:{port}"],
        "volumes": [{"type": "volume", "source": name, "target": data}],
        "mem_limit": memory,
        "restart": "unless-stopped",
    }


def _healthy(port: int, path: str) -> dict[str, Any]:
    """Busybox, which all three images have."""
    test = ["CMD", "wget", "-q", "-O", "/dev/null", f"http://127.0.0.1:{port}{path}"]
    return {"test": test, "interval": "30s", "timeout": "10s", "retries": 3, "start_period": "60s"}


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "read_only": True}


def pages_of(processes: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of a described mesh (`weir render`), the metrics pages of what is in no registry, by kind and process."""
    paths = {"etcd": "", "envoy": "/stats/prometheus"}
    found: dict[str, dict[str, str]] = {kind: {} for kind in paths}
    for name, each in processes.items():
        if each["kind"] in paths:
            found[each["kind"]][name] = f"{each['host']}:{each['probes']['port']}{paths[each['kind']]}"
    return found
