"""Keeps a set of processes running: starts them in order, restarts them, stops the whole tree.

    waiting ──► starting ──► ready ⇄ unready          (what a probe says while it runs)
                   │           │
                   │           └──► hung ──► exit     it does not answer: stopped
                   └─ exit ────┴──► backoff ──► starting     after start-up, for ever
                   └─ exit during start-up ──► failed: everything is stopped

Decisions are in `policy`; this module only waits and acts.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

from libs.clock import Clock
from libs.supervisor.child import Begun, Child, spawn
from libs.supervisor.forks import Fork
from libs.supervisor.logs import LogSink
from libs.supervisor.policy import Silence, gives_up, levels, next_restart, patience
from libs.supervisor.probes import Look, follow
from libs.supervisor.spec import Probe, ProcessSpec, SupervisorSpec

SELF = "supervisor"
"""The name under which the supervisor's own lines are logged."""

FINAL_STATES = frozenset({"stopped", "failed"})
"""Mesh states after which nothing runs any more."""

_PROBE_PAUSE = 0.5
"""Seconds until a probe is tried again that could not look."""


class UnknownProcess(KeyError):
    """A command names a process that is not in the specification."""


class _HungError(Exception):
    """The process that is observed does not answer any more."""


@dataclass(slots=True)
class Failure:
    """Why a start-up was given up."""

    name: str
    reason: str
    last_lines: list[str]


@dataclass(slots=True)
class Entry:
    """What is known about one process."""

    spec: ProcessSpec
    state: str = "waiting"
    child: Child | None = None
    observer: asyncio.Task[None] | None = None
    started_at: float = 0.0
    restarts: int = 0
    failures: int = 0
    exits: int = 0
    last_exit: int | None = None
    was_ready: bool = False
    silence: Silence = field(default_factory=Silence)
    hung: bool = False
    """It is being stopped because it does not answer."""
    fault: str = ""
    """Why it cannot be observed."""
    stop_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    first_ready: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends a back-off early."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Its keeper is done: the process will not run again."""

    @property
    def stopping(self) -> bool:
        """Whether it is to stop for good."""
        return self.stop_wanted.is_set()


class Supervisor:
    """Runs one specification once."""

    def __init__(
        self,
        spec: SupervisorSpec,
        *,
        sink: LogSink,
        clock: Clock,
        rng: Random,
        early: Mapping[str, Begun | Fork] = MappingProxyType({}),
    ) -> None:
        """:param early: processes by name that were made before; those that never get their first start, `run` ends.

        :raises OrderError: dependencies are unknown or circular."""
        self._spec = spec
        self._early = dict(early)
        self._sink = sink
        self._clock = clock
        self._rng = rng
        self._entries = {process.name: Entry(process) for process in spec.processes}
        self._start_order = levels({p.name: p.after for p in spec.processes})
        self._stop_order = levels({p.name: (*p.after, *p.uses) for p in spec.processes})[::-1]
        self._state = "starting"
        self._failure: Failure | None = None
        self._stop_wanted = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> bool:
        """Starts everything, keeps it running until `stop`, stops everything. False when the start-up failed."""
        async with asyncio.TaskGroup() as group:
            for name in (name for level in self._start_order for name in level):
                group.create_task(self._keep(self._entries[name]), name=f"keep {name}")
            watcher = group.create_task(self._watch_startup(), name="start-up")
            await self._stop_wanted.wait()
            watcher.cancel()
            await self._stop_all()
        for process in self._early.values():
            process.discard()
        self._set_state("failed" if self._failure else "stopped")
        return self._failure is None

    def stop(self) -> None:
        """Asks for the stop of everything; `run` returns when it is done."""
        self._stop_wanted.set()

    async def restart(self, name: str) -> None:
        """Stops a process with grace and starts it at once. Raises UnknownProcess."""
        entry = self._entry(name)
        entry.failures = 0
        entry.hurry.set()
        if entry.child is not None:
            self._log(f"restarting {name} on request")
            await self._prepare(entry)
            if entry.child is not None:
                await self._end(entry, entry.child)

    async def _prepare(self, entry: Entry) -> None:
        spec = entry.spec
        if not spec.before_restart:
            return
        try:
            hook = await asyncio.create_subprocess_exec(
                *spec.before_restart, cwd=spec.cwd or None, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
            )
        except OSError as error:
            self._log(f"cannot prepare {spec.name} for its end: {error}")
            return
        try:
            async with asyncio.timeout(spec.stop_grace):
                code = await hook.wait()
        except TimeoutError:
            hook.kill()
            code = await hook.wait()
        if code:
            self._log(f"{spec.name} was not prepared for its end: {_how(code)}")

    def kill(self, name: str, number: int) -> None:
        """Sends a signal to a process, as a fault would; it comes back by the restart policy. Raises UnknownProcess."""
        entry = self._entry(name)
        if entry.child is not None:
            self._log(f"sending signal {number} to {name} on request")
            entry.child.signal(number)

    def status(self) -> dict[str, Any]:
        """The state of everything: JSON types only, times in seconds."""
        now = self._clock.monotonic()
        failure = self._failure
        return {
            "state": self._state,
            "pid": os.getpid(),
            "log_lines_dropped": self._sink.dropped,
            "failure": None
            if failure is None
            else {"name": failure.name, "reason": failure.reason, "last_lines": failure.last_lines},
            "processes": [
                {
                    "name": entry.spec.name,
                    "state": entry.state,
                    "ready": entry.state == "ready",
                    "pid": entry.child.pid if entry.child else None,
                    "restarts": entry.restarts,
                    "uptime_s": round(now - entry.started_at, 3) if entry.child else 0.0,
                    "last_exit": entry.last_exit,
                }
                for entry in self._entries.values()
            ],
        }

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """The status now and after every change; the last one has a final state. A slow reader skips states."""
        while True:
            changed = self._changed
            status = self.status()
            yield status
            if status["state"] in FINAL_STATES:
                return
            await changed.wait()

    def _entry(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownProcess(name) from None

    async def _watch_startup(self) -> None:
        for entry in self._entries.values():
            await entry.first_ready.wait()
        self._set_state("up")
        self._log("every process is ready")

    async def _keep(self, entry: Entry) -> None:
        try:
            for name in entry.spec.after:
                await _either(self._entries[name].first_ready, entry.stop_wanted)
            while not entry.stopping:
                await self._run_once(entry)
                if not entry.stopping:
                    await self._back_off(entry)
        finally:
            self._enter(entry, "failed" if self._failure and self._failure.name == entry.spec.name else "stopped")
            entry.ended.set()

    async def _run_once(self, entry: Entry) -> None:
        name = entry.spec.name
        entry.hurry.clear()
        entry.started_at = self._clock.monotonic()
        entry.was_ready = entry.hung = False
        entry.silence, entry.fault = Silence(), ""
        try:
            early = self._early.pop(name, None)
            entry.child = child = await spawn(entry.spec, lambda line: self._sink.line(name, line), early)
        except OSError as error:
            entry.exits += 1
            self._sink.line(name, f"cannot start {entry.spec.argv[0]}: {error}".encode())
            self._after_exit(entry, f"cannot be started: {error}")
            return
        self._enter(entry, "starting")
        if entry.stopping:  # asked to stop while the process was being created
            await child.stop()
        entry.observer = observer = asyncio.create_task(self._observe(entry, child), name=f"observe {name}")
        try:
            entry.last_exit = await child.wait()
        finally:
            observer.cancel()
            await asyncio.wait((observer,))
            entry.child = None
        entry.exits += 1
        if not entry.stopping and not entry.hurry.is_set():
            self._after_exit(entry, _how(entry.last_exit))

    async def _observe(self, entry: Entry, child: Child) -> None:
        if (probe := entry.spec.readiness) is None:
            self._report(entry, Look.READY)
            return
        async with asyncio.TaskGroup() as group:
            if self._state == "starting":
                group.create_task(self._expect_readiness(entry))
            group.create_task(self._follow(entry, child, probe))

    async def _follow(self, entry: Entry, child: Child, probe: Probe) -> None:
        name = entry.spec.name
        while not entry.hung:
            try:
                await follow(probe, lambda look: self._report(entry, look))
            except _HungError:
                entry.hung = True
            except Exception as error:  # a probe that cannot look says nothing about the process
                if repr(error) != entry.fault:
                    entry.fault = repr(error)
                    self._log(f"cannot observe {name}: {entry.fault}")
                await asyncio.sleep(_PROBE_PAUSE)
        seconds = self._clock.monotonic() - entry.silence.since
        self._log(f"{name} has not answered for {seconds:.0f} s: stopping it")
        self._enter(entry, "hung")
        await child.stop()

    async def _expect_readiness(self, entry: Entry) -> None:
        try:
            async with asyncio.timeout(entry.spec.ready_timeout):
                await entry.first_ready.wait()
        except TimeoutError:
            why = f", it cannot be observed: {entry.fault}" if entry.fault else ""
            self._fail(entry, f"not ready {entry.spec.ready_timeout:g} s after its start{why}")

    def _report(self, entry: Entry, look: Look) -> None:
        """:raises _HungError: it has been silent for too long."""
        if look is Look.READY:
            entry.was_ready, entry.fault = True, ""
            entry.first_ready.set()
        if entry.was_ready:
            self._enter(entry, "ready" if look is Look.READY else "unready")
        now = self._clock.monotonic()
        entry.silence.note(answered=look is not Look.SILENT, now=now)
        if self._state == "starting" and not entry.was_ready:
            return  # a start-up has a bound of its own
        policy = self._spec.liveness
        seconds = patience(
            policy, was_ready=entry.was_ready, ready_timeout=entry.spec.ready_timeout, failures=entry.failures
        )
        if entry.silence.hangs(policy, seconds=seconds, now=now):
            raise _HungError

    def _after_exit(self, entry: Entry, reason: str) -> None:
        self._log(f"{entry.spec.name} {reason}")
        if self._state == "starting" and gives_up(
            self._spec.startup, exits=entry.exits, was_ready=entry.first_ready.is_set()
        ):
            self._fail(entry, reason)

    async def _back_off(self, entry: Entry) -> None:
        entry.failures, delay = next_restart(
            self._spec.restart,
            entry.failures,
            # One that hung was not stable, however long it ran.
            ran_for=0.0 if entry.hung else self._clock.monotonic() - entry.started_at,
            unit=self._rng.random(),
        )
        self._enter(entry, "backoff")
        try:
            async with asyncio.timeout(delay):
                await _either(entry.hurry, entry.stop_wanted)
        except TimeoutError:
            self._log(f"restarting {entry.spec.name} after {delay:.2f} s")
        entry.restarts += 1

    def _fail(self, entry: Entry, reason: str) -> None:
        if self._failure is None and not self._stop_wanted.is_set():
            self._failure = Failure(entry.spec.name, reason, self._sink.tail(entry.spec.name))
            self._log(f"start-up failed: {entry.spec.name} {reason}")
            entry.stop_wanted.set()
            self.stop()

    async def _stop_all(self) -> None:
        self._set_state("stopping")
        for level in self._stop_order:
            await asyncio.gather(*(self._stop_one(self._entries[name]) for name in level))

    async def _stop_one(self, entry: Entry) -> None:
        entry.stop_wanted.set()
        if entry.child is not None:
            await self._end(entry, entry.child)
        await entry.ended.wait()

    async def _end(self, entry: Entry, child: Child) -> None:
        """Stops a process that runs. The probe lets go first: a service that drains waits for open health streams."""
        if entry.observer is not None:
            entry.observer.cancel()
            await asyncio.wait((entry.observer,))
        self._enter(entry, "stopping")
        await child.stop()

    def _enter(self, entry: Entry, state: str) -> None:
        if entry.state != state:
            entry.state = state
            self._announce()

    def _set_state(self, state: str) -> None:
        self._state = state
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _log(self, text: str) -> None:
        self._sink.line(SELF, text.encode())


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    """Waits until one of two events is set."""
    waits = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
