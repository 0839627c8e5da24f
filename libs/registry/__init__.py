"""The registry as every process reads it: etcd behind a small port, immutable snapshots, endpoints under leases.

See README.md for the layout in etcd and for what holds when etcd is away.
"""

from libs.registry.etcd import EtcdStore
from libs.registry.memory import MemoryStore
from libs.registry.ports import (
    Compare,
    KeyValue,
    Listing,
    Put,
    Store,
    TlsPaths,
    TxnResult,
    WatchBatch,
    WatchEvent,
)
from libs.registry.registration import EndpointRegistration
from libs.registry.snapshot import RegistrySnapshot, apply_events, snapshot_of
from libs.registry.terms import (
    cost_book,
    kv_share_of,
    limit_specs,
    plan_name,
    plan_of,
    price_book,
    slo_of,
    weight_of,
)
from libs.registry.view import RegistryView

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
    "Store",
    "TlsPaths",
    "TxnResult",
    "WatchBatch",
    "WatchEvent",
    "apply_events",
    "cost_book",
    "kv_share_of",
    "limit_specs",
    "plan_name",
    "plan_of",
    "price_book",
    "slo_of",
    "snapshot_of",
    "weight_of",
]
