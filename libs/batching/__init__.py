"""Dynamic batching of small, pure work: which requests run together, when, and which cannot be in time. Pure.

    batcher = Batcher(CostModel.fitted(samples), Limits(slots=2, max_rows=64))
    batcher.offer(item, now)        # refuses what cannot be in time
    batch = batcher.take(now)       # when an executor is free; None: ask again at `batcher.wake_at`
    batcher.finished(batch, now)    # or `failed`, which halves it

One batcher serves the executors of one model version. The caller passes the time in, so that the same code runs in a
simulation. Ideas: Clipper (NSDI '17), Nexus (SOSP '19), Clockwork (OSDI '20), Symphony (2023); start-time fair queuing
(Goyal et al., SIGCOMM '96).
"""

from libs.batching.batcher import Batch, Batcher, Late, Limits
from libs.batching.cost import CostModel
from libs.batching.queues import Item

__all__ = ["Batch", "Batcher", "CostModel", "Item", "Late", "Limits"]
