"""The run itself: workload → limiter → admission → workers → clients, as events in order of time.

The limiter's ledger and admission's pool are the mesh's own, called as their services call them and told this clock's
time. What stands for services, networks and accelerators is in `Delays` and `worker.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from services.admission.policy.model import (
    Event,
    Granted,
    Interrupt,
    QueueClass,
    Queued,
    Refused,
    Request,
)
from services.admission.policy.pool import Pool
from simulation import worker as engine
from simulation.clock import Clock
from simulation.credits import Credits
from simulation.fairness import Fairness
from simulation.hosts import Host, Hosts
from simulation.limiter import Limiter
from simulation.live import CLASSES, Live, note_committed
from simulation.memory import PreemptiveWorker
from simulation.outcomes import OK, Observed, Outcome
from simulation.owners import Edge, Owners
from simulation.scenario import CANARY, MODEL, Scenario
from simulation.workload import PREFIX_BLOCK, Arrival, Client, Workload

_NAMES = {queue_class: name for name, queue_class in CLASSES.items()}
_LEVELS = 1.0  # seconds between two levels
_MAX_MOVES = 2  # as the gateway's max_migrations
# As the gateway tells the worker: smaller runs first.
_PRIORITIES = {QueueClass.PAID: 0, QueueClass.FREE: 1, QueueClass.OVER_QUOTA: 5, QueueClass.BATCH: 10}


class Simulator:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, *, arrivals: Sequence[Arrival] | None = None) -> None:
        """`arrivals` stand in place of the scenario's tenants: a recorded run.

        :raises ScenarioError: the scenario makes no sense.
        """
        self.scenario = scenario
        self._delays = scenario.delays
        self._settings = scenario.settings()
        self.clock = Clock()
        self.observed = Observed()
        jitter = random.Random(f"{scenario.seed}:jitter").random
        self._owners = Owners(lambda: Pool("simulated", self._settings.limits, now=self.clock.now, chance=jitter))
        self._edge = Edge() if scenario.edge_sheds else None
        self._rng = random.Random(f"{scenario.seed}:delays")
        self._workload = Workload(scenario.loads(), scenario.seconds, scenario.seed)
        self._arrivals = iter(self._workload.arrivals() if arrivals is None else arrivals)
        self._replayed = arrivals is not None
        self._clients: dict[str, Client] = {}
        specs = {spec.tenant: spec for spec in scenario.tenants}
        limited = {name: spec.limits for name, spec in specs.items() if spec.limits is not None}
        self._on_canary = {name for name, spec in specs.items() if spec.canary}
        self._kv_share = {name: spec.kv_share for name, spec in specs.items()}
        self._limiter = Limiter(
            {name: limits.spec() for name, limits in limited.items()},
            model=MODEL,
            over_quota=frozenset(name for name, limits in limited.items() if limits.over_quota == "serve_idle"),
        )
        self._targets = {name: objective.ttft for name, objective in scenario.objectives.items()}
        self._fairness = Fairness(frozenset(name for name, share in self._kv_share.items() if share))
        self._live: dict[str, Live] = {}
        self._credits = Credits(self.clock, told=self._delays.told, apply=self.apply, charged=self._charged)
        self._open = 0  # arrivals that have not ended, those to come in the stream not counted
        self._exhausted = False
        self._hosts = Hosts(
            scenario,
            settings=self._settings,
            clock=self.clock,
            owners=self._owners,
            observed=self.observed,
            listener=self,
        )

    def run(self) -> Observed:
        """Everything, from the first arrival until the last request has ended."""
        self._hosts.start()
        if self._edge is not None:
            self.clock.at(0.0, self._look_at_level, self._edge)
        if not self._replayed:
            for client in self._workload.clients():
                self._clients[client.name] = client
                self._ask(client, 0.0)
        self._next_arrival()
        self.clock.run(until=self._over)
        observed = self.observed
        observed.events = self.clock.ran
        observed.gaps = self._fairness.gaps()
        observed.on_credit = self._credits.used
        for host in self._hosts.by_name.values():
            observed.steps += host.engine.steps
            observed.prompt_tokens += host.engine.prefilled
            observed.output_tokens += host.engine.tokens
            observed.busy += host.engine.busy_seconds
            if isinstance(host.engine, PreemptiveWorker):
                observed.memory_preemptions += host.engine.preemptions
        observed.busy /= len(self._hosts.by_name) * max(self.clock.now, 1e-9)
        return observed

    def _over(self) -> bool:
        return self._exhausted and not self._open and self._hosts.idle

    # ---- requests ------------------------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._exhausted = True
        else:
            self.clock.at(arrival.at, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self._begin(arrival)
        self._next_arrival()

    def _ask(self, client: Client, answered: float) -> None:
        arrival = client.next(answered)
        if arrival is not None:
            self._open += 1  # it is on its way, so the run is not over
            self.clock.at(arrival.at, self._arrive_from_client, arrival)

    def _arrive_from_client(self, arrival: Arrival) -> None:
        self._open -= 1
        self._begin(arrival)

    def _look_at_level(self, edge: Edge) -> None:
        edge.look(self._owners.pools[-1], self.clock.now)
        self.clock.after(_LEVELS, self._look_at_level, edge)

    def _begin(self, arrival: Arrival) -> None:
        self._open += 1
        pool, twice = self._owners.next()
        live = Live(arrival, self._rng.lognormvariate(0.0, self._delays.spread), pool)
        self._live[arrival.request_id] = live
        if self._edge is not None and self._edge.sheds(arrival.tenant):
            self._end(live, "REJECTED_OVERLOAD")
            return
        self.clock.after((1 + twice) * self._delays.to_admission * live.factor, self._admit_first, live)
        self.clock.after(arrival.timeout, self._timed_out, live)

    def _admit_first(self, live: Live) -> None:
        over_quota, reason, retry_after = self._limiter.reserve(live.arrival, self.clock.now)
        if reason:
            self._end(live, reason, retry_after=retry_after)
            return
        live.reserved = True
        if over_quota:
            live.queue_class = QueueClass.OVER_QUOTA
        self._admit(live)

    def _admit(self, live: Live) -> None:
        if live.done:
            return
        arrival, now = live.arrival, self.clock.now
        target = self._targets.get(_NAMES[live.queue_class])
        request = Request(
            request_id=arrival.request_id,
            tenant=arrival.tenant,
            model_version=CANARY if arrival.tenant in self._on_canary else MODEL,
            prompt_tokens=arrival.prompt_tokens + live.emitted,
            max_output_tokens=max(1, arrival.max_tokens - live.emitted),
            choices=1,
            deadline=arrival.at + arrival.timeout,
            queue_class=live.queue_class,
            weight=arrival.weight,
            excluded=live.excluded,
            owner="gateway",
            ttft_by=math.inf if target is None or live.emitted else arrival.at + target,
            resumed_tokens=live.emitted,
            kv_share=self._kv_share.get(arrival.tenant, 0.0),
            prefix_hashes=arrival.prefix,
            prefix_block=PREFIX_BLOCK,
        )
        live.request = request
        remaining = arrival.output_tokens - live.emitted
        pool = live.pool
        live.expected = pool.estimates.expected_cost(request) / arrival.weight
        live.real = pool.limits.real_cost(request, remaining) / arrival.weight
        credit = self._credits.run(pool, request)
        if credit is not None:
            live.expected = 0.0  # until admission hears of it
            self._granted(live, credit)
            return
        answer, events = pool.admit(request, now)
        if isinstance(answer, Granted):
            self._granted(live, answer)
            self._credits.granted(pool, answer)
        elif isinstance(answer, Queued):
            live.waiting = True
            self._fairness.queued(live)
        else:
            self._refused(live, answer)
        self.apply(events)
        self._credits.heard(pool)

    def apply(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Interrupt):
                self._hosts.interrupt(event)
                continue
            live = self._live[event.request.request_id]
            if isinstance(event, Granted):
                self._granted(live, event)
            else:
                self._refused(live, event)
            if live.waiting:
                live.waiting = False
                self._fairness.left(live)

    def _granted(self, live: Live, granted: Granted) -> None:
        self._fairness.granted(live, granted)
        live.waited += granted.waited
        live.granted_at = self.clock.now
        host = self._hosts.by_name[granted.worker]
        live.worker = host
        if self.scenario.cluster.preemptive or len(self._owners.pools) > 1:
            note_committed(self.observed, self._owners.pools, host.spec, self._live)
        self.clock.after(self._delays.to_worker * live.factor, self._submit, live)

    def _charged(self, request_id: str, cost: float) -> None:
        """Admission has heard that the request runs on a credit."""
        live = self._live.get(request_id)
        if live is not None:
            self._fairness.charged(live, cost)

    def _refused(self, live: Live, refused: Refused) -> None:
        live.waited += refused.waited
        reason = refused.outcome.name
        if live.emitted:
            reason = "PREEMPTED" if live.interrupted and not live.moved else "WORKER_LOST"
        self._end(live, reason, retry_after=refused.retry_after)

    def _submit(self, live: Live) -> None:
        host = live.worker
        if live.done or host is None:
            return
        if not host.live:
            self._move((live, host.spec.worker, 0))
            return
        arrival, wake = live.arrival, host.engine.wake
        host.sequences[arrival.request_id] = live
        live.cached = host.cached(arrival.prefix) if not live.emitted else 0
        live.sequence = host.engine.submit(
            live,
            arrival.prompt_tokens + live.emitted,
            arrival.output_tokens - live.emitted,
            arrival.max_tokens - live.emitted,
            self.clock.now,
            priority=_PRIORITIES[live.queue_class],
            tenant=live.tenant,
            share=self._kv_share.get(live.tenant, 0.0),
            cached=live.cached,
        )
        if host.engine.wake != wake:
            self._hosts.wake(host)
        self._hosts.changed(host)

    def first_token(self, live: Live) -> None:
        if live.first_at is None:
            live.first_at = self.clock.now + self._delays.to_client * live.factor

    def finished(self, host: Host, live: Live) -> None:
        del host.sequences[live.arrival.request_id]
        live.sequence = None
        delivered = live.arrival.output_tokens - live.emitted
        live.emitted = live.arrival.output_tokens
        self._release(live, delivered)
        self._end(live, OK, after=self._delays.to_client * live.factor)

    def ended_early(self, host: Host, sequence: engine.Sequence) -> None:
        """It was interrupted, or cancelled by its caller."""
        live: Live = sequence.handle  # type: ignore[assignment]
        host.sequences.pop(live.arrival.request_id, None)
        live.sequence = None
        delivered = host.engine.produced(sequence)
        live.emitted += delivered
        self._release(live, delivered)
        if live.done:
            return
        live.interrupted += 1
        self.observed.preempted += 1
        self.clock.after((self._delays.to_client + self._delays.to_admission) * live.factor, self._admit, live)

    def lost(self, live: Live, worker: str, produced: int) -> None:
        """Its worker died; soon its gateway notices."""
        live.emitted += produced
        self.clock.after(self._delays.detection, self._move, (live, worker, produced))

    def _move(self, lost: tuple[Live, str, int]) -> None:
        """The worker was lost: the request goes on elsewhere, with what it has."""
        live, worker, produced = lost
        if live.done:
            return
        live.moved += 1
        live.excluded |= {worker}
        if live.emitted >= live.arrival.output_tokens:
            live.emitted = live.arrival.output_tokens - 1  # its last token was lost with the worker
        self._released((live.arrival.request_id, live, produced, True, None))
        if live.moved > _MAX_MOVES:
            self._end(live, "WORKER_LOST")
            return
        self._admit(live)

    def _release(self, live: Live, tokens: int) -> None:
        first = None if live.first_at is None or live.emitted > tokens else live.first_at - live.granted_at
        told = (live.arrival.request_id, live, tokens, False, first)
        self.clock.after(self._delays.release * live.factor, self._released, told)

    def _released(self, told: tuple[str, Live, int | None, bool, float | None]) -> None:
        request_id, live, tokens, failed, first = told
        self._credits.tell(request_id)
        known, events = live.pool.release(
            request_id,
            self.clock.now,
            output_tokens=tokens,
            failed=failed,
            first_token=first,
            cached_prompt_tokens=live.cached,
        )
        if known and live.request is not None:
            actual = 0.0
            if tokens is not None:
                actual = live.pool.limits.real_cost(live.request, tokens, live.cached) / live.arrival.weight
            self._fairness.ended(live, actual)
        self.apply(events)
        self._credits.heard(live.pool)

    def _timed_out(self, live: Live) -> None:
        """The caller's deadline: it leaves, wherever its request is."""
        if live.done:
            return
        if live.waiting:
            live.waiting = False
            self._fairness.left(live)
            _, events = live.pool.cancel(live.arrival.request_id, self.clock.now)
            self._end(live, "DEADLINE_EXCEEDED")
            self.apply(events)
            return
        sequence, host = live.sequence, live.worker
        if sequence is not None and host is not None and sequence.live:
            self._end(
                live, "DEADLINE_EXCEEDED", delivered=live.emitted + host.engine.produced(sequence, self.clock.now)
            )
            host.engine.end_early([sequence], self.clock.now)
            self._hosts.wake(host)
        else:
            self._end(live, "DEADLINE_EXCEEDED")
            self._released((live.arrival.request_id, live, None, False, None))

    def _end(
        self,
        live: Live,
        outcome: str,
        *,
        after: float = 0.0,
        delivered: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        """The one end of a request, `after` seconds from now at its caller."""
        if live.done:
            raise RuntimeError(f"{live.arrival.request_id} ended twice")
        live.done = True
        del self._live[live.arrival.request_id]
        self._open -= 1
        now = self.clock.now
        arrival = live.arrival
        tokens = live.emitted if delivered is None else delivered
        if live.reserved:
            self._limiter.settle(arrival, arrival.prompt_tokens + tokens if tokens else 0, now)
        self.observed.outcomes.append(
            Outcome(
                arrival=arrival,
                queue_class=_NAMES[live.queue_class],
                outcome=outcome,
                ttft=None if live.first_at is None else live.first_at - arrival.at,
                e2e=now + after - arrival.at,
                delivered=tokens,
                waited=live.waited,
                retry_after=retry_after,
                interrupted=live.interrupted,
                moved=live.moved,
            )
        )
        client = self._clients.get(arrival.client)
        if client is not None:
            # A refused client comes back when it was told to.
            self._ask(client, now + after + (retry_after or 0.0))
