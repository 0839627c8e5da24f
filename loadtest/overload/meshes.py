"""A running mesh of the profile overload, prepared and warm, and runs of load against it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.figures import needed
from loadtest.overload.generator import Generator, Run, check, run_to_end
from loadtest.overload.output import Usage, counts, progress
from loadtest.overload.samples import OK, Sample, read
from loadtest.overload.senders import Route
from loadtest.overload.setting import PROFILE, Setting, Site, drained, out_file, prepare
from simulation.lengths import Lengths
from simulation.workload import TenantLoad
from tests.support.mesh import Mesh

_WARM = Lengths.fixed(8, 2)
_WARM_SECONDS = 60.0

Routes = Mapping[str, Route]
"""By the label of a load."""


@contextmanager
def overload_mesh(
    folder: Path, name: str, setting: Setting, *, settings: Sequence[str] = (), native: Iterable[str] = ()
) -> Iterator[Site]:
    """A mesh that knows the setting's tenants and has answered each of them, over the edge, and natively where named.

    :raises TimeoutError: some tenant got no answer.
    """
    with Mesh(folder / name, profile=PROFILE, settings=tuple(settings)) as running:
        site = asyncio.run(prepare(running, setting))
        routes = {spec.id: site.over_edge(spec.id) for spec in setting.tenants}
        routes |= {f"{tenant}-natively": site.natively(tenant) for tenant in native}
        warm(site, routes, folder)
        progress(f"mesh {name} is up and answers every tenant")
        yield site


def warm(site: Site, routes: Routes, folder: Path) -> None:
    """Send small requests along every route until each was served: keys, limits and workloads spread by watches, and
    first requests open streams and fill caches.

    :raises TimeoutError: a route never worked.
    """
    loads = tuple(
        TenantLoad(label.removesuffix("-natively"), clients=1, lengths=_WARM, think=0.05, name=label)
        for label in routes
    )
    out = out_file(folder, "warm-up")
    deadline = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < deadline:
        run_to_end(Run(loads=loads, routes=routes, seconds=1.0, environ=site.environ), out)
        samples = read(out)
        if all(_last(samples, label) == OK for label in routes):
            return
    ends = {label: _last(samples, label) for label in routes}
    raise TimeoutError(f"not every tenant was served: {ends}")


def _last(samples: Sequence[Sample], label: str) -> str:
    return next((sample.outcome for sample in reversed(samples) if sample.load == label), "nothing")


class Runner:
    """Sends loads to one mesh and reads what became of them."""

    def __init__(self, site: Site, folder: Path, usage: Usage, *, prefix: str, model: str, header: Mapping[str, Any]):
        self.site = site
        self._folder = folder
        self._usage = usage
        self._prefix = prefix
        self._model = model
        self._header = header
        self._pids = site.pids()

    def run(
        self, name: str, loads: Sequence[TenantLoad], routes: Routes, seconds: float, **options: Any
    ) -> list[Sample]:
        """Send, wait for the answers and until the mesh is empty."""
        return self.watched(name, loads, routes, seconds, lambda generator: None, **options)

    def watched(
        self,
        name: str,
        loads: Sequence[TenantLoad],
        routes: Routes,
        seconds: float,
        watch: Callable[[Generator], None],
        **options: Any,
    ) -> list[Sample]:
        """The same with something to do meanwhile; `options` are fields of `Run`."""
        out = self.file(name)
        run = Run(
            loads=tuple(loads),
            routes=routes,
            seconds=seconds,
            model=self._model,
            environ=self.site.environ,
            header=self._header,
            **options,
        )
        with self._usage.window(self._pids), Generator(run, out) as generator:
            watch(generator)
            effort = generator.join()
        self._usage.generator(effort)
        check(effort)
        asyncio.run(drained(self.site))
        return read(out)

    def file(self, name: str) -> Path:
        """Where the samples of a run are."""
        return out_file(self._folder, f"{self._prefix}-{name}")


def completed(samples: Sequence[Sample], *, start: float, end: float) -> float:
    """Requests per second that were served to their end in this time; where a slow machine had none ready by then, of
    all over the time that they took.

    :raises NothingFoundError: none was served.
    """
    ends = [sample.at + (sample.e2e or 0.0) for sample in samples if sample.outcome == OK]
    needed(len(ends), f"request was served: {outcomes(samples)}")
    inside = sum(start <= each < end for each in ends)
    return inside / (end - start) if inside else len(ends) / max(ends)


def outcomes(samples: Iterable[Sample]) -> str:
    """All ends, counted."""
    found: dict[str, int] = {}
    for sample in samples:
        found[sample.outcome] = found.get(sample.outcome, 0) + 1
    return counts(found)
