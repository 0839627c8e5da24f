"""`weir version`."""

from __future__ import annotations

from services.cli.app import Json
from services.cli.output import print_json


def version(as_json: Json = False) -> None:
    """Print the version of this command, which is that of the wheel it came in."""
    from importlib.metadata import version as of

    print_json({"version": of("weir")}, indent=None) if as_json else print(of("weir"))
