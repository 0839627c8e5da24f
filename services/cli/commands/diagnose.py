"""`weir diagnose`: which stage of the mesh binds, out of two scrapes of all processes' metrics (libs/diagnosis)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from services.cli import calls
from services.cli.app import Json, Option, say, warn
from services.cli.config import NoMeshError, locate
from services.cli.output import failed, print_json

if TYPE_CHECKING:
    from libs.quota import PriceBook
    from services.cli.observe.scraping import Taken


def diagnose(
    seconds: Annotated[float, Option(least=1, most=600, help="How far apart the two scrapes are.")] = 10.0,
    source: Annotated[Path | None, Option("--from", help="Scrapes that --save kept, instead of a mesh.")] = None,
    save: Annotated[Path | None, Option("--save", help="Keep the scrapes in this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Name the stage that binds: for whom, since when, what speaks for it, what to do.

    Exit code 1 when something binds. With --from all scrapes of the folder are gone through: what lasts over several is
    said to hold since the first of them.
    """
    from libs.diagnosis import follow, words
    from services.cli.observe import scraping

    try:
        taken = scraping.kept(source) if source else _taken(seconds, save)
        found = follow([each.scrape() for each in taken], None if source else prices())
    except (OSError, ValueError) as error:
        raise failed(f"{source}: {error}" if source else str(error)) from error
    if as_json:
        print_json(words.as_json(found))
    else:
        say("\n".join(words.lines(found, len(taken[-1].texts))))
    if found.findings:
        raise SystemExit(1)


def _taken(seconds: float, folder: Path | None) -> list[Taken]:
    from services.cli.observe import scraping

    places = scraping.places(locate())
    first = scraping.take(places)
    time.sleep(max(0.0, first.at + seconds - time.time()))
    taken = [first, scraping.take(places)]
    if not any(taken[1].texts.values()):
        raise failed("no process of the mesh shows its metrics; see `weir status`")
    try:
        for each in taken if folder else ():
            scraping.save(each, folder)  # type: ignore[arg-type]
    except OSError as error:
        raise failed(f"the scrapes cannot be kept: {error}") from error
    return taken


def prices() -> PriceBook | None:
    """What serving costs, by the registry; None, and a word on standard error, when it cannot be asked: a mesh whose
    registry is away can be diagnosed."""
    from libs.errors import WeirError
    from libs.registry.terms import cost_book

    try:
        return cost_book(calls.snapshot("prices"))
    except (WeirError, NoMeshError) as error:
        warn(f"what a worker costs is not known: {error}")
        return None
