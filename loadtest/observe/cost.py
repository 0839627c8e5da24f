"""What a request pays for being counted: observations that the mesh's own pages show, times what one costs here and
now, of the CPU that all its processes took. Counted, not switched off: what a few per cent less would be is lost in
what a machine differs from minute to minute.
"""

from __future__ import annotations

import tempfile
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram

from libs.diagnosis import Process, Window
from libs.telemetry.counter import FastCounter
from libs.telemetry.histogram import FastHistogram
from loadtest.ready import edge_of, ready
from loadtest.scenarios import requests_closed_loop
from services.cli.config import Mesh as Described
from services.cli.observe import scraping
from tests.support.mesh import Mesh

FAST = ("gen_ai_", "weir_gateway_stage_", "weir_gateway_outcomes", "weir_slo_", "weir_tenant_", "weir_predictor_stage_")
"""What counts with libs/telemetry; all else is reckoned as the library's own, which is dearer."""
_AMOUNTS = ("tokens", "token_usage", "microusd", "seconds", "bytes", "used", "queries", "hits", "rows", "count")
"""Counters that grow by amounts, by the end of their name: they are added to once per series and request."""
_CONNECTIONS, _TOKENS = 16, 16
_REQUEST = "gen_ai_server_request_duration_count"


async def figures(seconds: float) -> dict[str, float]:
    """Of a mesh of its own under load for so long."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-observe-") as folder,
        Mesh(Path(folder), profile="bench", settings=("replicas.predictor=0",)) as mesh,
    ):
        keys = await ready(mesh)
        places = scraping.places(Described(mesh.state, mesh.file()))
        edge = edge_of(mesh, keys)
        before = scraping.take(places)
        cost = await requests_closed_loop(edge, connections=_CONNECTIONS, seconds=seconds, max_tokens=_TOKENS)
        window = Window(before.scrape(), scraping.take(places).scrape())
    fast, slow, requests = observations(window)
    prices = price()
    spent = (fast * prices["fast"] + slow * prices["library"]) / requests
    return {
        "metrics_cpu_pct": 100.0 * spent / cost.cpu_per_unit,
        "observations_per_request": (fast + slow) / requests,
        "observation_us_fast": prices["fast"] * 1e6,
        "observation_us_library": prices["library"] * 1e6,
        "request_cpu_ms": cost.cpu_per_unit * 1e3,
    }


def observations(window: Window) -> tuple[float, float, float]:
    """How often something was counted by either kind of metric, and the requests meanwhile."""
    found = {True: 0.0, False: 0.0}
    requests = sum(window.gained(each, _REQUEST) for each in window.of("gateway"))
    for process in window.after.pages.keys() & window.before.pages.keys():
        for name in window.after.pages[process]:
            if name.startswith(("weir_", "gen_ai_")):
                found[name.startswith(FAST)] += _times(window, process, name, requests)
    return found[True], found[False], requests


def _times(window: Window, process: Process, name: str, requests: float) -> float:
    if name.endswith("_total"):
        if not name.removesuffix("_total").endswith(_AMOUNTS):
            return window.gained(process, name)
        return requests if window.gained(process, name) else 0.0
    return window.gained(process, name) if name.endswith("_count") else 0.0


def price(number: int = 100_000) -> Mapping[str, float]:
    """Seconds of an observation, a histogram's, which is dearer than a counter's; the least of several tries."""
    registry = CollectorRegistry()
    bounds = [0.001 * 2**place for place in range(16)]
    fast = FastHistogram("fast", "Of it", ("stage",), buckets=bounds, registry=registry).labels("queue")
    counted = FastCounter("fast_counted", "Of it", ("stage",), registry=registry)
    slow = Histogram("slow", "Of it", ["stage"], buckets=bounds, registry=registry).labels("queue")
    counter = Counter("slow_counted", "Of it", ["stage"], registry=registry)

    def took(each: Callable[[], object]) -> float:
        return min(timeit.repeat(each, number=number, repeat=3)) / number

    return {
        "fast": max(took(lambda: fast.observe(0.3)), took(lambda: counted.labels("queue").inc())),
        "library": max(took(lambda: slow.observe(0.3)), took(lambda: counter.labels("queue").inc())),
    }
