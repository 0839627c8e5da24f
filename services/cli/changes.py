"""Options of every command that changes the registry, so that they are there, and mean the same, everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the history and the audit log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check it and say what would be, without doing it.")]


def options(reason: str, *, dry_run: bool = False) -> Any:
    """How to make a change: `weir.registry.v1.ChangeOptions`."""
    from weir.registry.v1 import registry_pb2

    return registry_pb2.ChangeOptions(dry_run=dry_run, reason=reason)


def tell(dry_run: bool) -> None:
    """Says behind a dry run that it was one, on standard error: what it printed is what would be."""
    if dry_run:
        typer.echo("nothing was changed: a dry run", err=True)
