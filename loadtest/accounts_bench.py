"""The limiter's promises when its owner dies and when its state moves; prints one line of JSON.

python -m loadtest.accounts_bench

owner_loss_overshoot_tokens   beyond what services/ratelimit/README.md ("The bound") allows, the most after any of
                              `KILLS` kills of the owner at random moments; decisions and state as in the service,
                              messages and time as `simulation.accounts` has them
owner_loss_excess_tokens      beyond the limit itself: what the bound allows was needed of it
state_ms_50k_tenants          CPU time of the longest piece of the state of 50,000 tenants in use, made or joined:
                              so long the event loop stands still
state_total_ms_50k_tenants    of all pieces, made and joined
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time

import uvloop
from weir.quota.v1 import quota_pb2

from libs.quota import Ask, Cursor, Joining, Ledger, LimitSpec, Replica
from services.ratelimit.convert import fill_state, piece_of
from services.ratelimit.pauses import uncollected
from simulation.accounts import Mesh
from simulation.parties import SECOND

KILLS = 100
LIMIT = 10_000
TENANTS = 50_000


async def measure(kills: int = KILLS, tenants: int = TENANTS) -> dict[str, float]:
    """The figures of the module's docstring. Takes about half a minute."""
    return {**owner_loss(kills), **moving_state(tenants)}


def owner_loss(kills: int) -> dict[str, float]:
    """Three gateways that ask as much as they can get; the owner dies every few seconds."""
    rng = random.Random(1)
    overshoot = excess = 0
    mesh = Mesh(limit=LIMIT, limiters=3, gateways=3, skews=(0, 11 * SECOND, 300 * SECOND))
    for _ in range(kills):
        for _ in range(rng.randrange(20, 120)):
            _step(mesh, rng)
        mesh.kill(mesh.owner)
        for _ in range(rng.randrange(0, 40)):  # nobody can be asked
            _step(mesh, rng)
            overshoot, excess = max(overshoot, mesh.overshoot), max(excess, mesh.excess)
        for gateway in mesh.gateways:
            mesh.connect(gateway)
        mesh.forget()
    return {"owner_loss_overshoot_tokens": float(overshoot), "owner_loss_excess_tokens": float(excess)}


def _step(mesh: Mesh, rng: random.Random) -> None:
    gateway = rng.choice(mesh.gateways)
    match rng.randrange(8):
        case 0 | 1:
            mesh.ask(gateway, rng.choice((20, 200, 700)))
        case 2:
            mesh.settle(gateway, rng.random())
        case 3:
            one, other = rng.sample(mesh.limiters, 2)
            mesh.publish(one)
            mesh.tell(one, other)
        case 4:
            mesh.wait(rng.randrange(SECOND // 2))
        case _:
            mesh.serve(gateway)
            mesh.hear(gateway)


def moving_state(tenants: int) -> dict[str, float]:
    """A replica with a lease and a settled request of each tenant gives its state to one that has nothing."""
    source, target = _replica("a"), _replica("b")
    for number in range(tenants):
        tenant, now = f"tenant-{number}", number * SECOND // 5000
        for kind in ("open", "done"):
            ask = Ask(tenant, "weir-fast", f"{kind}-{number:024x}", 700, "weir-fast@1", 100, holder="gateway-0/1")
            source.ledger.reserve(ask, lease_ns=60 * SECOND, now=now)
        source.ledger.settle(tenant, "weir-fast", f"done-{number:024x}", 600, now, spend=90, version="weir-fast@1")
        source.ledger.tell(ask, 0, now)
    now = tenants * SECOND // 5000
    source.flush(now)
    gc.collect()
    spent: list[float] = []
    cursor: Cursor | None = Cursor()
    joining: Joining | None = None
    while cursor is not None:
        with uncollected():
            began = time.thread_time()
            message = quota_pb2.State()
            fill_state(message, source.piece(cursor, now))
            spent.append(time.thread_time() - began)
            began = time.thread_time()
            piece = piece_of(message)
            joining = target.join(piece, now, joining)
            spent.append(time.thread_time() - began)
        cursor = piece.next
    if target.ledger.live_leases != tenants or target.ledger.remembered_settled != tenants:
        raise RuntimeError("the state was not joined whole")
    return {"state_ms_50k_tenants": 1e3 * max(spent), "state_total_ms_50k_tenants": 1e3 * sum(spent)}


def _replica(name: str) -> Replica:
    default = LimitSpec(10**6, 10**9, 100, spend_microusd=10**9)
    return Replica(Ledger(part=(name, "1"), track_changes=True, default=default))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(measure())) + "\n")
