"""Names of resources and their type URLs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

EDGE = "edge"
"""Node cluster of Envoy."""
MESH = "mesh"
"""Node cluster of the services' own `xds:///` channels."""
KEYED = "gateway-keyed"
"""Cluster: the gateways, chosen by a request's idempotency key, so that one of them knows what the key stands for."""
KEY_HEADER = "idempotency-key"
"""Where the key is."""
PREDICTOR = "predictor"
CONTROLPLANE = "controlplane"
"""Envoy's own cluster of control planes, which its bootstrap names."""
"""The service whose endpoints answer unary predictions, for the model versions that they name."""

CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105 - xDS's word for a resource type
ENDPOINTS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
ROUTES = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
EXTENSION = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"

ORDER = (CLUSTER, SECRET, ENDPOINTS, LISTENER, ROUTES, EXTENSION)
"""Make before break: whatever a resource points at is sent before it."""

Resource = Mapping[str, Any]
"""One resource in the protobuf JSON form of its type."""
Resources = Mapping[str, Mapping[str, Resource]]
"""Type URL → name → resource."""


class Piece(dict[str, Any]):
    """A resource, or a part of one, that is made once and shared by snapshots. It must not be changed.

    It equals only itself, so that what was found out about it can be remembered, and comparing two snapshots with a
    thousand of them costs a thousand pointers.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


_Asked = ParamSpec("_Asked")
_Fact = TypeVar("_Fact")


def shared(make: Callable[_Asked, Piece]) -> Callable[_Asked, Piece]:
    """The function, which gives the same piece for the same arguments as long as anybody holds it.

    The published snapshot holds its pieces, so what is remembered is what is served: a registry that changes for years
    leaves nothing behind.
    """
    made: WeakValueDictionary[object, Piece] = WeakValueDictionary()

    @wraps(make)
    def found(*args: _Asked.args, **named: _Asked.kwargs) -> Piece:
        asked = (args, *named.items())
        piece = made.get(asked)
        if piece is None:
            made[asked] = piece = make(*args, **named)
        return piece

    return found


def remembered(find: Callable[[Piece], _Fact]) -> Callable[[Piece], _Fact]:
    """The function, which looks at a piece once and forgets what it found when the piece goes."""
    facts: WeakKeyDictionary[Piece, _Fact] = WeakKeyDictionary()

    @wraps(find)
    def found(piece: Piece) -> _Fact:
        try:
            return facts[piece]
        except KeyError:
            fact = facts[piece] = find(piece)
            return fact

    return found


def dns_form(service: str) -> str:
    """A service's name as it occurs in DNS names: dashes, not underscores."""
    return service.replace("_", "-")


ADS: Resource = {"ads": {}, "resource_api_version": "V3"}
"""The config source of everything that comes over the same stream."""
