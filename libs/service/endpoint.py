"""Keeps this process's endpoint in the registry while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import timestamp_pb2
from weir.registry.v1 import registry_pb2

from libs.authority.stores import ROWS, Row
from libs.config import ServiceSettings
from libs.config.addresses import join


async def keep_endpoint(
    settings: ServiceSettings,
    port: int,
    extra: Callable[[], Mapping[str, Any]],
    *,
    ready: Callable[[], bool],
    news: asyncio.Event,
) -> None:
    """Register where it is reached, under a lease, until cancelled; the lease is revoked then. `extra` gives further
    fields of the endpoint; both are asked anew each time that `news` is set. One that is not `ready` is registered as
    `leaving`, which nobody counts, so that its metrics are scraped all the same."""
    from libs.registry import EndpointRegistration, EtcdStore

    began: timestamp_pb2.Timestamp | None = None

    def endpoint() -> registry_pb2.Endpoint:
        nonlocal began
        news.clear()
        serving = ready()
        began = (began or timestamp_pb2.Timestamp(seconds=int(time.time()))) if serving else None
        return registry_pb2.Endpoint(
            service=settings.service,
            instance=settings.instance,
            address=join(settings.advertised, port),
            zone=settings.zone,
            region=settings.region,
            metrics_address=join(settings.advertised, settings.metrics_port) if settings.metrics_port else "",
            started_at=began,
            leaving=not serving,
            **extra(),
        )

    async def follow() -> None:
        while True:
            await news.wait()
            registration.update(endpoint())

    direct = ROWS.get(settings.service, Row()).direct
    store = EtcdStore(settings.etcd, tls=settings.tls, guarded=direct)
    registration = EndpointRegistration(store, endpoint())
    try:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follow(), name="endpoint.news")
            try:
                await registration.run()
            finally:
                following.cancel()
    finally:
        await store.close()
