"""What a stranger's names do to the metrics: as many tenants and models as somebody likes to make up.

`python -m loadtest.observe.names NAMES` is a process of its own, so that nobody else's series are counted.
"""

from __future__ import annotations

import subprocess
import sys

from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2

from libs.outcomes import tenants
from libs.telemetry import accelerators
from services.gateway import metrics

NAMES = 1_000_000


def series_after(names: int = NAMES) -> int:
    """Series of this process after a request by each of so many tenants for a model of its own, a millisecond apart,
    refused or served as requests are: what gateways, predictors and workers count of them."""
    for number in range(names):
        tenant, now = f"tenant-{number}", number / 1000
        refused = bool(number % 2)
        event = audit_pb2.RequestEvent(
            tenant=tenant,
            model=f"made-up-{number}",
            outcome="rejected" if refused else "stop",
            prompt_tokens=0 if refused else 7,
            completion_tokens=0 if refused else 5,
            spend_microusd=0 if refused else 3,
        )
        metrics.outcome("chat", event.outcome, "MODEL_NOT_FOUND" if refused else "").inc()
        tenants.count(event, now)
        accelerators.used(tenant, 0.01, now)
    return sum(len(family.samples) for family in REGISTRY.collect())


def measured(names: int) -> int:
    """The same of a new process."""
    command = [sys.executable, "-m", "loadtest.observe.names", str(names)]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout)


if __name__ == "__main__":
    print(series_after(int(sys.argv[1])))  # noqa: T201
