"""A candidate in a process of its own: says when it leads; on each line from its parent, writes a key with its guard.

`python -m tests.contract.election.paused_candidate ENDPOINT SERVICE KEY`
"""

from __future__ import annotations

import asyncio
import sys

from libs.election import Election, Leadership
from libs.registry import EtcdStore, Put


async def _main(endpoint: str, service: str, key: str) -> None:
    store = EtcdStore([endpoint])
    terms: list[Leadership] = []

    async def lead(term: Leadership) -> None:
        terms.append(term)
        _say("leads")
        await asyncio.Event().wait()

    election = asyncio.create_task(Election(store=store, service=service, instance="paused", ttl=2.0).run(lead))
    while await asyncio.to_thread(sys.stdin.readline):
        term = terms[0]
        believed = term.held
        written = await store.txn(compares=[term.guard], puts=[Put(key, b"paused")])
        _say(f"{'wrote' if written.succeeded else 'fenced'} {'held' if believed else 'lost'}")
    election.cancel()
    await asyncio.wait((election,))
    await store.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
