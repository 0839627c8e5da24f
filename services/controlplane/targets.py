"""Who is to be scraped, in the form of Prometheus's HTTP service discovery. Pure."""

from __future__ import annotations

import msgspec

from libs.resources.snapshot import RegistrySnapshot


def targets_of(snapshot: RegistrySnapshot) -> bytes:
    """JSON: a group for each process that has a metrics page and a lease, ready or not: one that cannot serve has the
    most to tell. Its job is its service, its instance its name; a target's label with the name of one of a metric's own
    would rename that one."""
    endpoints = [*snapshot.endpoints.values(), *snapshot.unready.values()]
    groups = [
        {
            "targets": [each.metrics_address],
            "labels": {"job": each.service, "instance": each.instance, "weir_internal_zone": each.zone},
        }
        for each in sorted(endpoints, key=lambda each: (each.service, each.instance))
        if each.metrics_address
    ]
    return msgspec.json.encode(groups)
