"""Verdicts and decisions in words, with their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from services.rollout.policy.comparisons import Comparison
from services.rollout.policy.intervals import Interval, Level
from services.rollout.policy.phases import Verdict
from services.rollout.policy.plan import WHOLE, Burn, Gate

_NAMES = {
    "error_rate": "error rate",
    "stream_completion": "stream completion",
    "ttft": "TTFT (geometric mean)",
    "itl": "ITL (geometric mean)",
    "latency": "latency (geometric mean)",
    "latency_p95": "latency p95",
    "latency_p99": "latency p99",
    "cost_per_1k_tokens": "cost per 1,000 tokens",
    "cost_per_1k_rows": "cost per 1,000 predictions",
    "cost_per_request": "cost per request",
}
_SCORE = "score:"
_HOPELESS = 1000.0
"""Times as wide as it may be: a million times as many samples are nothing to wait for."""


def metric_name(metric: str) -> str:
    """As people say it."""
    if metric.startswith(_SCORE):
        return "score " + metric.removeprefix(_SCORE)
    name, _, tail = metric.partition("_p")
    return _NAMES.get(metric) or (f"{name.upper()} p{tail}" if tail else metric)


def share(weight: float) -> str:
    """Basis points as a percentage."""
    return f"{100.0 * weight / WHOLE:.4g}%"


def span(seconds: float) -> str:
    """A length of time."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


def dollars(microusd: float) -> str:
    """Money."""
    return f"${microusd / 1e6:,.4g}" if microusd < 1e9 else f"${microusd / 1e6:,.0f}"


def of_comparison(gate: Gate, arm: str, found: Comparison, verdict: Verdict, level: Level) -> str:
    """One sentence."""
    name = metric_name(gate.metric)
    if not found.samples:
        return f"{name} of {arm}: no samples yet"
    if found.bar is None and not found.baseline_samples:
        return f"{name} of {arm}: no samples of the baseline yet"
    costs = gate.metric.startswith("cost_")
    if costs and bool(found.ours) != bool(found.theirs):
        figures = f"{dollars(found.ours)}, the baseline's {dollars(found.theirs)}"
        return f"{name} of {arm} is {figures}: one has no price, so they cannot be compared (weir get prices)"
    digits = _digits(found)
    counts = f"{found.samples:,} samples" if found.bar is not None else _counts(found)
    limits = f"({level.coverage:.1%}: {_limits(found, digits)}, {counts})"
    show = dollars if costs else _time
    return f"{name} of {arm} {_said(found, digits, limits, show)}{_outlook(found, verdict)}"


def _said(found: Comparison, digits: int, limits: str, show: Callable[[float], str]) -> str:
    change = found.shown.estimate
    if found.unit == "times":
        allowed = f"tolerated {_times(found.tolerated, digits)}"
        tokens = " for the same tokens" if found.same_tokens else ""
        figures = f"{show(found.ours)} against {show(found.theirs)}"
        return f"is {_times(change, digits)} times the baseline's{tokens}: {figures} {limits}, {allowed}"
    if found.unit == "points":
        allowed = f"tolerated {100.0 * found.tolerated:.2f} worse"
        return (
            f"is {found.ours:.2%}, the baseline's {found.theirs:.2%}: {100.0 * change:+.2f} points {limits}, {allowed}"
        )
    if found.bar is not None:
        return f"is {found.ours:.4g} {limits}, the bar is {found.bar:.4g}"
    allowed = f"tolerated {found.tolerated:.4g} worse"
    return f"is {found.ours:.4g}, the baseline's {found.theirs:.4g}: {change:+.3g} {limits}, {allowed}"


def _counts(found: Comparison) -> str:
    return f"{found.samples:,} and {found.baseline_samples:,} samples"


def of_burn(arm: str, burn: Burn, found: Comparison, level: Level) -> str:
    """Why the error budget's burn rate is the arm's fault."""
    window = f" over {burn.window}" if burn.window else ""
    return (
        f"{arm} burns the error budget of {burn.objective} {burn.rate:.1f} times as fast as allowed{window} (alert at "
        f"{burn.threshold:.4g}), {found.ours:.2%} of its events are bad, {found.theirs:.2%} of the baseline's "
        f"({level.coverage:.1%}: {_limits(found, 2)} points, {found.samples:,} and {found.baseline_samples:,} events)"
    )


def of_calm(arm: str, fastest: Burn | None, hot: Sequence[str]) -> str:
    """Why burn rates give no reason to act."""
    if fastest is None:
        return f"burn rate of {arm}: nothing measured yet"
    if hot:
        return f"{arm} burns the error budget of {', '.join(hot)}, but is not shown to be worse than the baseline"
    return f"{arm} burns no error budget faster than {fastest.rate:.1f} times as fast as allowed"


def _time(seconds: float) -> str:
    return f"{1000.0 * seconds:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def listed(parts: Sequence[str], most: int = 4) -> str:
    """Joined, cut after a few."""
    left = len(parts) - most
    return "; ".join(parts[:most]) + (f"; and {left} more" if left > 0 else "")


def _digits(found: Comparison) -> int:
    return 3 if found.unit == "times" and found.tolerated < 0.1 and abs(found.shown.estimate) < 0.5 else 2


def _times(value: float, digits: int) -> str:
    return f"{1.0 + value:.{digits}f}"


def _limits(found: Comparison, digits: int) -> str:
    low, high = found.shown.low, found.shown.high
    if found.unit == "times":
        return f"{_times(max(low, -1.0), digits)}–{'∞' if math.isinf(high) else _times(high, digits)}"
    if found.unit == "points":
        return f"{_signed(100.0 * low)} to {_signed(100.0 * high)}"
    return f"{low:.3g} to {high:.3g}" if found.bar is not None else f"{low:+.3g} to {high:+.3g}"


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _outlook(found: Comparison, verdict: Verdict) -> str:
    if verdict is not Verdict.UNDECIDED:
        return ""
    more = more_samples(found.worse, found.tolerated, found.samples)
    return f", about {more:,} more samples would decide" if more else ", too few samples to decide"


def more_samples(worse: Interval, tolerated: float, samples: int) -> int:
    """How many more samples of the arm would decide if its estimate stayed the same; 0 where that cannot be told.
    Intervals narrow with the root of the count."""
    margin = worse.estimate - tolerated
    width = worse.estimate - worse.low if margin > 0.0 else worse.high - worse.estimate
    if not math.isfinite(width) or not abs(margin) < width < _HOPELESS * abs(margin):
        return 0
    needed = samples * ((width / margin) ** 2 - 1.0)
    digits = max(len(str(int(needed))) - 2, 0)
    return max(1, round(needed / 10**digits) * 10**digits)
