"""A small discrete-event model of a pool: the real `Pool`, workers whose steps cost what their work costs."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Interrupt,
    QueueClass,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool

STEP, PER_SEQUENCE, PREFILL_RATE = 0.008, 0.0002, 5600.0  # seconds, seconds, tokens per second
RUNNING, STEP_TOKENS, BLOCKS = 8, 256, 1024
WAY = 0.004  # seconds from a decision to the worker, and from the last token to the release


@dataclass
class Sequence:
    """A request on a worker."""

    request: Request
    left: int  # prompt tokens not yet computed
    output: int  # tokens that it will generate
    granted_at: float
    first_at: float = 0.0
    last_at: float = 0.0
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)


class Engine:
    """Continuous batching with chunked prefill, linear in its work."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.busy = False
        self.decode_step = 0.0
        self.prefill_rate = 0.0

    def step(self) -> float:
        """Begins a step; returns its length."""
        while self.waiting and len(self.running) < RUNNING:
            self.running.append(self.waiting.pop(0))
        decoding = sum(1 for each in self.running if not each.left)
        budget, prefilled = STEP_TOKENS - decoding, 0
        for each in self.running:
            chunk = min(each.left, budget - prefilled)
            each.left -= chunk
            prefilled += chunk
        seconds = STEP + PER_SEQUENCE * decoding + prefilled / PREFILL_RATE
        if prefilled:
            self.prefill_rate += (prefilled / seconds - self.prefill_rate) * (0.1 if self.prefill_rate else 1.0)
        else:
            self.decode_step += (seconds - self.decode_step) * (0.1 if self.decode_step else 1.0)
        return seconds

    def report(self) -> Report:
        """What it tells admission."""
        queued = sum(each.left for each in (*self.waiting, *self.running))
        blocks = sum((each.request.prompt_tokens + each.tokens) // 16 + 1 for each in self.running)
        load = (BLOCKS - blocks, len(self.running), len(self.waiting), queued)
        return Report(*load, decode_step=self.decode_step, prefill_tokens_per_second=self.prefill_rate)


@dataclass
class Result:
    """What became of the requests that came after the warm-up."""

    seconds: float
    good: int = 0
    late: int = 0
    choppy: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    refused_of: dict[str, int] = field(default_factory=dict)
    """By tenant."""
    waits: dict[str, list[float]] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """Requests inside their objectives, per second."""
        return self.good / self.seconds


class Simulation:
    """Poisson arrivals of several tenants at one pool."""

    def __init__(
        self,
        *,
        rate: float,
        limits: Limits,
        seed: int = 1,
        workers: int = 4,
        ttft: float = 1.0,
        itl: float = 0.06,
        tenants: Callable[[random.Random], tuple[str, QueueClass]] | None = None,
        edge: bool = False,
        come_back: bool = False,
    ) -> None:
        """`rate` in requests per second; `ttft` and `itl` (95 of 100 gaps of an answer) in seconds. `edge`: what the
        pool's level says is shed before it comes here. `come_back`: refused clients ask once more, when they were told
        to."""
        self.rng = random.Random(seed)
        self.pool = Pool("p", limits, now=0.0, chance=self.rng.random)
        self.rate, self.ttft, self.itl = rate, ttft, itl
        self.tenants = tenants or (lambda rng: (f"t{rng.randrange(12)}", QueueClass.PAID))
        self.engines = {f"w{n}": Engine(f"w{n}") for n in range(workers)}
        self.edge, self.come_back = edge, come_back
        self.shed = 0
        self.shares: dict[str, float] = {}
        self.told_at = 0.0
        self.outputs: dict[str, int] = {}
        self.granted: dict[str, Granted] = {}
        self.arrived: dict[str, float] = {}
        self.again: set[str] = set()
        self.first: dict[str, float] = {}  # when the first token came
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.numbers = itertools.count()
        for name in self.engines:
            self.pool.worker_joined(WorkerSpec(name, name, "z", frozenset({"m@1"}), 16, BLOCKS, RUNNING, 8192), 0.0)
            self.pool.worker_reported(name, Report(BLOCKS), 0.0)

    def run(self, seconds: float, warm_up: float) -> Result:
        """Runs for `seconds`; only what arrives after `warm_up` counts."""
        self.result = Result(seconds - warm_up)
        self.warm_up = warm_up
        self.at(0.0, self.arrive)
        self.at(0.0, self.tick)
        while self.events and self.events[0][0] < seconds:
            now, _, act = heapq.heappop(self.events)
            act(now)
        return self.result

    def at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), act))

    def tick(self, now: float) -> None:
        for name, engine in self.engines.items():
            self.follow(self.pool.worker_reported(name, engine.report(), now), now)
        self.follow(self.pool.tick(now), now)
        if self.edge and now >= self.told_at + 1.0:
            self.told_at = now
            tenants = self.pool.edge_shedding.tenants(now)
            self.pool.edge_shedding.told(tenants)
            self.shares = {each.tenant: each.shed for each in tenants}
        self.at(now + 0.025, self.tick)

    def arrive(self, now: float) -> None:
        rng = self.rng
        self.at(now + rng.expovariate(self.rate), self.arrive)
        tenant, queue_class = self.tenants(rng)
        if rng.random() < self.shares.get(tenant, 0.0):
            self.shed += 1
            return
        self.ask(tenant, queue_class, now)

    def ask(self, tenant: str, queue_class: QueueClass, now: float) -> None:
        rng = self.rng
        prompt = min(2048, max(8, int(rng.lognormvariate(5.0, 0.9))))
        output = min(512, max(4, int(rng.lognormvariate(4.3, 0.8))))
        name = f"r{next(self.numbers)}"
        base = Request(name, tenant, "m@1", prompt, 512, 1, now + 60.0, queue_class, ttft_by=now + self.ttft)
        request = base if queue_class is not QueueClass.BATCH else replace(base, ttft_by=float("inf"))
        self.outputs[name], self.arrived[name] = output, now
        answer, events = self.pool.admit(request, now)
        if not isinstance(answer, Queued):
            self.follow([answer], now)
        self.follow(events, now)

    def follow(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, Granted):
                self.at(now + WAY, lambda then, event=event: self.submit(event, then))  # type: ignore[misc]
            elif isinstance(event, Refused):
                if self.counts(event.request):
                    key = f"{event.outcome.value}:{event.limit}"
                    self.result.refused[key] = self.result.refused.get(key, 0) + 1
                    tenant = event.request.tenant
                    self.result.refused_of[tenant] = self.result.refused_of.get(tenant, 0) + 1
                if self.come_back and event.retry_after is not None and event.request.request_id not in self.again:
                    self.return_later(event, now + event.retry_after)
            elif isinstance(event, Interrupt):
                self.at(now + WAY, lambda then, event=event: self.interrupt(event, then))  # type: ignore[misc]

    def return_later(self, event: Refused, when: float) -> None:
        request = event.request

        def ask_again(now: float) -> None:
            name = f"r{next(self.numbers)}"
            self.again.add(name)
            self.outputs[name], self.arrived[name] = self.outputs[request.request_id], now
            late = request.ttft_by - self.arrived[request.request_id]
            renewed = replace(request, request_id=name, deadline=now + 60.0, ttft_by=now + late)
            answer, events = self.pool.admit(renewed, now)
            self.follow(([] if isinstance(answer, Queued) else [answer]) + events, now)

        self.at(when, ask_again)

    def submit(self, event: Granted, now: float) -> None:
        request = event.request
        engine = self.engines[event.worker]
        output = self.outputs[request.request_id] - request.resumed_tokens
        engine.waiting.append(Sequence(request, request.prompt_tokens, output, now - WAY))
        if not engine.busy:
            self.begin(engine, now)

    def interrupt(self, event: Interrupt, now: float) -> None:
        engine = self.engines[event.worker]
        for each in [s for s in engine.running if s.request.request_id in event.request_ids]:
            engine.running.remove(each)
            request, name = each.request, each.request.request_id
            self.follow(self.pool.release(name, now, output_tokens=each.tokens)[1], now)
            again = replace(
                request,
                prompt_tokens=request.prompt_tokens + each.tokens,
                resumed_tokens=request.resumed_tokens + each.tokens,
            )
            answer, events = self.pool.admit(again, now)
            self.follow(([] if isinstance(answer, Queued) else [answer]) + events, now)

    def begin(self, engine: Engine, now: float) -> None:
        engine.busy = True
        self.at(now + engine.step(), lambda then: self.end(engine, then))

    def end(self, engine: Engine, now: float) -> None:
        for each in [sequence for sequence in engine.running if not sequence.left]:
            each.tokens += 1
            if each.tokens > 1:
                each.gaps.append(now - each.last_at)
            each.first_at = each.first_at or now
            self.first.setdefault(each.request.request_id, now)
            each.last_at = now
            if each.tokens >= each.output:
                engine.running.remove(each)
                self.at(now + WAY, lambda then, each=each: self.done(each, then))  # type: ignore[misc]
        if engine.running or engine.waiting:
            self.begin(engine, now)
        else:
            engine.busy = False

    def done(self, each: Sequence, now: float) -> None:
        request = each.request
        first = each.first_at - each.granted_at
        self.follow(self.pool.release(request.request_id, now, output_tokens=each.tokens, first_token=first)[1], now)
        if not self.counts(request):
            return
        gaps = sorted(each.gaps)
        first_at = self.first[request.request_id]
        if first_at > request.ttft_by:
            self.result.late += 1
        elif gaps and gaps[int(0.95 * (len(gaps) - 1))] > self.itl:
            self.result.choppy += 1
        else:
            self.result.good += 1
        waits = self.result.waits.setdefault(request.tenant, [])
        waits.append(first_at - self.arrived[request.request_id])

    def counts(self, request: Request) -> bool:
        return self.arrived[request.request_id] >= self.warm_up
