"""Prints what `explain` makes of a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from libs.resources.quantities import show_seconds, show_usd
from services.cli.app import say
from services.cli.output import print_fields, print_table


def show(told: Mapping[str, Any], *, wide: bool = False) -> None:
    """Prints it: the findings first, since they are what was asked for."""
    say("\n".join(f"! {finding}" for finding in told["findings"]) or "nothing speaks against it")
    print()
    plan, keys = told["plan"], told["keys"]
    print_fields(
        (
            ("tenant", told["tenant"] + (f" ({told['display_name']})" if told["display_name"] else "")),
            ("plan", f"{plan['id']}, class {plan['kind']}" + ("" if plan["defined"] else ", without a policy")),
            ("weight", f"{told['weight']:g}"),
            ("over quota", plan["over_quota"]),
            ("kv share", f"{plan['kv_share']:.0%}"),
            ("ladder", " → ".join(plan["ladder"]) or "refuse"),
            *((f"spent in {each['period']}", _bounded(each)) for each in told["budget"]),
            ("keys", f"{keys['live']} live, {keys['expired']} expired, {keys['revoked']} revoked"),
        )
    )
    print()
    print_table(
        ("MODEL", "REQUESTS / MIN", "TOKENS / MIN", "CONCURRENCY", "MAX CONTEXT", "MAX OUTPUT", "SPEND"),
        (
            (
                limits["model"],
                _used(limits["used_requests"], limits["requests_per_minute"]),
                _used(limits["used_tokens"], limits["tokens_per_minute"]),
                *(limits[name] or "unlimited" for name in ("concurrency", "max_context", "max_output")),
                _spent(limits),
            )
            for limits in told["limits"]
        ),
        empty="no limits of its own: the limiter's defaults hold",
        wide=wide,
        least=("MAX OUTPUT", "MAX CONTEXT", "CONCURRENCY"),
    )
    objectives = [
        (slo["route"], slo["tier"], _time(slo["ttft_p95"]), _time(slo["measured_ttft_p95"]), slo["measured_requests"])
        for slo in told["objectives"]
    ]
    columns = ("ROUTE", "TIER", "TTFT P95", "MEASURED", "REQUESTS")
    print_table(columns, objectives, empty="no objectives are declared", wide=wide)
    _show_recent(told["recent"])


def _show_recent(recent: Mapping[str, Any] | None) -> None:
    if not recent or not recent["requests"]:
        print("no requests in the audit log" if recent else "its requests are not known")
        return
    since = datetime.fromtimestamp(recent["since"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    outcomes = ", ".join(f"{name} {count}" for name, count in recent["outcomes"].items())
    say(f"its last {recent['requests']} requests, since {since} UTC: {outcomes}")


def _used(used: int | None, limit: int) -> str:
    return f"{'?' if used is None else used} of {limit or 'unlimited'}"


def _spent(limits: Mapping[str, Any]) -> str:
    cap = limits["spend_microusd"]
    if not cap:
        return "unlimited"
    spent = limits["spent_microusd"]
    known = "?" if spent is None else ("" if limits["spent_is_all"] else "≥ ") + show_usd(spent)
    return f"{known} of {show_usd(cap)} per {show_seconds(limits['spend_window'])}"


def _bounded(each: Mapping[str, Any]) -> str:
    return f"{show_usd(each['spent_microusd'])} of {show_usd(each['microusd'])}" + (" (soft)" if each["soft"] else "")


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else show_seconds(round(seconds, 3))
