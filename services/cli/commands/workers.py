"""`weir workers`, `weir endpoints`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.output import Json, failures, plain, print_json, print_table, timestamp


def workers(as_json: Json = False) -> None:
    """List the live workers and what they have ready."""
    with failures():
        found = _endpoints("worker")
    if as_json:
        print_json({"workers": [plain(worker) for worker in found]})
        return
    print_table(
        ("WORKER", "ZONE", "POOL", "ENGINE", "MODELS", "ADDRESS", "SINCE"),
        (
            (
                worker.instance,
                worker.zone,
                worker.pool,
                worker.engine + (" (simulated)" if worker.simulated else ""),
                list(worker.model_versions),
                worker.address,
                timestamp(worker.started_at)[:19],
            )
            for worker in found
        ),
        empty="no workers are registered",
    )


def endpoints(service: Annotated[str, typer.Option(help="Only this service's.")] = "", as_json: Json = False) -> None:
    """List the live processes of all services."""
    with failures():
        found = _endpoints(service)
    if as_json:
        print_json({"endpoints": [plain(endpoint) for endpoint in found]})
        return
    print_table(
        ("SERVICE", "INSTANCE", "ZONE", "ADDRESS", "METRICS", "SINCE"),
        (
            (
                endpoint.service,
                endpoint.instance,
                endpoint.zone,
                endpoint.address,
                endpoint.metrics_address,
                timestamp(endpoint.started_at)[:19],
            )
            for endpoint in found
        ),
        empty="no endpoints are registered",
    )


def _endpoints(service: str) -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListEndpoints", registry_pb2.ListEndpointsRequest(service=service)).endpoints)
