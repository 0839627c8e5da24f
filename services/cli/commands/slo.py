"""`weir slo`: how fast error budgets burn, and the alerting rules that say the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.commands.rollout_views import finite
from services.cli.output import Json, failed, failures, plain, print_json, print_table

app = typer.Typer(help="Error budgets and burn rates; objectives themselves: weir slos.", no_args_is_help=True)
_WINDOW = re.compile(r"([\d.]+)(s|m|h|d)")
_SIZES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@app.command()
def status(
    route: Annotated[str, typer.Option(help="Only this route's.")] = "",
    tier: Annotated[str, typer.Option(help="Only this tier's.")] = "",
    as_json: Json = False,
) -> None:
    """Show what is left of every error budget, how fast it burns, and what alerts. 1 burns it up just in time."""
    from weir.rollout.v1 import rollout_pb2 as pb
    from weir.rollout.v1 import rollout_pb2_grpc

    from services.cli import calls

    with failures():
        found = calls.with_channel(
            "rollout",
            lambda channel: rollout_pb2_grpc.RolloutServiceStub(channel).GetSloStatus(
                pb.GetSloStatusRequest(route=route, tier=tier), timeout=calls.TIMEOUT
            ),
        )
    if as_json:
        budgets = [{key: value for key, value in plain(each).items() if key != "windows"} for each in found.budgets]
        print_json({"budgets": finite(budgets), "frozen": found.frozen})
        return
    print_budgets(found.budgets)
    if found.frozen:
        print("an error budget is used up: rollouts of its tier are frozen; `weir rollout start --override REASON`")


@app.command()
def rules(
    out: Annotated[Path | None, typer.Option("--out", help="Write the file; else standard output.")] = None,
) -> None:
    """Print Prometheus rules that alert by the declared objectives with the same windows."""
    from weir.registry.v1 import registry_pb2 as pb

    from libs.burn.rules import rules_text
    from services.cli import calls

    with failures():
        text = rules_text(calls.registry("ListSlos", pb.ListSlosRequest()).slos)
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise failed(f"{out}: {error}") from error


def print_budgets(budgets: Iterable[Any]) -> None:
    """A line per objective."""
    found = list(budgets)
    windows = sorted(
        {window for budget in found for each in budget.objectives for window in each.burn_rates}, key=window_seconds
    )
    print_table(
        ("ROUTE", "TIER", "OBJECTIVE", "BUDGET LEFT", "ALERT", "GOOD", "BAD", *(f"BURN {each}" for each in windows)),
        (
            (
                budget.route,
                budget.tier,
                each.objective,
                show_left(each.consumed),
                each.alert,
                f"{each.good:,}",
                f"{each.bad:,}",
                *(f"{each.burn_rates[window]:.3g}" if window in each.burn_rates else None for window in windows),
            )
            for budget in found
            for each in budget.objectives
        ),
        empty="nothing is known of objectives: none is declared (weir slos), or no gateway has reported",
    )


def show_left(consumed: float) -> str:
    """What is left of a budget."""
    return f"{1 - consumed:.1%}" if consumed < 1 else f"none, {consumed:.3g} times used"


def window_seconds(window: str) -> float:
    """Seconds of "5m" or "0.3s"; what is no window comes last."""
    match = _WINDOW.fullmatch(window)
    return float(match[1]) * _SIZES[match[2]] if match else float("inf")
