"""What is simulated: the settings, read from TOML (see README.md for an example) and checked.

Durations in seconds, lengths in tokens. `admission` are admission's own settings by their own names.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from libs.quota import LimitSpec
from libs.shipped import find
from services.admission.config import Settings
from services.admission.policy.limits import Limits
from services.worker.engines.step_costs import StepCosts, StepWork
from simulation.lengths import Lengths, load
from simulation.worker import Sizes
from simulation.workload import CLASSES, Bursts, Step, TenantLoad

MODEL = "simulated@1"
CANARY = "simulated@2"
"""The model versions: all workers serve the first, or with `Cluster.canaries` some the second instead."""


class ScenarioError(ValueError):
    """The scenario makes no sense; the message says what."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a scenario file: unknown names are errors."""


class Cluster(Struct, frozen=True):
    """The workers."""

    workers: int = 8
    zones: tuple[str, ...] = ("zone-a",)
    """Workers are spread over them in turn."""
    canaries: int = 0
    """So many of the workers, the last ones, serve a second version, for tenants with `canary`."""
    calibration: str = ""
    """A file of `weir calibrate`, from here or from the project's folder. Empty takes `costs`, or without those a
    mid-range accelerator with a small model: 20,000 prompt tokens per second, 8 ms a step and 0.1 ms more for each
    sequence."""
    costs: dict[str, float] = {}
    """Over the file's, by the names of `StepCosts`."""
    sizes: dict[str, int] = {}
    """Over the file's, by the names of `simulation.worker.Sizes`."""
    slowdown: float = 1.0
    """Steps take so many times as long."""
    report_interval: float = 0.01
    """Workers report on change, at most this often."""
    preemptive: bool = False
    """Sequences hold the blocks of the tokens that they have, and are preempted when those run out."""
    holds_shares: bool = False
    """Workers that preempt keep tenants within their `kv_share`, as the torch engine does."""
    prefix_blocks: int = 0
    """Blocks of prompts that a worker keeps for those that begin alike, beside its memory."""

    def model(self) -> tuple[StepCosts, Sizes]:
        """What steps cost and what a worker holds.

        :raises ScenarioError: the calibration cannot be read or a name is unknown.
        """
        told: dict[str, Any] = {"costs": {}, "sizes": {}}
        if self.calibration:
            try:
                told = tomllib.loads(find(self.calibration).read_text())
            except (OSError, tomllib.TOMLDecodeError) as error:
                raise ScenarioError(f"calibration {self.calibration}: {error}") from error
        elif not self.costs:
            told["costs"] = {"prefill_tokens_per_second": 20_000.0, "step_base": 0.008, "step_per_sequence": 0.0001}
            told["sizes"] = {"total_blocks": 8192, "max_running": 64, "max_step_tokens": 2048, "max_context": 8192}
        try:
            costs = StepCosts(**{**told["costs"], **self.costs})
            sizes = Sizes(**{**told["sizes"], **self.sizes})
        except (KeyError, TypeError) as error:
            raise ScenarioError(f"costs or sizes of the cluster: {error}") from error
        return slower(costs, self.slowdown), sizes


class Delays(Struct, frozen=True):
    """The way through the mesh, as it was measured: `make bench-mesh` on two cores gave 11.1 ms of added time to first
    token at the median and 27.6 ms at the 99th percentile. A request's delays are all multiplied by one lognormal
    factor of median 1."""

    to_admission: float = 0.006
    """From the client to admission: edge, gateway, limiter, router, safety."""
    to_worker: float = 0.0025
    """From the grant to the worker."""
    to_client: float = 0.0025
    """From the end of a step to the client."""
    release: float = 0.002
    """From the end of a step to admission's knowing that the request has ended."""
    report: float = 0.001
    """From a worker's report to admission."""
    told: float = 0.05
    """From the use of a credit to admission's knowing: gateways tell it lazily."""
    spread: float = 0.39
    """Standard deviation of the factor's logarithm: 0.39 makes the 99th percentile 2.5 times the median."""
    detection: float = 0.05
    """From a worker's end to the gateways' asking for another one."""


class Objective(Struct, frozen=True):
    """What a request must meet to count as served within its objectives; None asks nothing."""

    ttft: float | None = None
    """Also told to admission, as the registry's Slo would be."""
    itl: float | None = None
    """Of the mean gap between the request's tokens, as the gateway judges it."""
    e2e: float | None = None


class TenantLimits(Struct, frozen=True):
    """As in the registry; 0 is unlimited."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    over_quota: Literal["refuse", "serve_idle"] = "refuse"
    """What happens beyond the limits per minute."""

    def spec(self) -> LimitSpec:
        """The limiter's part."""
        return LimitSpec(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrency=self.concurrency,
        )


class StepSpec(Struct, frozen=True):
    """See `simulation.workload.Step`."""

    at: float
    factor: float


class BurstSpec(Struct, frozen=True):
    """See `simulation.workload.Bursts`."""

    every: float
    length: float
    factor: float
    start: float = 0.0


class TenantSpec(Struct, frozen=True):
    """One tenant's requests of one class; see `simulation.workload.TenantLoad`."""

    tenant: str
    queue_class: str = "paid"
    weight: float = 1.0
    rate: float = 0.0
    """Requests per second …"""
    load: float = 0.0
    """… or this share of what the cluster can carry (`capacity`)."""
    clients: int = 0
    think: float = 0.0
    lengths: str = "azure-conversation"
    """A distribution of lengths.toml, or "PROMPT+OUTPUT" for fixed lengths."""
    max_context: int = 0
    """Lengths are scaled down to this; 0 takes the workers' context."""
    max_tokens: int = 0
    timeout: float = 60.0
    variation: float = 1.0
    steps: tuple[StepSpec, ...] = ()
    bursts: BurstSpec | None = None
    start: float = 0.0
    end: float = float("inf")
    name: str = ""
    limits: TenantLimits | None = None
    canary: bool = False
    """Its requests are for the second version."""
    kv_share: float = 0.0
    """Most of the pool's KV blocks that the tenant may hold, 0 to 1; 0 is all."""
    prefixes: int = 0
    """Its prompts begin in so many ways, each as often …"""
    prefix_share: float = 0.8
    """… for this share of their length."""


class Fault(Struct, frozen=True):
    """Something that goes wrong from `at` until `until`."""

    kind: Literal["kill_worker", "lose_zone", "silence", "flood", "split_owners"]
    """kill_worker: `count` workers die, and come back at `until`. lose_zone: all of `zone` do. silence: reports of
    `count` workers stop, which work on. flood: the rates of `tenant` are multiplied by `factor`. split_owners: a second
    admission process takes itself for the pool's owner, and half of the gateways ask the older one; `fenced`: whose
    grants nobody takes any more."""
    at: float
    until: float = float("inf")
    count: int = 1
    zone: str = ""
    tenant: str = ""
    factor: float = 20.0
    fenced: bool = True


class Scenario(Struct, frozen=True):
    """A whole run."""

    name: str = "scenario"
    about: str = ""
    """What there is to see in it."""
    seconds: float = 60.0
    """How long requests come; what is under way then is run to its end."""
    warmup: float = 5.0
    """Seconds whose requests are in no figure."""
    seed: int = 1
    cluster: Cluster = Cluster()
    delays: Delays = Delays()
    admission: dict[str, Any] = {}
    """Admission's settings and limits (services/admission), by their names."""
    objectives: dict[str, Objective] = {}
    """By class; those that are not named have none."""
    tenants: tuple[TenantSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    scale: float = 1.0
    """All rates are multiplied by this."""
    edge_sheds: bool = False
    """The limiters refuse what the pool's level names, before it comes to admission: REJECTED_OVERLOAD."""

    def settings(self) -> Settings:
        """Admission's settings.

        :raises ScenarioError: one is unknown or out of range.
        """
        try:
            limits = {name: value for name, value in self.admission.items() if name in Limits.__struct_fields__}
            others = {name: value for name, value in self.admission.items() if name not in limits}
            return msgspec.convert({**others, "limits": limits}, Settings, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            raise ScenarioError(f"admission: {error}") from error

    def limits(self) -> Limits:
        """What admission's policy is told."""
        return self.settings().limits

    def loads(self) -> list[TenantLoad]:
        """The workload's part, with floods in it.

        :raises ScenarioError: it makes no sense.
        """
        costs, sizes = self.cluster.model()
        try:
            return [self._load(spec, costs, sizes) for spec in self.tenants]
        except (ValueError, KeyError) as error:
            raise ScenarioError(f"tenants: {error}") from error

    def _load(self, spec: TenantSpec, costs: StepCosts, sizes: Sizes) -> TenantLoad:
        lengths = lengths_of(spec.lengths).for_context(spec.max_context or sizes.max_context)
        rate = spec.rate
        if spec.load:
            rate = spec.load * self.cluster.workers * capacity(costs, sizes, lengths)
        steps = tuple(Step(each.at, each.factor) for each in spec.steps)
        for fault in self.faults:
            if fault.kind == "flood" and fault.tenant == spec.tenant:
                steps = _flooded(steps, fault)
        bursts = spec.bursts
        return TenantLoad(
            spec.tenant,
            queue_class=spec.queue_class,
            weight=spec.weight,
            rate=rate * self.scale,
            lengths=lengths,
            max_tokens=spec.max_tokens,
            timeout=spec.timeout,
            variation=spec.variation,
            steps=steps,
            bursts=None if bursts is None else Bursts(bursts.every, bursts.length, bursts.factor, bursts.start),
            start=spec.start,
            end=spec.end,
            clients=spec.clients,
            think=spec.think,
            prefixes=spec.prefixes,
            prefix_share=spec.prefix_share,
            name=spec.name,
        )

    def check(self) -> None:
        """:raises ScenarioError: something names what is not there."""
        if not self.tenants:
            raise ScenarioError("a scenario needs tenants")
        if self.cluster.workers < 1 or not self.cluster.zones or not 0 <= self.warmup < self.seconds:
            raise ScenarioError("workers and zones are needed, and 0 <= warmup < seconds")
        if self.cluster.holds_shares and not self.cluster.preemptive:
            raise ScenarioError("shares are held by workers that preempt: holds_shares needs preemptive")
        if not 0 <= self.cluster.canaries < self.cluster.workers:
            raise ScenarioError("some workers, and not all, may be canaries")
        if not self.cluster.canaries and any(spec.canary for spec in self.tenants):
            raise ScenarioError("a tenant is on the canary, and no worker is")
        if self.cluster.model()[0].free:
            raise ScenarioError("steps that cost nothing carry any load: give the cluster costs")
        for name in self.objectives:
            if name not in CLASSES:
                raise ScenarioError(f"objectives are by class ({', '.join(CLASSES)}), not for {name!r}")
        tenants = {spec.tenant for spec in self.tenants}
        for fault in self.faults:
            if fault.kind == "flood" and fault.tenant not in tenants:
                raise ScenarioError(f"a flood by {fault.tenant!r}, who is no tenant")
            if fault.kind == "lose_zone" and fault.zone not in self.cluster.zones:
                raise ScenarioError(f"zone {fault.zone!r} is not one of {', '.join(self.cluster.zones)}")
        self.limits()
        self.loads()


def lengths_of(name: str) -> Lengths:
    """A distribution by its name.

    :raises ValueError: there is none.
    """
    prompt, plus, output = name.partition("+")
    if plus and prompt.isdecimal() and output.isdecimal():
        return Lengths.fixed(int(prompt), int(output))
    known = load()
    if name not in known:
        raise ValueError(f"lengths {name!r}: know {', '.join(sorted(known))} and PROMPT+OUTPUT")
    return known[name]


def slower(costs: StepCosts, factor: float) -> StepCosts:
    """The same steps on a machine `factor` times as slow."""
    if factor == 1.0:
        return costs
    return replace(
        costs,
        step_base=costs.step_base * factor,
        step_per_sequence=costs.step_per_sequence * factor,
        step_per_context_token=costs.step_per_context_token * factor,
        step_per_padded_token=costs.step_per_padded_token * factor,
        step_per_prompt=costs.step_per_prompt * factor,
        prefill_tokens_per_second=costs.prefill_tokens_per_second / factor,
        prefill_per_attended_token=costs.prefill_per_attended_token * factor,
    )


def capacity(costs: StepCosts, sizes: Sizes, lengths: Lengths) -> float:
    """Requests per second that one worker completes when it is always full, by the means of the lengths: an estimate,
    since it knows nothing of how lengths mix."""
    prompt, output = lengths.mean()
    held = -(-int(prompt + output) // sizes.block_size)
    running = max(1, min(sizes.max_running, sizes.total_blocks // held))
    context = prompt + output / 2
    decode = costs.seconds(StepWork(running, int(running * context), int(running * context)))
    # Steps are shared with prompts, whose work comes on top; their base is in `decode` already.
    prefill = costs.step_per_prompt + prompt / costs.prefill_tokens_per_second
    prefill += costs.prefill_per_attended_token * prompt * prompt / 2
    return 1.0 / (prefill + output * decode / running)


def read(path: Path) -> Scenario:
    """The scenario in a file.

    :raises ScenarioError: it cannot be read or makes no sense.
    """
    try:
        scenario = msgspec.convert(tomllib.loads(path.read_text()), Scenario)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    scenario.check()
    return scenario


def _flooded(steps: tuple[Step, ...], fault: Fault) -> tuple[Step, ...]:
    """The steps with the flood's factor on top of theirs while it lasts."""

    def factor_at(at: float) -> float:
        return next((step.factor for step in reversed(steps) if step.at <= at), 1.0)

    made = [step for step in steps if step.at < fault.at]
    made.append(Step(fault.at, factor_at(fault.at) * fault.factor))
    made += [Step(s.at, s.factor * fault.factor) for s in steps if fault.at < s.at < fault.until]
    if fault.until < float("inf"):
        made.append(Step(fault.until, factor_at(fault.until)))
        made += [step for step in steps if step.at > fault.until]
    return tuple(made)
