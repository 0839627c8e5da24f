"""Which version, pool and zones a request goes to: pure functions of a registry snapshot.

Gateways and routers resolve with the very same ones, and so give the same answer for the same snapshot. The edge places
callers with them for Envoy. See README.md.
"""

from libs.routing.assignment import Layout, Target, assign, bucket_of, lay_out
from libs.routing.split import BUCKETS, Placement, Split, choose_tenants, place, rules_of
from libs.routing.table import (
    WORKER_SERVICE,
    ListedModel,
    Mirror,
    Route,
    RouteRequest,
    RoutingTable,
    list_models,
    resolve,
)

__all__ = [
    "BUCKETS",
    "WORKER_SERVICE",
    "Layout",
    "ListedModel",
    "Mirror",
    "Placement",
    "Route",
    "RouteRequest",
    "RoutingTable",
    "Split",
    "Target",
    "assign",
    "bucket_of",
    "choose_tenants",
    "lay_out",
    "list_models",
    "place",
    "resolve",
    "rules_of",
]
