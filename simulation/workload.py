"""Who asks for what, and when: the same for the simulator and for load tests of the real mesh.

    lengths = load()["azure-conversation"].for_context(512)
    workload = Workload([TenantLoad("acme", rate=20.0, lengths=lengths)], seconds=60.0, seed=1)
    for arrival in workload.arrivals(): ...

Every stream of chance has its own seed, made of the workload's and its name, so that another tenant, or another rate
for one, leaves the requests of the others as they were.

Open loops (`rate`) send whatever happens; closed loops (`clients`) send the next request when they have the last
answer, so whoever drives them asks each `Client` for its `next`.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simulation.lengths import Lengths, load

CLASSES = ("paid", "free", "over_quota", "batch")
"""Classes of admission, by the names that `weir.registry.v1.ClassLevel` uses."""
PREFIX_BLOCK = 16  # tokens
_MOST_HASHES = 64  # as weir.admission.v1.Admit says
_DEFAULT_LENGTHS = "azure-conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request as its caller makes it. Times in seconds since the start of the workload."""

    at: float
    request_id: str
    """Unique in the workload."""
    tenant: str
    queue_class: str
    """One of `CLASSES`."""
    weight: float
    """Of the tenant in its class."""
    prompt_tokens: int
    output_tokens: int
    """How many the model will come to; at most `max_tokens`."""
    max_tokens: int
    """What the caller asks for: all that the mesh knows beforehand."""
    timeout: float
    """The caller's deadline, in seconds after `at`."""
    client: str = ""
    """Of a closed loop."""
    prefix: tuple[int, ...] = ()
    """Chained hashes of the leading whole blocks of `PREFIX_BLOCK` tokens that its prompt may share with others."""


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` seconds on the rate is `factor` times the tenant's."""

    at: float
    factor: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `every` seconds, for `length` seconds, the rate is multiplied by `factor`. The first one starts at
    `start`."""

    every: float
    length: float
    factor: float
    start: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.length <= self.every or self.factor < 0.0:
            raise ValueError("bursts: 0 < length <= every and factor >= 0 are needed")


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One tenant's requests of one class. Several of one tenant need different `name`s."""

    tenant: str
    queue_class: str = "paid"
    weight: float = 1.0
    rate: float = 0.0
    """Requests per second of an open loop; 0 for none."""
    lengths: Lengths = field(default_factory=lambda: load()[_DEFAULT_LENGTHS])
    max_tokens: int = 0
    """What each request asks for, and outputs are cut to; 0 asks for exactly what will come out."""
    timeout: float = 60.0
    """Seconds."""
    variation: float = 1.0
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson, 0 is a metronome, above 1 comes in
    clusters (gamma-distributed gaps). The Azure trace has 1.09."""
    steps: Sequence[Step] = ()
    """Changes of the rate, in order of time."""
    bursts: Bursts | None = None
    """Besides, in multiples of what the steps give."""
    start: float = 0.0
    """Seconds; nothing comes before."""
    end: float = float("inf")
    """Seconds; nothing comes from then on."""
    clients: int = 0
    """Clients of a closed loop beside the open one."""
    think: float = 0.0
    """Mean seconds (exponentially distributed) between an answer and a client's next request."""
    prefixes: int = 0
    """Its prompts begin in so many ways, each as often, …"""
    prefix_share: float = 0.8
    """… for this share of their length."""
    name: str = ""
    """Tells loads apart in request ids and seeds; empty is tenant and class."""

    def __post_init__(self) -> None:
        if self.queue_class not in CLASSES:
            raise ValueError(f"queue_class must be one of {', '.join(CLASSES)}, not {self.queue_class!r}")
        if min(self.rate, self.variation, self.clients, self.think, self.max_tokens) < 0 or self.weight <= 0:
            raise ValueError(f"{self.tenant}: rates, counts and times must not be negative, a weight must be positive")
        if self.prefixes < 0 or not 0.0 <= self.prefix_share <= 1.0:
            raise ValueError(f"{self.tenant}: prefixes must not be negative, prefix_share 0 to 1")
        if any(one.at >= other.at for one, other in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError(f"{self.tenant}: steps must be in order of time")

    @property
    def label(self) -> str:
        """`name`, or tenant and class."""
        return self.name or f"{self.tenant}.{self.queue_class}"


class Workload:
    """All requests of a run: equal arguments, equal requests."""

    def __init__(self, tenants: Sequence[TenantLoad], seconds: float, seed: int = 0) -> None:
        """:raises ValueError: two loads have the same label, or the time is not positive."""
        labels = [load.label for load in tenants]
        if len(set(labels)) < len(labels):
            raise ValueError(f"two loads have the same name: {labels}; set TenantLoad.name")
        if not seconds > 0:
            raise ValueError("seconds must be positive")
        self.tenants = tuple(tenants)
        self.seconds = seconds
        self.seed = seed

    def arrivals(self) -> Iterator[Arrival]:
        """Requests of the open loops, in order of time; made as they are asked for."""
        return heapq.merge(*(self._open(load) for load in self.tenants), key=lambda arrival: arrival.at)

    def clients(self) -> list[Client]:
        """The clients of the closed loops."""
        return [
            Client(load, f"{load.label}-c{number}", self.seconds, random.Random(f"{self.seed}:{load.label}:c{number}"))
            for load in self.tenants
            for number in range(load.clients)
        ]

    def _open(self, load: TenantLoad) -> Iterator[Arrival]:
        if load.rate <= 0.0:
            return
        gaps = random.Random(f"{self.seed}:{load.label}:arrivals")
        lengths = random.Random(f"{self.seed}:{load.label}:lengths")
        begins = random.Random(f"{self.seed}:{load.label}:prefixes")
        for number, at in enumerate(_times(load, min(self.seconds, load.end), gaps)):
            yield _arrival(load, at, f"{load.label}-{number}", lengths, begins)


class Client:
    """One client of a closed loop."""

    def __init__(self, load: TenantLoad, name: str, seconds: float, rng: random.Random) -> None:
        self.name = name
        self._load = load
        self._end = min(seconds, load.end)
        self._rng = rng
        self._sent = 0

    def next(self, answered: float) -> Arrival | None:
        """The request after the answer (or refusal) at `answered` seconds; first call it with 0. None at the end."""
        at = max(answered, self._load.start)
        if self._load.think:
            at += self._rng.expovariate(1.0 / self._load.think)
        if at >= self._end:
            return None
        self._sent += 1
        return _arrival(self._load, at, f"{self.name}-{self._sent - 1}", self._rng, self._rng, client=self.name)


def _arrival(
    load: TenantLoad, at: float, request_id: str, rng: random.Random, begins: random.Random, *, client: str = ""
) -> Arrival:
    prompt, output = load.lengths.draw(rng)
    if load.max_tokens:
        output = min(output, load.max_tokens)
    prefix: tuple[int, ...] = ()
    if load.prefixes:
        which = begins.randrange(load.prefixes)
        blocks = min(_MOST_HASHES, int(prompt * load.prefix_share) // PREFIX_BLOCK)
        prefix = tuple(zlib.crc32(f"{load.tenant}:{which}:{block}".encode()) for block in range(blocks))
    return Arrival(
        at=at,
        request_id=request_id,
        tenant=load.tenant,
        queue_class=load.queue_class,
        weight=load.weight,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=load.max_tokens or output,
        timeout=load.timeout,
        client=client,
        prefix=prefix,
    )


def _times(load: TenantLoad, end: float, rng: random.Random) -> Iterator[float]:
    """Arrival times: gaps of mean 1 are laid along the integral of the rate, which is exact for rates that change in
    steps (time rescaling of a renewal process)."""
    due = _gap(load.variation, rng)
    for begin, until, rate in _rates(load, end):
        mass = (until - begin) * rate
        while due < mass:
            yield begin + due / rate
            due += _gap(load.variation, rng)
        due -= mass


def _gap(variation: float, rng: random.Random) -> float:
    if variation == 0.0:
        return 1.0
    if variation == 1.0:
        return rng.expovariate(1.0)
    shape = 1.0 / variation**2
    return rng.gammavariate(shape, 1.0 / shape)


def _rates(load: TenantLoad, end: float) -> Iterator[tuple[float, float, float]]:
    """(from, to, requests per second), in order, without gaps, from the load's start to `end`."""
    at = load.start
    while at < end:
        factor, until = 1.0, end
        for step in load.steps:
            if step.at <= at:
                factor = step.factor
            else:
                until = min(until, step.at)
                break
        bursts = load.bursts
        if bursts is not None:
            since = at - bursts.start
            if since < 0.0:
                until = min(until, bursts.start)
            else:
                begun = bursts.start + since // bursts.every * bursts.every
                burst_end = begun + bursts.length
                if at < burst_end:
                    factor *= bursts.factor
                    until = min(until, burst_end)
                else:
                    until = min(until, begun + bursts.every)
        if until <= at:  # rounding: the burst's end and its beginning fell on one float
            until = min(end, at + 1e-6)
        yield at, until, load.rate * factor
        at = until
