"""The safety filter's bench runs and ends as every bench does."""

from __future__ import annotations

import json
import subprocess
import sys

from loadtest.bench_safety import TARGETS
from tests.support.mesh import ROOT


def test_it_ends_with_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.bench_safety", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["bench"] == "safety"
    assert TARGETS.keys() <= line["figures"].keys()
    assert line["figures"]["evasions_caught_pct"] >= 99
    assert line["figures"]["false_alarms_per_million_chars"] == 0
    assert line["machine"]["cpus"]
