"""A soak at its shortest, with a seed of its own each time: what fails can be had again with what the message says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.soak.book import TARGETS, missed
from loadtest.soak.faults import PART
from tests.support.mesh import ROOT

SECONDS = 30
HANGS_ON_THE_MACHINE = {"longest_gap_s", "failed_pct", "added_p99_ms", "rss_growth_pct"}
"""Of a machine that does other tests meanwhile; `make soak` holds the mesh to them."""


UNSEEN = "usage_error_tokens"
"""What a gateway sends while it is parted from Envoy is in its kernel's buffers, and billed (ADR 35)."""


@pytest.mark.timeout(500)  # and the end of the mesh that other drills shared
def test_what_the_clients_saw_is_what_the_mesh_recorded() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.soak", "--seconds", str(SECONDS), "--streams", "4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    told = json.loads(lines[-1])
    figures = {name: told[name] for name in TARGETS if name in told}
    assert told["finished"] > 0
    assert sum(told["faults"].values()) > 0
    assert set(told["unmeasured"]) | set(figures) >= set(TARGETS)
    broken = set(missed(figures)) - HANGS_ON_THE_MACHINE - ({UNSEEN} if told["faults"].get(PART) else set())
    assert not broken, "\n".join([f"seed {told['seed']}: {sorted(broken)}", *lines])
