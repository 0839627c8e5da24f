"""`weir authority`: who may read and write what in etcd, and giving the processes of a mesh those rights."""

from __future__ import annotations

from typing import Annotated, Any

from libs.authority.stores import ROWS, Row
from services.cli.app import Argument, DryRun, Json, Option, Output, UsageError
from services.cli.output import failed, print_found, print_json


def show(output: Output = "table") -> None:
    """Show what each service may, by the table that all rights are made from. Nobody else may anything."""
    rows = [{"service": name, **row} for name, each in sorted(ROWS.items()) for row in _rights(each)]
    columns, made = ("SERVICE", "OVER", "KEYS", "MAY"), [list(row.values()) for row in rows]
    print_found(output, {"rights": rows}, columns, made, empty="nobody may anything", least=("OVER",))


def establish(
    processes: Annotated[
        list[str],
        Argument("Every process that speaks with etcd itself: SERVICE/INSTANCE.", "SERVICE/INSTANCE"),
    ],
    etcd: Annotated[str, Option(help="Where it is, HOST:PORT; several with commas.")],
    ca: Annotated[str, Option(help="The CA of etcd's certificate, PEM.")],
    cert: Annotated[str, Option(help="The certificate with the common name root, PEM.")],
    key: Annotated[str, Option(help="Its key, PEM.")],
    add: Annotated[bool, Option(help="Leave the rights of other processes as they are.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Give these processes, and nobody else, their rights in etcd.

    Turns its authentication on. May be repeated at any time: whoever keeps its rights has them meanwhile. Processes
    that reach etcd through the door need nothing but their certificates.
    """
    import asyncio

    from libs.authority.identity import Identity
    from libs.config import TlsFiles
    from libs.errors import WeirError
    from libs.registry.authorities import establish as carry_out

    try:
        identities = [Identity(*each.split("/")) for each in processes]
    except (TypeError, ValueError) as error:
        raise UsageError(f"processes are written SERVICE/INSTANCE: {error}") from error
    if unknown := sorted({each.service for each in identities if not ROWS.get(each.service, Row()).direct}):
        raise UsageError(f"{', '.join(unknown)}: not a service that speaks with etcd itself; see weir authority show")
    try:
        done = asyncio.run(
            carry_out(etcd.split(","), TlsFiles(ca=ca, cert=cert, key=key), identities, keep=add, dry_run=dry_run)
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    except (OSError, WeirError) as error:
        raise failed(str(error)) from error
    if as_json:
        print_json({"steps": done})
        return
    for line in done or ["all is so already"]:
        print(line)


def _rights(row: Row) -> list[dict[str, Any]]:
    over = "etcd" if row.direct else "door"
    return [{"over": over, "keys": str(each), "may": access.word} for each, access in row.access.items()]


COMMANDS = {"show": show, "establish": establish}
