"""What a mesh does at the moment, out of two scrapes of its metrics: `weir top`. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from libs.diagnosis.diagnosis import diagnose
from libs.diagnosis.events import events
from libs.diagnosis.pools import pools
from libs.diagnosis.window import Process, Window

_FINE = ("stop", "length", "ok")
_TTFT = "gen_ai_server_time_to_first_token"
_PREDICTED = "weir_predictor_inference_request_duration_seconds"
_OUTPUT = {"gen_ai_token_type": "output"}
_MOST = 8
"""Tenants that are told of."""


class Plane(NamedTuple):
    """Chats and completions, or predictions."""

    name: str
    requests: float
    """Per second, those that were refused too."""
    refused: float
    """Per second, with what failed."""
    used: float
    """Tokens made, or rows, per second."""
    p50: float
    """Seconds to the first token, or to a prediction's answer; nan: there was none."""
    p95: float


class Queue(NamedTuple):
    """A pool's requests."""

    pool: str
    waiting: float
    wait: float
    """Seconds, mean of those that were granted."""
    refused: float
    """Share of what left admission that found no room."""


class Serving(NamedTuple):
    """A worker or a predictor."""

    process: Process
    busy: float
    """Share of the time that it ran a model."""
    running: float
    waiting: float
    memory: float
    """Share of its KV blocks in use; nan of a predictor."""
    versions: tuple[str, ...]


class Tenant(NamedTuple):
    """One of those with most requests."""

    name: str
    requests: float
    refused: float
    used: float
    """Tokens and rows per second."""
    dollars: float
    """An hour."""
    accelerators: float
    """So many are busy with it all the time."""


class Rollout(NamedTuple):
    """Of an alias."""

    alias: str
    phase: str
    arms: tuple[tuple[str, str, float], ...]
    """Name, version and share of the requests."""


class Spent(NamedTuple):
    """A budget: of errors that an objective allows, or of money."""

    name: str
    share: float
    """Of it, what is used up."""


class Overview(NamedTuple):
    """The whole."""

    planes: tuple[Plane, ...]
    reasons: tuple[tuple[str, float], ...]
    """Why requests were refused or failed, per second, the most frequent first."""
    queues: tuple[Queue, ...]
    serving: tuple[Serving, ...]
    tenants: tuple[Tenant, ...]
    silent: tuple[str, ...]
    """Processes that do not answer."""
    binds: tuple[str, ...]
    """The stages that bind, as `diagnose` names them."""
    rollouts: tuple[Rollout, ...] = ()
    budgets: tuple[Spent, ...] = ()
    """The nearest to their end first."""
    events: tuple[str, ...] = ()
    """What happened in between."""


def overview(window: Window) -> Overview:
    """Of what two scrapes have in common."""
    gateways, predictors = window.of("gateway"), window.of("predictor")
    return Overview(
        planes=(_generation(window, gateways), *([_prediction(window, predictors)] if predictors else [])),
        reasons=_reasons(window, gateways, predictors),
        queues=tuple(Queue(each.name, each.depth.after, each.wait, each.refused) for each in pools(window)),
        serving=(*_workers(window), *(_predictor(window, each) for each in predictors)),
        tenants=_tenants(window, [*gateways, *predictors]),
        silent=tuple(sorted(each.name for each in window.after.silent)),
        binds=tuple(each.stage.value for each in diagnose(window.before, window.after).findings),
        rollouts=_rollouts(window),
        budgets=_budgets(window),
        events=events(window),
    )


def quantile(window: Window, processes: Iterable[Process], name: str, q: float) -> float:
    """Of a histogram, over these processes, of what was observed in between: the upper bound of the bucket that holds
    it; nan where nothing was."""
    counts = defaultdict[float, float](float)
    for process in processes:
        for bound in window.values(process, f"{name}_bucket", "le"):
            counts[float(bound)] += window.gained(process, f"{name}_bucket", le=bound)
    ordered = sorted(counts.items())
    if not ordered or ordered[-1][1] <= 0:
        return math.nan
    return next(bound for bound, count in ordered if count >= q * ordered[-1][1] - 1e-9)


def _generation(window: Window, gateways: list[Process]) -> Plane:
    outcomes = _outcomes(window, gateways)
    made = sum(window.rate(each, "gen_ai_client_token_usage_total", **_OUTPUT) for each in gateways)
    fine = sum(outcomes[each] for each in _FINE)
    p50, p95 = (quantile(window, gateways, _TTFT, q) for q in (0.5, 0.95))
    return Plane("generate", outcomes.total(), outcomes.total() - fine, made, p50, p95)


def _outcomes(window: Window, gateways: list[Process]) -> Counter[str]:
    name = "weir_gateway_outcomes_total"
    found = Counter[str]()
    for each in gateways:
        for outcome in window.values(each, name, "outcome"):
            found[outcome] += window.rate(each, name, outcome=outcome)  # type: ignore[assignment]
    return found


def _prediction(window: Window, predictors: list[Process]) -> Plane:
    answered = sum(window.rate(each, "weir_predictor_inference_request_success_total") for each in predictors)
    refused = sum(window.rate(each, "weir_predictor_refused_total") for each in predictors)
    rows = sum(window.rate(each, "weir_predictor_inference_count_total") for each in predictors)
    p50, p95 = (quantile(window, predictors, _PREDICTED, q) for q in (0.5, 0.95))
    return Plane("predict", answered + refused, refused, rows, p50, p95)


def _reasons(window: Window, gateways: list[Process], predictors: list[Process]) -> tuple[tuple[str, float], ...]:
    found = Counter[str]()
    for name, processes in (("weir_gateway_outcomes_total", gateways), ("weir_predictor_refused_total", predictors)):
        for each in processes:
            for reason in window.values(each, name, "reason"):
                if reason and (rate := window.rate(each, name, reason=reason)):
                    found[reason] += rate  # type: ignore[assignment]
    return tuple(found.most_common())


def _workers(window: Window) -> tuple[Serving, ...]:
    return tuple(
        Serving(each.process, each.busy, each.running.after, each.inside.after, each.used.after, each.versions)
        for pool in pools(window)
        for each in pool.workers
    )


def _predictor(window: Window, process: Process) -> Serving:
    busy = window.rate(process, "weir_predictor_inference_compute_infer_duration_seconds_total")
    active = window.span(process, "weir_predictor_active_requests").after
    return Serving(process, busy, active, 0.0, math.nan, ())


def _tenants(window: Window, processes: list[Process]) -> tuple[Tenant, ...]:
    requests = "weir_tenant_requests_total"
    names = {name for each in processes for name in window.values(each, requests, "tenant")}
    ran = [*processes, *window.of("worker")]

    def rate(metric: str, **labels: str) -> float:
        return sum(window.rate(each, metric, **labels) for each in ran)

    found = [
        Tenant(
            name,
            asked := rate(requests, tenant=name),
            max(0.0, asked - sum(rate(requests, tenant=name, outcome=outcome) for outcome in _FINE)),
            sum(rate("weir_tenant_used_total", tenant=name, unit=unit) for unit in ("completion_tokens", "rows")),
            rate("weir_tenant_spend_microusd_total", tenant=name) * 3600 / 1e6,
            rate("weir_tenant_accelerator_seconds_total", tenant=name),
        )
        for name in names
    ]
    busy = [each for each in found if each.requests]
    return tuple(sorted(busy, key=lambda each: (-each.requests, each.name))[:_MOST])


def _rollouts(window: Window) -> tuple[Rollout, ...]:
    """As the leader shows them; another that led before may show older ones."""
    leaders = [each for each in window.of("rollout") if window.span(each, "weir_rollout_leader").after]
    found = []
    for process in leaders[:1]:
        page = window.after.pages[process]
        for phase in page.get("weir_rollout_phase", ()):
            alias = phase.labels["alias"]
            arms = tuple(
                (each.labels["arm"], each.labels["model_version"], each.value / 10_000)
                for each in page.get("weir_rollout_weight", ())
                if each.labels["alias"] == alias
            )
            found.append(Rollout(alias, phase.labels["phase"], arms))
    return tuple(sorted(found))


def _budgets(window: Window) -> tuple[Spent, ...]:
    """Several replicas may know one of them: the most counts."""
    found = dict[str, float]()
    for metric, services in (("weir_error_budget_consumed", "rollout"), ("weir_budget_spent_ratio", "ratelimit")):
        for process in window.of(services):
            for sample in window.after.pages[process].get(metric, ()):
                name = " ".join(sample.labels.values())
                found[name] = max(found.get(name, 0.0), sample.value)
    spent = [Spent(name, share) for name, share in found.items() if share > 0]
    return tuple(sorted(spent, key=lambda each: (-each.share, each.name))[:_MOST])
