"""Every number that a rule compares with, and why it is that one."""

QUEUE_WAIT = 0.25
"""Seconds of a granted request's mean wait from which a queue is felt: a mesh below its capacity has mean waits of some
milliseconds, and clusters of arrivals a tenth of a second (simulated, 0.7 of the capacity)."""
REFUSED_SHARE = 0.02
"""Of what left admission, refused or evicted for want of room: beyond it an objective of 98% is missed."""
CORE = 0.9
"""Processor seconds per second of a process whose decisions are made on one event loop: the loop has one core, and
what is left of it is no reserve against the next cluster of requests."""
BUSY = 0.85
"""Share of the time that an engine is in steps: between two of them there is work too. A batching engine steps without
a pause at three tenths of its capacity already, so this tells what fills its time, and only where callers wait."""
IDLE = 0.5
"""Likewise, below which an accelerator idles although sequences run there."""
SPARE = 0.5
"""Of a worker's places and blocks, what is taken on one that could have had the work that waits."""
PREFILL = 0.5
"""Of an engine's steps, the share spent on prompts from which these bind rather than decoding."""
KV = 0.85
"""Of a worker's blocks that are granted: the next request of ordinary size (a tenth of a worker) hardly fits."""
KV_USED = 0.95
"""Of a worker's blocks in use, for engines that hand out blocks as tokens come."""
PREEMPTIONS = 0.1
"""Per second and worker, for want of blocks: each computes a sequence's tokens again."""
TENANT = 0.75
"""Of the requests that wait, at both scrapes, one tenant's, while others run: beyond that the queue is its own making.
Of two that are both beyond their shares, chance gives one two thirds."""
OTHERS = "other"
"""Whose requests admission counts together, as they have few of them each: no tenant that could be the one."""
SHARED = 0.1
"""Of the requests that run, those of other tenants, below which a tenant is as good as alone, and has a right to
all there is."""
UNREAD = 65_536
"""Characters that readers have not taken at a gateway, at both scrapes: one whole turn (services/gateway's output
buffer hands a reader no more at once)."""
UNREAD_EACH = 256
"""Likewise, what each running generation may have on its way besides: a few flushes of a reader that keeps up."""
MIN_SECONDS = 1.0
"""A window shorter than that has too few steps in it to judge by."""
