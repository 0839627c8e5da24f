"""`weir slo`: how fast error budgets burn, and the alerting rules that say the same. Objectives: `weir get slos`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Option, Output, UsageError
from services.cli.commands.rollout_views import finite
from services.cli.output import failed, print_json, print_table
from services.cli.quantities import parse_seconds


def status(
    route: Annotated[str, Option(help="Only this route's.")] = "",
    tier: Annotated[str, Option(help="Only this tier's.")] = "",
    output: Output = "table",
) -> None:
    """Show what is left of every error budget, how fast it burns, and what alerts. 1 burns it up just in time."""
    found = calls.ask("rollout", "GetSloStatus", route=route, tier=tier)
    if output == "json":
        budgets = [
            {key: value for key, value in plain(each, unset=True).items() if key != "windows"} for each in found.budgets
        ]
        print_json({"budgets": finite(budgets), "frozen": found.frozen})
        return
    print_budgets(found.budgets, wide=output == "wide")
    if found.frozen:
        print("an error budget is used up: rollouts of its tier are frozen; `weir rollout start --override REASON`")


def rules(
    out: Annotated[Path | None, Option("--out", help="Write the file; else standard output.")] = None,
) -> None:
    """Print Prometheus rules that alert by the declared objectives with the same windows."""
    from libs.burn.rules import rules_text

    text = rules_text(calls.snapshot("slos").slos.values())
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise failed(f"{out}: {error}") from error


def print_budgets(budgets: Iterable[Any], *, wide: bool = False) -> None:
    """A line per objective."""
    found = [(budget.route, budget.tier, each) for budget in budgets for each in budget.objectives]
    windows = sorted({window for _, _, each in found for window in each.burn_rates}, key=window_seconds)
    columns = ("ROUTE", "TIER", "OBJECTIVE", "BUDGET LEFT", "ALERT", "GOOD", "BAD", *(f"BURN {w}" for w in windows))
    rows = [
        [route, tier, each.objective, show_left(each.consumed), each.alert, f"{each.good:,}", f"{each.bad:,}"]
        + [f"{each.burn_rates[window]:.3g}" if window in each.burn_rates else "" for window in windows]
        for route, tier, each in found
    ]
    nothing = "nothing is known of objectives: none is declared (`weir get slos`), or no gateway has reported"
    print_table(columns, rows, empty=nothing, wide=wide, extra=("GOOD", "BAD"), least=columns[:6:-1])


def show_left(consumed: float) -> str:
    """What is left of a budget."""
    return f"{1 - consumed:.1%}" if consumed < 1 else f"none, {consumed:.3g} times used"


def window_seconds(window: str) -> float:
    """Seconds of "5m" or "0.3s"; what is no window comes last."""
    try:
        return parse_seconds(window, "")
    except UsageError:
        return float("inf")


COMMANDS = {"status": status, "rules": rules}
