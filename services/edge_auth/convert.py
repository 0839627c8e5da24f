"""Registry messages → policy values."""

from google.protobuf import timestamp_pb2
from weir.registry.v1 import registry_pb2

from libs.rollouts import SHADOW_TENANT
from services.edge_auth.policy.types import NEVER, KeyRecord, TenantRecord

_PLANS = {registry_pb2.PLAN_FREE: "free", registry_pb2.PLAN_PAID: "paid"}


def key_record(key: registry_pb2.ApiKey) -> KeyRecord:
    """The key without its hash."""
    expires = _seconds(key.expires_at) if key.HasField("expires_at") else NEVER
    return KeyRecord(key.id, key.tenant, frozenset(key.scopes), expires, key.HasField("revoked_at"))


def tenant_record(tenant: registry_pb2.Tenant) -> TenantRecord:
    """The tenant. Mirrored traffic has one of its own, which no caller can be, whatever keys it is given: it gets no
    plan here."""
    plan = "" if tenant.id == SHADOW_TENANT else _PLANS.get(tenant.plan, "")
    return TenantRecord(tenant.id, plan, tenant.jwt_issuer)


def _seconds(moment: timestamp_pb2.Timestamp) -> float:
    return moment.seconds + moment.nanos / 1e9
