"""Workers' processes: their engines, their reports to admission, and what goes wrong with them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from services.admission.config import Settings
from services.admission.policy.model import Event, Interrupt, Report, WorkerSpec
from simulation import worker as engine
from simulation.clock import Clock
from simulation.memory import PreemptiveWorker
from simulation.outcomes import Observed
from simulation.owners import Owners
from simulation.scenario import CANARY, MODEL, Fault, Scenario
from simulation.workload import PREFIX_BLOCK

_FAR = 16  # tokens; as CapacityReport.progress says


class Listener(Protocol):
    """Who asked for the work and hears what becomes of it. A request is the handle of its sequence; it has that as its
    `sequence`, None when it is on no worker."""

    def first_token(self, request: Any, /) -> None:
        """The request's sequence has its first token on this worker."""

    def finished(self, host: Host, request: Any, /) -> None:
        """It has its last."""

    def ended_early(self, host: Host, sequence: engine.Sequence, /) -> None:
        """It was cancelled or interrupted."""

    def lost(self, request: Any, worker: str, produced: int, /) -> None:
        """Its worker died, after so many tokens there."""

    def apply(self, events: Sequence[Event], /) -> None:
        """Admission decided."""


class Host:
    """A worker's process: its engine, and its reports to admission."""

    __slots__ = ("engine", "far", "live", "muted", "prefixes", "report_due", "reported_at", "sequences", "spec")

    def __init__(self, worker: engine.Worker, spec: WorkerSpec, prefix_blocks: int) -> None:
        self.engine = worker
        self.spec = spec
        self.live = True
        self.muted = False  # its reports do not get through
        self.report_due = False
        self.reported_at = -math.inf
        self.sequences: dict[str, Any] = {}
        self.far: dict[str, int] = {}  # tokens at which a request was told of last
        self.prefixes = Prefixes(prefix_blocks)

    def cached(self, prefix: tuple[int, ...]) -> int:
        """Prompt tokens that it has of a new request's prefix, which counts as there from then on."""
        return PREFIX_BLOCK * self.prefixes.use(prefix) if prefix else 0

    def progress(self) -> tuple[tuple[str, int], ...]:
        """As `weir.admission.v1.CapacityReport.progress`, since the last call."""
        if not isinstance(self.engine, PreemptiveWorker):
            return ()
        told, before, self.far = [], self.far, {}
        for request, tokens in self.engine.progress():
            name = request.arrival.request_id
            milestone = _FAR << (tokens // _FAR).bit_length() - 1 if tokens >= _FAR else 0
            self.far[name] = milestone
            if milestone > before.get(name, 0):
                told.append((name, milestone))
        return tuple(told)


class Prefixes:
    """Blocks of prompts that a worker still has, the least recently used forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        """All is lost."""
        self._blocks.clear()

    def use(self, prefix: tuple[int, ...]) -> int:
        """How many of the leading blocks are there; all of them are afterwards."""
        found = next((number for number, each in enumerate(prefix) if each not in self._blocks), len(prefix))
        for each in reversed(prefix):  # of one prompt the last blocks go first
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return found


class Hosts:
    """All workers of a run."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        settings: Settings,
        clock: Clock,
        owners: Owners,
        observed: Observed,
        listener: Listener,
    ) -> None:
        """They join the pool at once; `start` has them report.

        :raises ScenarioError: the cluster makes no sense.
        """
        self._scenario = scenario
        self._delays = scenario.delays
        self._settings = settings
        self._clock = clock
        self._owners = owners
        self._observed = observed
        self._listener = listener
        self.by_name = self._join()

    def start(self) -> None:
        """The first reports, heartbeats and what will go wrong."""
        for number, host in enumerate(self.by_name.values()):
            self._report(host)
            # Heartbeats of the workers do not all come at once.
            self._clock.at((number + 1) / (len(self.by_name) + 1), self._heartbeat, host)
        self._clock.at(self._settings.tick_seconds, self._tick)
        for fault in self._scenario.faults:
            if fault.kind == "split_owners":
                self._clock.at(fault.at, self._split, fault)
            elif fault.kind != "flood":
                self._clock.at(fault.at, self._break, fault)

    @property
    def idle(self) -> bool:
        """Nothing is on any of them."""
        return not any(host.sequences for host in self.by_name.values())

    def changed(self, host: Host) -> None:
        """Its load is another one: it reports, at most once per interval."""
        if not host.report_due and host.live:
            host.report_due = True
            due = max(self._clock.now, host.reported_at + self._scenario.cluster.report_interval)
            self._clock.at(due, self._send_report, host)

    def wake(self, host: Host) -> None:
        """Looks at the worker when its present run will be over."""
        wake = host.engine.wake
        if wake < math.inf:
            self._clock.at(wake, self._step, (host, wake))

    def interrupt(self, interrupt: Interrupt) -> None:
        """Admission asks a worker to interrupt requests."""
        self._clock.after(self._delays.report, self._interrupt_now, interrupt)

    def _interrupt_now(self, interrupt: Interrupt) -> None:
        host = self.by_name[interrupt.worker]
        named = (host.sequences.get(request_id) for request_id in interrupt.request_ids)
        host.engine.end_early([each.sequence for each in named if each and each.sequence], self._clock.now)
        self.wake(host)

    def _join(self) -> dict[str, Host]:
        cluster = self._scenario.cluster
        costs, sizes = cluster.model()
        hosts = {}
        for number in range(cluster.workers):
            zone = cluster.zones[number % len(cluster.zones)]
            name = f"worker-{number:03d}"
            version = MODEL if number < cluster.workers - cluster.canaries else CANARY
            spec = WorkerSpec(
                worker=name,
                address=name,
                zone=zone,
                model_versions=frozenset({version}),
                block_size=sizes.block_size,
                total_blocks=sizes.total_blocks,
                max_running=sizes.max_running,
                max_context=sizes.max_context,
                simulated=True,
                engine="simulated",
                preemptive=cluster.preemptive,
                holds_shares=cluster.holds_shares,
                takes_credits=True,
            )
            made = (
                PreemptiveWorker(name, costs, sizes, zone=zone, holds_shares=cluster.holds_shares)
                if cluster.preemptive
                else engine.Worker(name, costs, sizes, zone=zone)
            )
            hosts[name] = Host(made, spec, cluster.prefix_blocks)
            self._joined(spec)
        return hosts

    def _step(self, due: tuple[Host, float]) -> None:
        host, at = due
        worker = host.engine
        if worker.wake != at:  # the run was cut short, or the worker has died
            return
        output = worker.advance(self._clock.now)
        if output.steps and output.decoding:
            self._observed.step_gaps[round(output.seconds / output.steps * 1e4)] += output.steps * output.decoding
        for sequence in output.first:
            self._listener.first_token(sequence.handle)
        for sequence in output.finished:
            self._listener.finished(host, sequence.handle)
        for sequence in output.ended:
            self._listener.ended_early(host, sequence)
        self.wake(host)
        self.changed(host)

    def _heartbeat(self, host: Host) -> None:
        self.changed(host)
        self._clock.after(self._settings.worker_heartbeat / 3, self._heartbeat, host)

    def _send_report(self, host: Host) -> None:
        host.report_due = False
        host.reported_at = self._clock.now
        if host.live and not host.muted:
            load = host.engine.load()
            report = Report(
                load.free_blocks,
                load.running,
                load.waiting,
                load.queued_prefill_tokens,
                decode_step=load.decode_step,
                prefill_tokens_per_second=load.prefill_tokens_per_second,
                progress=host.progress(),
            )
            self._clock.after(self._delays.report, self._reported, (host, report))

    def _report(self, host: Host) -> None:
        """The first one of a session."""
        self._reported((host, Report(host.engine.load().free_blocks)))

    def _reported(self, told: tuple[Host, Report]) -> None:
        host, report = told
        if not host.live:
            return
        name = host.spec.worker
        for pool in self._owners.pools:
            worker = pool.fleet.workers.get(name)
            if worker is None or not worker.live:  # its session was ended for its silence: it opens another one
                pool.worker_joined(host.spec, self._clock.now)
            self._listener.apply(pool.worker_reported(name, report, self._clock.now))

    def _joined(self, spec: WorkerSpec) -> None:
        for pool in self._owners.pools:
            pool.worker_joined(spec, self._clock.now)

    def _tick(self, _: None) -> None:
        now = self._clock.now
        for pool in self._owners.pools:
            for name in pool.silent_workers(now, self._settings.worker_heartbeat):
                pool.worker_left(name, now)
            self._listener.apply(pool.tick(now))
        self._clock.after(self._settings.tick_seconds, self._tick)

    # ---- faults --------------------------------------------------------------------------------------------------

    def _split(self, fault: Fault) -> None:
        """A second owner begins, which the workers find at once."""
        pool = self._owners.split(fenced=fault.fenced)
        for host in self.by_name.values():
            if host.live and not host.muted:
                pool.worker_joined(host.spec, self._clock.now)
                self._report(host)
        if fault.until < math.inf:
            self._clock.at(fault.until, lambda _: self._owners.heal())

    def _break(self, fault: Fault) -> None:
        hosts = [host for host in self.by_name.values() if host.live and not host.muted]
        if fault.kind == "lose_zone":
            hosts = [host for host in hosts if host.spec.zone == fault.zone]
        else:
            hosts = hosts[: fault.count]
        for host in hosts:
            if fault.kind == "silence":
                host.muted = True
            else:
                self._kill(host)
        if fault.until < math.inf:
            self._clock.at(fault.until, self._mend, hosts)

    def _mend(self, hosts: Iterable[Host]) -> None:
        for host in hosts:
            host.muted = False
            if not host.live:
                host.live = True
                self._joined(host.spec)
                self._report(host)
            else:
                self.changed(host)

    def _kill(self, host: Host) -> None:
        host.live = False
        lost, host.sequences = host.sequences, {}
        for request in lost.values():
            produced = 0
            if request.sequence is not None:
                produced = host.engine.produced(request.sequence, self._clock.now)
                request.sequence = None
            self._listener.lost(request, host.spec.worker, produced)
        host.engine.kill()
        host.prefixes.clear()
        for pool in self._owners.pools:
            pool.worker_left(host.spec.worker, self._clock.now)
