"""Keeps this process's endpoint in the registry while it serves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from google.protobuf import timestamp_pb2
from weir.registry.v1 import registry_pb2

from libs.config import ServiceSettings


async def keep_endpoint(settings: ServiceSettings, port: int, extra: Mapping[str, Any]) -> None:
    """Register `host:port` under a lease until cancelled; the lease is revoked then."""
    from libs.registry import EndpointRegistration, EtcdStore

    endpoint = registry_pb2.Endpoint(
        service=settings.service,
        instance=settings.instance,
        address=f"{settings.host}:{port}",
        zone=settings.zone,
        metrics_address=f"{settings.host}:{settings.metrics_port}" if settings.metrics_port else "",
        started_at=timestamp_pb2.Timestamp(seconds=int(time.time())),
        **extra,
    )
    store = EtcdStore(settings.etcd, tls=settings.tls)
    try:
        await EndpointRegistration(store, endpoint).run()
    finally:
        await store.close()
