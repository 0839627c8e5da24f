"""`weir prices`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options, tell
from services.cli.output import Json, failures, plain, print_json, print_table
from services.cli.quantities import parse_microusd, show_usd

app = typer.Typer(help="What tokens cost.", invoke_without_command=True)


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """What tokens cost; lists prices without a command."""
    if context.invoked_subcommand is None:
        list_prices(as_json)


@app.command("list")
def list_prices(as_json: Json = False) -> None:
    """List prices."""
    with failures():
        found = _prices()
    if as_json:
        print_json({"prices": [plain(price) for price in found]})
    else:
        _print(found)


@app.command("set")
def set_price(
    model: Annotated[str, typer.Argument(help="An alias or a version; '*' for those without their own.")],
    input_price: Annotated[str | None, typer.Option("--input", help="Dollars per million prompt tokens.")] = None,
    output_price: Annotated[str | None, typer.Option("--output", help="Dollars per million output tokens.")] = None,
    input_cost: Annotated[str | None, typer.Option(help="What a million prompt tokens cost us, in dollars.")] = None,
    output_cost: Annotated[str | None, typer.Option(help="Likewise, output tokens. Neither: as the price.")] = None,
    revision: Annotated[int | None, typer.Option(help="The revision to replace; else the one just read.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set what is given of a model's price. Spend caps count by it from then on; what was spent stays as it was.

    Rollouts are judged by what versions cost: set a version's own cost before it is rolled out.
    """
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    given = {
        "input_microusd_per_million": None if input_price is None else parse_microusd(input_price, "--input"),
        "output_microusd_per_million": None if output_price is None else parse_microusd(output_price, "--output"),
        "input_cost_microusd_per_million": None if input_cost is None else parse_microusd(input_cost, "--input-cost"),
        "output_cost_microusd_per_million": None
        if output_cost is None
        else parse_microusd(output_cost, "--output-cost"),
        "revision": revision,
    }
    with failures():
        present = {each.model: each for each in _prices()}
        wanted = present.get(model) or registry_pb2.Price(model=model)
        for field, value in given.items():
            if value is not None:
                setattr(wanted, field, value)
        request = registry_pb2.SetPriceRequest(price=wanted, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetPrice", request).price
    if as_json:
        print_json(plain(stored))
    else:
        _print([stored])
    tell(dry_run)


def _prices() -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListPrices", registry_pb2.ListPricesRequest()).prices)


def _cost(price: Any) -> str:
    """What tokens cost us, input and output."""
    given = price.input_cost_microusd_per_million, price.output_cost_microusd_per_million
    return " / ".join(map(show_usd, given)) if any(given) else "as the price"


def _print(found: list[Any]) -> None:
    print_table(
        ("MODEL", "INPUT / 1M TOKENS", "OUTPUT / 1M TOKENS", "COSTS US", "REVISION"),
        (
            (
                price.model,
                show_usd(price.input_microusd_per_million),
                show_usd(price.output_microusd_per_million),
                _cost(price),
                price.revision,
            )
            for price in found
        ),
        empty="no prices; everything is free",
    )
