"""The simulated part of the rollouts' bench runs and ends as every bench does; the others need minutes of a mesh."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.mesh import ROOT


def test_it_ends_with_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench_rollout", "--quick", "--only", "simulated"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["bench"] == "rollout"
    for bias in ("slower_successes", "few_keys", "unequal_tenants"):
        assert line["figures"][f"healthy_rollbacks_{bias}"] == 0
        assert line["targets"][f"healthy_rollbacks_{bias}"] == "= 0"
    assert 0 < line["figures"]["simulated_errors_30pct_s_p50"] < 60
    # No request ends: the deadline of 120 s is what tells.
    assert 120 < line["figures"]["simulated_hangs_always_s_p50"] < 200
    assert line["machine"]["cpus"]
