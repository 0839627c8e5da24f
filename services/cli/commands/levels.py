"""`weir levels`: which pools shed whom, and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from services.cli.output import Json, failures, plain, print_json, print_table
from services.cli.quantities import seconds_of, show_seconds


def levels(as_json: Json = False) -> None:
    """Show the pools that are overloaded now: what requests of each class wait, and whose are refused at the edge."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        found = calls.registry("ListPoolLevels", registry_pb2.ListPoolLevelsRequest()).levels
    if as_json:
        print_json({"levels": [plain(level) for level in found]})
        return
    if not found:
        print("no pool is overloaded")
        return
    print_table(
        ("POOL", "CLASS", "QUEUED", "WAIT OF THE NEXT", "TOLD BY", "AGE"),
        class_rows(found, time.time()),
        empty="nobody waits",
    )
    print_table(
        ("POOL", "TENANT", "REFUSED AT THE EDGE", "COME BACK AFTER"), tenant_rows(found), empty="nobody is shed"
    )


def class_rows(levels: Sequence[Any], now: float) -> list[tuple[object, ...]]:
    """One line per pool and class that waits: the why."""
    return [
        (
            level.pool,
            each.queue_class,
            each.queued,
            show_seconds(seconds_of(each.wait)),
            level.admission,
            show_seconds(round(max(0.0, now - level.at.seconds - level.at.nanos / 1e9), 1)),
        )
        for level in levels
        for each in level.classes
        if each.queued or seconds_of(each.wait)
    ]


def tenant_rows(levels: Sequence[Any]) -> list[tuple[object, ...]]:
    """One line per pool and tenant that is shed: the whom."""
    return [
        (level.pool, each.tenant, f"{each.shed:.0%}", show_seconds(seconds_of(each.retry_after)))
        for level in levels
        for each in level.tenants
    ]
