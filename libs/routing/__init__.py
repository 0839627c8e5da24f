"""Which version, pool and zones a request goes to: pure functions of a registry snapshot.

The router service decides with them; the gateway uses the very same ones on its last snapshot while the router is
away, so both give the same answer for the same snapshot.
"""

from libs.routing.assignment import Target, assign, bucket_of
from libs.routing.table import WORKER_SERVICE, ListedModel, Route, RouteRequest, RoutingTable, list_models, resolve

__all__ = [
    "WORKER_SERVICE",
    "ListedModel",
    "Route",
    "RouteRequest",
    "RoutingTable",
    "Target",
    "assign",
    "bucket_of",
    "list_models",
    "resolve",
]
