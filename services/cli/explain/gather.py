"""Asks the services for what `explain` needs."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.errors import WeirError
from libs.registry import RegistrySnapshot
from services.cli import calls, scrape
from services.cli.config import NoMeshError
from services.cli.explain.tenant import Facts, explain


def tell(tenant: str, *, records: int) -> dict[str, Any] | None:
    """See `explain`; None when the registry has no such tenant. What else cannot be asked is left out.

    :raises WeirError, NoMeshError: the registry cannot be asked.
    """
    snapshot = calls.with_channel("registry", _snapshot)
    if tenant not in snapshot.tenants:
        return None
    addresses: dict[str, list[str]] = {}
    for endpoint in snapshot.endpoints.values():
        if endpoint.service in scrape.REFUSALS and endpoint.metrics_address:
            addresses.setdefault(endpoint.service, []).append(endpoint.metrics_address)
    found = _records(tenant, records)
    facts = Facts(
        snapshot=snapshot,
        records=found,
        now=time.time(),
        whole=found is not None and len(found) < records,
        mesh=scrape.refusals(scrape.fetch(addresses)),
    )
    return explain(facts, tenant)


async def _snapshot(channel: Any) -> RegistrySnapshot:
    """The registry as its lists tell it; keys without their hashes, as it gives them away."""
    stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
    timeout = calls.TIMEOUT
    tenants, keys, limits, models, plans, slos, prices, levels, endpoints = await asyncio.gather(
        stub.ListTenants(pb.ListTenantsRequest(), timeout=timeout),
        stub.ListKeys(pb.ListKeysRequest(), timeout=timeout),
        stub.ListLimits(pb.ListLimitsRequest(), timeout=timeout),
        stub.ListModels(pb.ListModelsRequest(), timeout=timeout),
        stub.ListPlanPolicies(pb.ListPlanPoliciesRequest(), timeout=timeout),
        stub.ListSlos(pb.ListSlosRequest(), timeout=timeout),
        stub.ListPrices(pb.ListPricesRequest(), timeout=timeout),
        stub.ListPoolLevels(pb.ListPoolLevelsRequest(), timeout=timeout),
        stub.ListEndpoints(pb.ListEndpointsRequest(), timeout=timeout),
    )
    return RegistrySnapshot(
        tenants={each.id: each for each in tenants.tenants},
        keys={each.id: each for each in keys.keys},
        limits={(each.tenant, each.model): each for each in limits.limits},
        model_versions={f"{each.name}@{each.version}": each for each in models.model_versions},
        aliases={each.name: each for each in models.aliases},
        plans={each.id: each for each in plans.plans},
        slos={(each.route, each.tier): each for each in slos.slos},
        prices={each.model: each for each in prices.prices},
        levels={each.pool: each for each in levels.levels},
        endpoints={(each.service, each.instance): each for each in endpoints.endpoints},
    )


def _records(tenant: str, limit: int) -> list[audit_pb2.Record] | None:
    request = audit_pb2.TailRequest(tenant=tenant, limit=limit)
    try:
        answer = calls.with_channel(
            "audit", lambda channel: audit_pb2_grpc.AuditServiceStub(channel).Tail(request, timeout=calls.TIMEOUT)
        )
    except (WeirError, NoMeshError) as error:
        print(f"the audit log cannot be asked: {error}", file=sys.stderr)
        return None
    return [stored.record for stored in answer.records]
