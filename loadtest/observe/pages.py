"""What the pages of a mesh with many tenants and versions weigh, and what it takes to make them.

`python -m loadtest.observe.pages SERVICE VERSIONS TENANTS` is one process: it imports the service's metrics, gives each
label the values that it has in such a mesh, and makes the page that Prometheus gets, as the service does. `whole` asks
one for each service, and adds them up as often as the topology has the service.
"""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

from prometheus_client import REGISTRY, disable_created_metrics

from libs.telemetry.counter import FastCounter
from libs.telemetry.exposition import Exposition

ROOT = Path(__file__).resolve().parents[2]
VERSIONS, TENANTS = 200, 2_000
ACCEPT = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""Prometheus's with `native-histograms`."""
_REPEATS = 5
_MODELS = frozenset(("model", "model_version", "gen_ai_response_model"))
_VALUES = {"zone": 2, "alias": 20, "arm": 2, "tenant": 65, "worker": 8, "stage": 8, "outcome": 8}
"""How many values a label has: a version is asked for by one operation, and runs in two zones."""
_ONE = frozenset(("gen_ai_operation_name", "state", "step"))
_FEW = 3


def fill(versions: int, tenants: int) -> None:
    """Gives all that is registered its labels."""
    for collector in list(REGISTRY._collector_to_names):
        names, series = _labels_of(collector)
        if not names:
            continue
        most = 1 if "alias" in names else versions  # each arm of an alias has its own
        for values in itertools.product(*(_values(name, most, tenants) for name in names)):
            _observe(series(*values))


def _labels_of(collector: Any) -> tuple[tuple[str, ...], Any]:
    names = collector._told[2] if isinstance(collector, FastCounter) else getattr(collector, "_labelnames", ())
    return tuple(names), getattr(collector, "labels", None)


def _values(name: str, versions: int, tenants: int) -> list[str]:
    if name in _MODELS:
        return [f"some-model-{number}@1" for number in range(versions)]
    count = 1 if name in _ONE else _VALUES.get(name, _FEW)
    return [f"{name}-{number}" for number in range(min(count, tenants) if name == "tenant" else count)]


def _observe(series: Any) -> None:
    for number in range(8):
        if hasattr(series, "observe"):
            series.observe(0.05 * 1.2**number)
        elif hasattr(series, "inc"):
            series.inc(number * 1_000_003.0)


def page(service: str, versions: int, tenants: int) -> dict[str, float]:
    """Of one process: seconds of CPU, bytes as they are sent and unpacked, series."""
    disable_created_metrics()
    importlib.import_module(f"services.{service}.metrics")
    for more in {"gateway": ("libs.outcomes.recorder", "libs.outcomes.tenants", "services.gateway.shadow.mirrors")}.get(
        service, ()
    ):
        importlib.import_module(more)
    if service in ("worker", "predictor"):
        importlib.import_module("libs.telemetry.accelerators")
    if service == "predictor":
        importlib.import_module("libs.outcomes.tenants")
        _predictions(versions)
    fill(versions, tenants)
    exposition, seconds, found = Exposition(), list[float](), None
    for _ in range(_REPEATS):
        begun = process_time()
        found = exposition.render(ACCEPT, "gzip")
        seconds.append(process_time() - begun)
    assert found is not None
    series = sum(len(family.samples) for family in REGISTRY.collect())
    return {
        "seconds": min(seconds),
        "bytes": len(found.body),
        "unpacked": len(gzip.decompress(found.body)),
        "series": series,
    }


def _predictions(versions: int) -> None:
    from services.predictor.metrics import VERSIONS as READ
    from services.predictor.statistics import Statistics

    statistics = Statistics()
    for number in range(versions):
        counts = statistics.of(f"some-model-{number}@1")
        for seconds in (0.001, 0.02, 0.3):
            counts.succeeded(seconds, 1.0)
    READ.watch(statistics)


def processes() -> Iterator[tuple[str, int]]:
    """Services with metrics of their own, and how many processes of each a mesh has."""
    told = tomllib.loads((ROOT / "deploy" / "topology.toml").read_text())["process"].values()
    counts = Counter(each["service"].replace("-", "_") for each in told if "service" in each)
    for service, count in sorted(counts.items()):
        if (ROOT / "services" / service / "metrics.py").exists():
            yield service, count


def whole(versions: int = VERSIONS, tenants: int = TENANTS) -> dict[str, dict[str, float]]:
    """By service, what all its processes' pages take together."""
    found = {}
    for service, count in processes():
        command = [sys.executable, "-m", "loadtest.observe.pages", service, str(versions), str(tenants)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=True)
        found[service] = {name: value * count for name, value in json.loads(done.stdout).items()}
    return found


if __name__ == "__main__":
    print(json.dumps(page(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))  # noqa: T201
