"""Grafana's dashboards from their descriptions in deploy/dashboards. Pure."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import msgspec

WIDTH, HEIGHT = 12, 8
"""Of a panel; a dashboard is 24 wide."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Curves over time."""

    title: str
    unit: str
    """As Grafana calls it: "s", "reqps", "bytes", "percentunit", "short" …"""
    series: dict[str, str]
    """Expressions by what to call them: a word, or labels "{{pool}}"."""
    quiet: bool = False
    """Shows nothing on a mesh that is well."""


class Dashboard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page of panels."""

    title: str
    panel: tuple[Panel, ...]


def read(text: str) -> Dashboard:
    """A description.

    :raises ValueError: it is none; the message names the field.
    """
    return msgspec.convert(tomllib.loads(text), Dashboard)


def grafana(name: str, dashboard: Dashboard) -> str:
    """As Grafana imports it; `name` is how its address calls it."""
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    made = {
        "uid": f"weir-{name}",
        "title": dashboard.title,
        "tags": ["weir"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panel)],
    }
    return json.dumps(made, indent=1) + "\n"


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, 2)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}},
        "targets": [
            {"refId": f"S{place}", "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for place, (legend, expr) in enumerate(panel.series.items())
        ],
    }
