"""Pages of processes in situations that the simulator does not have, made by the services' own metric objects."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, Gauge, generate_latest

from libs.diagnosis import Process, Sample, Scrape, parse

BEGIN, SECONDS = 1_000_000.0, 10.0
"""When the first scrape is taken, and how long after it the second."""
_STARTED = BEGIN - 3600.0
_FUNCTION = "_child_samples"
"""What `Gauge.set_function` sets; the library has no way back."""


class Act:
    """One process over the window: what its metrics are told before the first scrape and between the two.

    Gauges are told by functions, as the services do: a value that was set stands back behind a function. What they had
    before is put back, as other code of this process may use them.
    """

    def __init__(self, process: Process, *, cpu: float = 0.1) -> None:
        """:param cpu: processor seconds per second."""
        self.process = process
        self._cpu = cpu
        self._before: list[Callable[[], object]] = []
        self._between: list[Callable[[], object]] = []
        self._leaving: list[Callable[[], object]] = []
        self._metrics: Any = importlib.import_module(f"services.{process.service.replace('-', '_')}.metrics")

    def gauge(self, name: str, value: float, *labels: str, after: float | None = None) -> Act:
        """A gauge by its name in the service's `metrics.py`."""
        self._before.append(lambda: self._set(name, value, labels))
        self._between.append(lambda: self._set(name, value if after is None else after, labels))
        return self

    def does(self, what: Callable[[Any], object]) -> Act:
        """Between the scrapes, with the service's `metrics` module."""
        self._between.append(lambda: what(self._metrics))
        return self

    def has(self, what: Callable[[Any], object]) -> Act:
        """Before the first."""
        self._before.append(lambda: what(self._metrics))
        return self

    def leaves(self, what: Callable[[Any], object]) -> Act:
        """When it is over."""
        self._leaving.append(lambda: what(self._metrics))
        return self

    def play(self) -> tuple[dict[str, list[Sample]], dict[str, list[Sample]]]:
        """Its pages."""
        pages = []
        try:
            for number, acts in enumerate((self._before, self._between)):
                for act in acts:
                    act()
                pages.append(page(self.process.service, self._cpu * SECONDS * number))
        finally:
            for act in reversed(self._leaving):
                act()
        return pages[0], pages[1]

    def _set(self, name: str, value: float, labels: tuple[str, ...]) -> None:
        metric: Gauge = getattr(self._metrics, name)
        gauge = metric.labels(*labels) if labels else metric
        self._leaving.append(partial(_put_back, gauge, vars(gauge).get(_FUNCTION)))
        gauge.set_function(lambda: value)


def _put_back(gauge: Gauge, function: object) -> None:
    if function is None:
        vars(gauge).pop(_FUNCTION)
    else:
        vars(gauge)[_FUNCTION] = function


def page(service: str, cpu: float) -> dict[str, list[Sample]]:
    """What the service's objects say now, and the process's time, which nobody can set."""
    prefix = f"weir_{service.replace('-', '_')}_"
    told = generate_latest(REGISTRY).decode().splitlines()
    return {
        **parse("\n".join(line for line in told if line.startswith(prefix))),
        "process_cpu_seconds_total": [Sample({}, 100.0 + cpu)],
        "process_start_time_seconds": [Sample({}, _STARTED)],
    }


def scrapes(
    *acts: Act, edge: Mapping[str, tuple[str, str]] | None = None, silent: frozenset[Process] = frozenset()
) -> tuple[Scrape, Scrape]:
    """Both scrapes of these processes.

    :param edge: texts of Envoys' pages, before and after, by name.
    :param silent: who answers neither.
    """
    before, after = {}, {}
    for act in acts:
        before[act.process], after[act.process] = act.play()
    for name, texts in (edge or {}).items():
        process = Process(name, "envoy")
        before[process], after[process] = map(parse, texts)
    return Scrape(BEGIN, before, silent), Scrape(BEGIN + SECONDS, after, silent)
