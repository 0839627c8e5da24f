"""The registry as every process reads it: etcd behind a small port, immutable snapshots, endpoints under leases.

See README.md for the layout in etcd and for what holds when etcd is away.
"""

from libs.registry.etcd import EtcdStore
from libs.registry.follow import follow, followed_by
from libs.registry.memory import MemoryStore
from libs.registry.ports import (
    Compare,
    KeyValue,
    Listing,
    Put,
    Source,
    Store,
    TxnResult,
    WatchBatch,
    WatchEvent,
)
from libs.registry.registration import EndpointRegistration
from libs.registry.snapshot import apply_events, snapshot_of
from libs.registry.terms import (
    budget_specs,
    cost_book,
    kv_share_of,
    limit_specs,
    plan_name,
    plan_of,
    price_book,
    runners_of,
    slo_of,
    tier_of,
    weight_of,
)
from libs.registry.view import RegistryView
from libs.resources.snapshot import RegistrySnapshot

__all__ = [
    "Compare",
    "EndpointRegistration",
    "EtcdStore",
    "KeyValue",
    "Listing",
    "MemoryStore",
    "Put",
    "RegistrySnapshot",
    "RegistryView",
    "Source",
    "Store",
    "TxnResult",
    "WatchBatch",
    "WatchEvent",
    "apply_events",
    "budget_specs",
    "cost_book",
    "follow",
    "followed_by",
    "kv_share_of",
    "limit_specs",
    "plan_name",
    "plan_of",
    "price_book",
    "runners_of",
    "slo_of",
    "snapshot_of",
    "tier_of",
    "weight_of",
]
