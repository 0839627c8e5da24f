"""What a process shows at /metrics, read by a real Prometheus: native histograms beside classic ones, and exemplars."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from libs.service.health import Health
from libs.telemetry.histogram import FastHistogram
from services.cli.mesh.monitoring import prometheus_config, prometheus_flags
from tests.integration.service.test_service_pages import pages, soon_stopped
from tests.support.etcd import free_ports
from tests.support.mesh import ROOT, eventually
from tests.support.prometheus import program

__all__ = ["soon_stopped"]
NAME, TRACE = "weir_test_read_seconds", "0af7651916cd43dd8448eb211c80319c"
BOUNDS = (0.1, 1.0, 10.0)


@contextlib.contextmanager
def prometheus(folder: Path, scraped: str) -> Iterator[str]:
    """The address of one that runs with the mesh's own flags."""
    [port] = free_ports(1)
    config = folder / "prometheus.yml"
    told = prometheus_config(
        ROOT / "deploy" / "alerts",
        interval="1s",
        control_planes=(),
        alertmanagers=(),
        named={"worker": {"worker-0": scraped}},
    )
    config.write_text(told)
    flags = prometheus_flags(config, folder / "data", f"127.0.0.1:{port}")
    process = subprocess.Popen([program("prometheus"), *flags])
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def asked(address: str, path: str, **question: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(question)}") as answer:
        return json.load(answer)["data"]


def value(address: str, expression: str) -> float:
    found = asked(address, "query", query=expression)["result"]
    assert len(found) == 1
    return float(found[0]["value"][1])


async def test_a_real_prometheus_reads_both_kinds_of_histogram_and_the_traces(tmp_path: Path) -> None:
    program("prometheus")
    histogram = FastHistogram(NAME, "Of it", ("stage",), buckets=BOUNDS)
    child = histogram.labels("queue")
    try:
        for number in range(1, 1001):
            child.observe(number / 200, TRACE if number == 777 else "")  # up to 5 s, evenly
        async with pages(Health()) as server:
            host, port = server.server_address[:2]
            await asyncio.to_thread(judge, tmp_path, f"{host!s}:{port}")
    finally:
        REGISTRY.unregister(histogram)


def judge(folder: Path, scraped: str) -> None:
    with prometheus(folder, scraped) as address:
        eventually(lambda: read(address), what="Prometheus reading the page")


def read(address: str) -> bool:
    native = f'{NAME}_native{{stage="queue"}}'
    assert value(address, f"histogram_quantile(0.9, {native})") == pytest.approx(4.5, rel=0.09)
    assert value(address, f"histogram_count({native})") == 1000
    assert value(address, f"{NAME}_count") == 1000
    found = asked(address, "query", query=f"{NAME}_bucket")["result"]
    classic = {float(each["metric"]["le"]): float(each["value"][1]) for each in found}
    assert classic == {0.1: 20, 1: 200, 10: 1000, math.inf: 1000}
    assert value(address, "max(process_cpu_seconds_total)") > 0
    found = asked(address, "query_exemplars", query=f"{NAME}_bucket", start="0", end="9999999999")
    series = next(iter(each for each in found if float(each["seriesLabels"]["le"]) == 10), {"exemplars": ()})
    assert [(each["labels"], float(each["value"])) for each in series["exemplars"]] == [({"trace_id": TRACE}, 3.885)]
    return True
