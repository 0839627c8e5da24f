"""A mesh that many tenants use: made known to it, each with a key of its own, and answered once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from loadtest import accounting
from loadtest.overload.samples import Objective
from loadtest.overload.setting import Setting, TenantSpec, prepare, until
from loadtest.scenarios import Edge
from tests.support.mesh import Mesh

TENANTS = 64
"""One tenant's requests all meet in one place, which hides what many tenants cost."""
_TOKENS = 16
_SECONDS = 20.0


async def ready(mesh: Mesh) -> tuple[str, ...]:
    """The tenants' keys, as soon as each was served: keys and limits spread by watches, and first requests open streams
    and fill caches.

    :raises TimeoutError: a tenant was not served.
    """
    tenants = [TenantSpec(id=f"load-{number}") for number in range(TENANTS)]
    # Costs are measured, also where the machine cannot serve every first token in time: nobody is refused for that.
    objectives = {"fast": Objective(ttft=math.inf)}
    site = await prepare(mesh, Setting(tenants=tenants, plans=(), objectives=objectives))
    edge = edge_of(mesh, tuple(site.keys.values()))

    async def known(turn: int) -> None:
        connection = edge.connection()
        request = edge.request(max_tokens=_TOKENS, stream=False, turn=turn)

        async def answered() -> bool:
            return not (await connection.send(request)).fault(_TOKENS)

        try:
            await until(answered, seconds=_SECONDS, what=f"an answer to tenant {turn}")
        finally:
            connection.close()

    await asyncio.gather(*map(known, range(TENANTS)))
    return edge.keys


def edge_of(mesh: Mesh, keys: Sequence[str]) -> Edge:
    """Where to send the load; to be read anew when processes may have been replaced.

    :raises RuntimeError: a process has children that nobody accounts for.
    """
    services = mesh.file()["services"]
    status = mesh.weir_json("status")
    pids = {row["name"]: int(row["pid"]) for row in status["processes"]}
    accounting.check_no_children(pids)
    host, _, port = services["envoy"]["plain_address"].rpartition(":")
    return Edge(
        host=host,
        port=int(port),
        keys=tuple(keys),
        pids={**pids, "supervisor": int(status["pid"])},
        worker_metrics=tuple(each["metrics"] for each in services.values() if each["service"] == "worker"),
    )
