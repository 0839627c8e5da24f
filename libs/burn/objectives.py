"""The objectives that a declared SLO contains, as shares of good events."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2 as pb

_PERCENTILES = {"ttft_p95": 0.95, "itl_p95": 0.95, "e2e_p95": 0.95, "e2e_p99": 0.99}
_SHARES = ("availability", "stream_completion")


def slo_targets(slo: pb.Slo) -> dict[str, float]:
    """Objective → the share of events that must be good, for those that the SLO declares.

    "95 of 100 first tokens within two seconds" is an objective of 0.95 over the events "a first token came within two
    seconds": so latency has an error budget as availability has.
    """
    targets = {name: share for name, share in _PERCENTILES.items() if slo.HasField(name)}  # type: ignore[arg-type]
    targets.update({name: share for name in _SHARES if (share := getattr(slo, name))})
    return targets
