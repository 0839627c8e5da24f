"""Who is to be scraped, in the form of Prometheus's HTTP service discovery. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from weir.registry.v1 import registry_pb2


def targets_of(endpoints: Iterable[registry_pb2.Endpoint]) -> bytes:
    """JSON: a group for each process that has a metrics page. Its job is its service, its instance its name; a target's
    label with the name of one of a metric's own would rename that one."""
    groups = [
        {
            "targets": [each.metrics_address],
            "labels": {"job": each.service, "instance": each.instance, "weir_internal_zone": each.zone},
        }
        for each in sorted(endpoints, key=lambda each: (each.service, each.instance))
        if each.metrics_address
    ]
    return msgspec.json.encode(groups)
