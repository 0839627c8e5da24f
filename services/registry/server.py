"""The servicer: who calls, what they want, what came of it. Decisions are in `changes` and `policy`."""

# ruff: noqa: N802 - methods are named as in the proto

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs import apikeys
from libs.changes import Committed, M, Plan, Writer
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.rpc import get_metadata, peer_service, peer_spiffe
from libs.telemetry import get_logger
from services.registry import changes, convert, metrics
from services.registry.config import Settings
from services.registry.policy.access import Caller, Refused, authorize, parse_scopes

log = get_logger(__name__)
SERVICE = "weir.registry.v1.RegistryService"


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """`weir.registry.v1.RegistryService`. Reads come from the view's snapshot, also while etcd is away."""

    def __init__(
        self,
        *,
        settings: Settings,
        view: RegistryView,
        writer: Writer,
        pepper: bytes,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._settings = settings
        self._view = view
        self._writer = writer
        self._pepper = pepper
        self._clock = clock
        self._random_bytes = random_bytes

    async def CreateModelVersion(
        self, request: pb.CreateModelVersionRequest, context: grpc.aio.ServicerContext
    ) -> pb.CreateModelVersionResponse:
        """See the proto."""
        now = self._clock.time()
        done = await self._change(
            "CreateModelVersion",
            context,
            lambda snapshot: changes.create_model_version(snapshot, request.model_version, now),
        )
        return pb.CreateModelVersionResponse(model_version=done.message, revision=done.revision)

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListModelsResponse:
        """See the proto."""
        self._authorize(context)
        snapshot = self._view.snapshot
        return pb.ListModelsResponse(
            model_versions=_in_order(snapshot.model_versions), aliases=_in_order(snapshot.aliases)
        )

    async def SetAlias(self, request: pb.SetAliasRequest, context: grpc.aio.ServicerContext) -> pb.SetAliasResponse:
        """See the proto."""
        done = await self._change("SetAlias", context, lambda snapshot: changes.set_alias(snapshot, request.alias))
        return pb.SetAliasResponse(alias=done.message)

    async def SetTenant(self, request: pb.SetTenantRequest, context: grpc.aio.ServicerContext) -> pb.SetTenantResponse:
        """See the proto."""
        done = await self._change("SetTenant", context, lambda snapshot: changes.set_tenant(snapshot, request.tenant))
        return pb.SetTenantResponse(tenant=done.message)

    async def ListTenants(
        self, request: pb.ListTenantsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListTenantsResponse:
        """See the proto."""
        self._authorize(context)
        return pb.ListTenantsResponse(tenants=_in_order(self._view.snapshot.tenants))

    async def CreateKey(self, request: pb.CreateKeyRequest, context: grpc.aio.ServicerContext) -> pb.CreateKeyResponse:
        """See the proto."""
        now = self._clock.time()
        made = apikeys.make(self._random_bytes)
        hashed = apikeys.hash_key(made, self._pepper)
        done = await self._change(
            "CreateKey",
            context,
            lambda snapshot: changes.create_key(snapshot, request, made, hashed, now),
        )
        return pb.CreateKeyResponse(key=convert.without_hash(done.message), secret=made.text)

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: grpc.aio.ServicerContext) -> pb.RevokeKeyResponse:
        """See the proto."""
        now = self._clock.time()
        done = await self._change(
            "RevokeKey", context, lambda snapshot: changes.revoke_key(snapshot, request.key_id, now)
        )
        return pb.RevokeKeyResponse(key=convert.without_hash(done.message))

    async def ListKeys(self, request: pb.ListKeysRequest, context: grpc.aio.ServicerContext) -> pb.ListKeysResponse:
        """See the proto."""
        self._authorize(context)
        keys = self._view.snapshot.keys
        return pb.ListKeysResponse(
            keys=[
                convert.without_hash(keys[key_id])
                for key_id in sorted(keys)
                if request.tenant in ("", keys[key_id].tenant)
            ]
        )

    async def SetLimits(self, request: pb.SetLimitsRequest, context: grpc.aio.ServicerContext) -> pb.SetLimitsResponse:
        """See the proto."""
        done = await self._change("SetLimits", context, lambda snapshot: changes.set_limits(snapshot, request.limits))
        return pb.SetLimitsResponse(limits=done.message)

    async def ListLimits(
        self, request: pb.ListLimitsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListLimitsResponse:
        """See the proto."""
        self._authorize(context)
        limits = self._view.snapshot.limits
        return pb.ListLimitsResponse(limits=[limits[key] for key in sorted(limits) if request.tenant in ("", key[0])])

    async def SetPlanPolicy(
        self, request: pb.SetPlanPolicyRequest, context: grpc.aio.ServicerContext
    ) -> pb.SetPlanPolicyResponse:
        """See the proto."""
        done = await self._change(
            "SetPlanPolicy", context, lambda snapshot: changes.set_plan_policy(snapshot, request.plan)
        )
        return pb.SetPlanPolicyResponse(plan=done.message)

    async def ListPlanPolicies(
        self, request: pb.ListPlanPoliciesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListPlanPoliciesResponse:
        """See the proto."""
        self._authorize(context)
        return pb.ListPlanPoliciesResponse(plans=_in_order(self._view.snapshot.plans))

    async def SetSlo(self, request: pb.SetSloRequest, context: grpc.aio.ServicerContext) -> pb.SetSloResponse:
        """See the proto."""
        done = await self._change("SetSlo", context, lambda snapshot: changes.set_slo(snapshot, request.slo))
        return pb.SetSloResponse(slo=done.message)

    async def ListSlos(self, request: pb.ListSlosRequest, context: grpc.aio.ServicerContext) -> pb.ListSlosResponse:
        """See the proto."""
        self._authorize(context)
        return pb.ListSlosResponse(slos=_in_order(self._view.snapshot.slos))

    async def SetPrice(self, request: pb.SetPriceRequest, context: grpc.aio.ServicerContext) -> pb.SetPriceResponse:
        """See the proto."""
        done = await self._change("SetPrice", context, lambda snapshot: changes.set_price(snapshot, request.price))
        return pb.SetPriceResponse(price=done.message)

    async def ListPrices(
        self, request: pb.ListPricesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListPricesResponse:
        """See the proto."""
        self._authorize(context)
        return pb.ListPricesResponse(prices=_in_order(self._view.snapshot.prices))

    async def ListPoolLevels(
        self, request: pb.ListPoolLevelsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListPoolLevelsResponse:
        """See the proto."""
        self._authorize(context)
        return pb.ListPoolLevelsResponse(levels=_in_order(self._view.snapshot.levels))

    async def SetSafetyPolicy(
        self, request: pb.SetSafetyPolicyRequest, context: grpc.aio.ServicerContext
    ) -> pb.SetSafetyPolicyResponse:
        """See the proto."""
        done = await self._change(
            "SetSafetyPolicy", context, lambda snapshot: changes.set_safety_policy(snapshot, request.policy)
        )
        return pb.SetSafetyPolicyResponse(policy=done.message)

    async def ListEndpoints(
        self, request: pb.ListEndpointsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListEndpointsResponse:
        """See the proto."""
        self._authorize(context)
        endpoints = self._view.snapshot.endpoints
        return pb.ListEndpointsResponse(
            endpoints=[endpoints[key] for key in sorted(endpoints) if request.service in ("", key[0])]
        )

    def _authorize(self, context: grpc.aio.ServicerContext) -> str:
        """The actor for the audit log.

        :raises WeirError: SCOPE_MISSING or PERMISSION_DENIED.
        """
        caller = Caller(
            peer=peer_service(context),
            spiffe=peer_spiffe(context),
            scopes=parse_scopes(get_metadata(context, "x-weir-scopes")),
            key_id=get_metadata(context, "x-weir-key-id"),
            tenant=get_metadata(context, "x-weir-tenant"),
        )
        actor = authorize(caller, admin_services=self._settings.admin_services, tls=self._settings.tls is not None)
        if isinstance(actor, Refused):
            log.warning("admin_refused", peer=caller.peer, key_id=caller.key_id)
            reason = Reason.SCOPE_MISSING if actor.scope_missing else Reason.PERMISSION_DENIED
            raise WeirError(reason, actor.message)
        return actor

    async def _change(self, action: str, context: grpc.aio.ServicerContext, plan: Plan[M]) -> Committed[M]:
        try:
            actor = self._authorize(context)
            done = await self._writer.commit(actor=actor, action=f"registry.{action}", plan=plan)
        except WeirError as error:
            metrics.changes.labels(action, error.reason.name).inc()
            raise
        metrics.changes.labels(action, "unchanged" if done.unchanged else "ok").inc()
        if not done.unchanged:
            log.info("registry_changed", action=action, actor=actor, revision=done.revision)
        return done


def _in_order(collection: Mapping[Any, M]) -> list[M]:
    """A collection's messages by key."""
    return [collection[key] for key in sorted(collection)]
