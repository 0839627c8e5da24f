"""`make soak`: kills, freezes, slow processes, partitions, broken connections, full and slow disks and skewed clocks at
random over the replicas profile, under mixed load, with books kept from outside.

What is sent, and compared: the answers of a simulated engine that were asked for before anything was broken. What is
done to the mesh is drawn from a seed, which is printed, one fault at a time (loadtest/soak/faults.py). Without root:
`unshare` gives the soak a network and mounts of its own, in which packets between two processes vanish or come 0.1 to
5 s later, and a process's disk is a small one that can be filled. Where that is refused these are left out, and named.

A skewed clock and a slow disk (whose fsyncs take 0.05 to 1 s) are those of a Python process; clocks and disks of Envoy
and etcd are the machine's. `added_p99_ms` is the worst over the services that are asked within a bound or beside the
request; what a slow gateway, worker, predictor or admission adds is told beside it, and has no target.

Ends with one line of JSON: the figures, those that could not be measured and why, and how many faults of which kind.
Exit code 1 when a figure misses its target.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from loadtest.machine import machine
from loadtest.soak import network
from loadtest.soak.book import missed
from loadtest.soak.load import Mix
from loadtest.soak.run import Plan, soak


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults; another one each time when left out")
    parser.add_argument("--streams", type=int, default=Mix().streams, help="clients that stream (default: %(default)s)")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the mesh's state, which stays")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    network.move_inside(["loadtest.soak", *sys.argv[1:], *(() if options.seed is not None else ("--seed", str(seed)))])
    with tempfile.TemporaryDirectory(prefix="weir-soak-") as temporary:
        plan = Plan(seconds=options.seconds, seed=seed, mix=Mix(streams=options.streams))
        outcome = soak(options.keep or Path(temporary), plan, say)
    told = outcome.verdict
    for fault in told.faults[:200]:
        say(f"  ! {fault}")
    wrong = missed(told.figures)
    say(f"missed: {', '.join(wrong) or 'nothing'}")
    line = {
        **told.figures,
        "unmeasured": told.unmeasured,
        "faults": outcome.faults,
        "faults_not_done": outcome.not_done,
        "seconds": options.seconds,
        "seed": seed,
        "machine": machine(),
    }
    say(json.dumps(line))
    return 1 if wrong else 0


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
