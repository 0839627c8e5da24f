"""Some alerts, each from a real fault to its end, before a real Prometheus and Alertmanager. How fast is left to
`make drill-alerts`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loadtest.alerts.drills import QUICK
from tests.support.mesh import ROOT
from tests.support.prometheus import program


@pytest.mark.timeout(600)
def test_alerts_fire_from_real_faults_and_end_with_them() -> None:
    for name in ("prometheus", "alertmanager"):
        program(name)
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.alerts", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    told = json.loads(lines[-1])
    assert not told["not_fired"], "\n".join(lines)
    assert told["figures"]["alerts_fired"] == told["figures"]["alerts_ended"] == len(QUICK), "\n".join(lines)
