"""What a pool can do, and so how long a request would wait and when its first token would come.

    wait        = (learned factor × cost that fair order serves before it + one more request's)
                  / (rate − rate at which higher classes are let in)
    first token = wait + (prompt tokens queued at the worker + its own) / prefill rate + a step + what is learned

The rate is measured while requests wait (`ServiceRate`); until enough was seen it is derived from what workers report
of their steps. What the formulas leave out (the way through gateway and worker, steps that prefill and decode
together) is learned from their errors: a factor on what waits already, an addition to first tokens. The factor is
mostly what comes later and goes first. That happens to those who ask for more than their share, and must not lengthen
what is foretold to the others: so a tenant whose waits were seen of late has one of its own, the others share one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from libs.answer_lengths import Lengths
from services.admission.policy.backlog import Backlog
from services.admission.policy.fading import FadingMean, FadingRate
from services.admission.policy.fair_queue import FairQueue
from services.admission.policy.first_tokens import FirstTokens
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Limits
from services.admission.policy.model import QueueClass, Request
from services.admission.policy.worker import Worker

_MEMORY = 10.0  # seconds that rates remember
_TRUST = 1.0  # seconds of backlog that weigh as much as what workers report
_LOOK = 0.1  # seconds between two looks at the workers' reports
_CLASS_GAIN, _TENANT_GAIN = 0.05, 0.15  # a tenant's waits are fewer
_MAX_TENANTS = 4096
_FACTORS = (0.5, 4.0)
_NOTHING = 1e-6  # cost units: what hours without a grant leave of any number
_NOTABLE_WAIT = 0.05  # seconds; the error of shorter predictions says nothing


class ServiceRate:
    """Cost units granted per second while requests wait: an average with exponentially fading memory.

    Only backlogged time with workers counts: the throughput of an idle pool, or of one whose workers are all lost, says
    nothing about what it can do.
    """

    def __init__(self, *, memory: float = _MEMORY, min_observed: float = 0.5) -> None:
        """`memory` is the time constant, `min_observed` how much backlogged time a first estimate needs; seconds."""
        self._memory = memory
        self._min_observed = min_observed
        self._cost = 0.0
        self._time = 0.0
        self._since: float | None = None  # start of the backlogged time not yet counted

    def observe(self, now: float, *, backlogged: bool, granted: float = 0.0) -> None:
        """Counts the time since the last call, if it was backlogged, and `granted` cost units."""
        if self._since is not None:
            elapsed = max(0.0, now - self._since)
            fading = math.exp(-elapsed / self._memory)
            self._cost = self._cost * fading + granted
            self._time = self._time * fading + elapsed
        self._since = now if backlogged else None

    def per_second(self, supposed: float | None = None) -> float | None:
        """The estimate. What is `supposed` beforehand counts as much as a second of backlog; without it, None while
        too little was seen."""
        if supposed is not None:
            return (self._cost + supposed * _TRUST) / (self._time + _TRUST)
        if self._time < self._min_observed or self._cost < _NOTHING:
            return None
        return self._cost / self._time


def cost_ahead(queue: FairQueue, tenant: str, weight: float) -> float:
    """Cost units that fair order serves before a request that this tenant would add now.

    That is the tenant's own backlog, and of each other what brings its counter up to where this request begins: at most
    its backlog, and one request more than what fits exactly.
    """
    flow = queue.flow(tenant)
    own = flow.backlog if flow is not None else 0.0
    return own + queue.served_until(queue.level_of(tenant) + own / weight, besides=flow)


@dataclass(frozen=True, slots=True)
class _Speed:
    """What the workers report, all together or the mean of them."""

    supposed_rate: float | None  # cost units per second of the pool, full
    prefill_rate: float  # prompt tokens per second of a worker; infinite while unknown
    queued_prefill: float  # tokens
    step: float  # seconds


class _Factor:
    """What predicted waits must be multiplied by. It fades to 1 while nothing is seen: a class whose requests are all
    refused by a prediction would otherwise never have it put right."""

    __slots__ = ("_factor", "_gain", "at")

    def __init__(self, now: float, *, gain: float, factor: float = 1.0) -> None:
        self._factor = factor
        self._gain = gain
        self.at = now

    def now(self, now: float) -> float:
        """The present factor."""
        return 1.0 + (self._factor - 1.0) * math.exp((self.at - now) / _MEMORY)

    def learn(self, predicted: float, waited: float, now: float) -> None:
        """A wait that was predicted with the present factor, more or less, is over."""
        present = self.now(now)
        factor = present + self._gain * present * (waited / predicted - 1.0)
        self._factor = min(_FACTORS[1], max(_FACTORS[0], factor))
        self.at = now


class Estimates:
    """Estimates of one pool. Learns from what it is told; all answers are seconds or cost units."""

    def __init__(self, limits: Limits, *, now: float) -> None:
        self._limits = limits
        self.lengths = Lengths()
        self._rate = ServiceRate()
        self._let_in = {queue_class: FadingRate(_MEMORY, now) for queue_class in QueueClass}
        self._prompt = FadingMean(256.0)
        self._output = FadingMean(256.0)
        self._of_class = {queue_class: _Factor(now, gain=_CLASS_GAIN) for queue_class in QueueClass}
        self._of_tenant: OrderedDict[tuple[QueueClass, str], _Factor] = OrderedDict()  # the last seen last
        self.first_tokens = FirstTokens()
        self._speed = _Speed(None, math.inf, 0.0, 0.0)
        self._look_at = -math.inf

    # ---- what requests cost --------------------------------------------------------------------------------------

    def expected_output(self, request: Request) -> int:
        """Tokens per choice that are to be expected; the cap while nothing is known."""
        most = request.max_output_tokens
        mean = self.lengths.mean(request.tenant, request.model_version, after=request.resumed_tokens, most=most)
        return most if mean is None else _within(mean, most)

    def high_output(self, request: Request, produced: int = 0) -> int | None:
        """Tokens per choice that nine of ten requests which have `produced` stay below; None while nothing is known."""
        before = request.resumed_tokens
        high = self.lengths.high(request.tenant, request.model_version, after=before + produced)
        return None if high is None else _within(high - before, request.max_output_tokens)

    def expected_cost(self, request: Request) -> float:
        """What the request will probably cost."""
        return self._limits.real_cost(request, request.choices * self.expected_output(request))

    # ---- learning ------------------------------------------------------------------------------------------------

    def observe(self, now: float, *, backlogged: bool, granted: float = 0.0) -> None:
        """See `ServiceRate.observe`."""
        self._rate.observe(now, backlogged=backlogged, granted=granted)

    def let_in(self, request: Request, cost: float, now: float) -> None:
        """The request was granted directly or queued."""
        self._let_in[request.queue_class].add(now, cost)
        self._prompt.add(request.prompt_tokens)
        self._output.add(request.choices * self.expected_output(request))

    def waited(self, request: Request, predicted: float | None, waited: float, now: float) -> None:
        """A wait is over, with a grant or without; `predicted` when it began."""
        if predicted is None or max(predicted, waited) < _NOTABLE_WAIT:
            return
        predicted = max(predicted, _NOTABLE_WAIT)
        of_class, key = self._of_class[request.queue_class], (request.queue_class, request.tenant)
        of_tenant = self._of_tenant.pop(key, None)
        if of_tenant is None or now - of_tenant.at > _MEMORY:
            of_tenant = _Factor(now, gain=_TENANT_GAIN, factor=of_class.now(now))
        self._of_tenant[key] = of_tenant
        of_class.learn(predicted, waited, now)
        of_tenant.learn(predicted, waited, now)
        if len(self._of_tenant) > _MAX_TENANTS:
            self._of_tenant.popitem(last=False)

    # ---- predicting ----------------------------------------------------------------------------------------------

    def wait(self, request: Request, backlog: Backlog, fleet: Fleet, now: float) -> float | None:
        """Seconds that the request would wait in the queue; None when nothing is known yet."""
        self.observe(now, backlogged=len(backlog) > 0 and fleet.staffed)
        rate = self._rate.per_second(self._look(fleet, now).supposed_rate)
        if not rate:
            return None
        own = request.queue_class
        factor = self._of_tenant.get((own, request.tenant))
        if factor is None or now - factor.at > _MEMORY:
            factor = self._of_class[own]
        ahead = factor.now(now) * cost_ahead(backlog.queue_of(request), request.tenant, request.weight)
        ahead += self._limits.cost(math.ceil(self._prompt.mean), math.ceil(self._output.mean))  # until one has ended
        if self._limits.discipline != "fair" or own is QueueClass.PAID:
            return ahead / rate
        left = rate - sum(each.per_second(now) for other, each in self._let_in.items() if other < own)
        # Of the reserved share it has a part only, if others below the first class wait too.
        sharing = 1 + sum(1 for other, queue in backlog.queues.items() if 1 < other != own and len(queue))
        reserved = ahead * sharing / (rate * self._limits.reserved_share)
        if left <= 0.0:
            return reserved
        waiting = sum(queue.backlog for queue in backlog.higher(own))
        return min(reserved, (waiting + ahead) / left)

    def class_wait(self, queue_class: QueueClass, backlog: Backlog, fleet: Fleet, now: float) -> float:
        """Seconds until all that waits now in the class has been served; 0 while nothing is known."""
        rate = self._rate.per_second(self._look(fleet, now).supposed_rate)
        queue = backlog.queues.get(queue_class)
        if not rate or queue is None or not len(queue):
            return 0.0
        waiting = queue.backlog + sum(each.backlog for each in backlog.higher(queue_class))
        left = rate - sum(each.per_second(now) for other, each in self._let_in.items() if other < queue_class)
        return self._of_class[queue_class].now(now) * waiting / max(left, rate * self._limits.reserved_share)

    def computed_first_token(self, request: Request, worker: Worker | None, fleet: Fleet, now: float) -> float:
        """Seconds from a grant (to this worker, or one like all) to the first token, by the formula alone."""
        speed = self._look(fleet, now)
        if worker is None or worker.report is None:
            return speed.step + (speed.queued_prefill + request.prompt_tokens) / speed.prefill_rate
        rate = worker.report.prefill_tokens_per_second or speed.prefill_rate
        step = worker.report.decode_step or speed.step
        return step + (worker.queued_prefill() + request.prompt_tokens) / rate

    def first_token(self, computed: float, request: Request, worker: Worker | None, now: float) -> float:
        """The same, corrected by what is learned."""
        beyond = self.first_tokens.beyond(request, None if worker is None else worker.spec.worker, now)
        return max(0.0, computed + beyond.mean)

    def first_token_at_worst(self, computed: float, request: Request, now: float) -> float:
        """What nearly all first tokens of such requests stay below."""
        return max(0.0, computed + self.first_tokens.beyond(request, None, now).at_worst)

    def unloaded_first_token(self, request: Request, fleet: Fleet, now: float) -> float:
        """From a grant to the first token on the quickest worker that the request may use, if that had nothing else to
        do."""
        speed = self._look(fleet, now)
        quickest = math.inf
        for worker in fleet.eligible(request):
            report = worker.report
            if report is not None and worker.open() and not fleet.outliers.ejected(worker.spec.worker, now):
                rate = report.prefill_tokens_per_second or speed.prefill_rate
                quickest = min(quickest, (report.decode_step or speed.step) + request.prompt_tokens / rate)
        return quickest

    def _look(self, fleet: Fleet, now: float) -> _Speed:
        if now >= self._look_at:
            self._look_at = now + _LOOK
            self._speed = self._speed_of([w for w in fleet.workers.values() if w.live and w.report is not None])
        return self._speed

    def _speed_of(self, workers: Iterable[Worker]) -> _Speed:
        limits = self._limits
        prompt, output = self._prompt.mean, self._output.mean
        cost = limits.cost(math.ceil(prompt), math.ceil(output))
        rate, silent = 0.0, 0
        prefill: list[float] = []
        steps: list[float] = []
        queued: list[int] = []
        for worker in workers:
            report = worker.report
            if report is None:
                continue
            queued.append(worker.queued_prefill())
            if report.prefill_tokens_per_second > 0.0:
                prefill.append(report.prefill_tokens_per_second)
            if report.decode_step > 0.0:
                steps.append(report.decode_step)
            if report.prefill_tokens_per_second > 0.0 and report.decode_step > 0.0 and self._prompt.count:
                alone = (
                    prompt / report.prefill_tokens_per_second + output * report.decode_step / worker.spec.max_running
                )
                rate += cost / alone
            else:
                silent += 1
        told = len(queued) - silent
        return _Speed(
            rate * len(queued) / told if told else None,
            _mean(prefill) or math.inf,
            _mean(queued),
            _mean(steps),
        )


def _within(tokens: float, most: int) -> int:
    return most if tokens >= most else max(1, math.ceil(tokens - _NOTHING))


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
