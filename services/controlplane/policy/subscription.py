"""One client's ADS stream as a pure state machine: what it wants, what it has, what it is owed.

State of the World, after "xDS REST and gRPC protocol" (Envoy's documentation) with these choices:

* A request whose nonce is not the last one sent for its type is stale and changes nothing: the answer to the last one
  brings the client's present names along.
* Clusters and listeners are answered in full; of the other types only what changed is sent, as the protocol allows.
* What points at clusters (listeners, routes) waits until Envoy has acknowledged the clusters that it was sent, which it
  does when all of them have warmed up (`ClusterManagerImpl::updateClusterCounts`): until then requests on such routes
  would fail. gRPC clients ask for each cluster by name and keep the old routes until they have what new ones need.
* A refusal is no such word for the clusters that it is about: what names one of them stays as the client has it, while
  everything else goes on. A client that has nothing yet gets it all the same: without routes everything would fail.
* After a cluster (listener) was sent, its endpoints (routes, secrets, filters) are sent again, since Envoy warms the
  new one up by waiting for them.
* A refused resource is not sent again until it changes.
* On a new stream everything is sent once: clients compare contents and keep what is equal.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from services.controlplane.policy.names import CLUSTER, ENDPOINTS, EXTENSION, LISTENER, ORDER, ROUTES, SECRET

_FULL = frozenset({CLUSTER, LISTENER})
_DEPENDENTS = {CLUSTER: (ENDPOINTS, SECRET), LISTENER: (ROUTES, SECRET, EXTENSION)}
_NEEDS_CLUSTERS = frozenset({LISTENER, ROUTES})


class Kind(enum.Enum):
    """What a request from the client meant."""

    SUBSCRIBE = "subscribe"
    """First for its type on this stream."""
    ACK = "ack"
    NACK = "nack"
    STALE = "stale"
    """Answers a response that was superseded."""
    UNKNOWN_TYPE = "unknown_type"
    """A type that is never served; the client simply gets nothing."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served of one type: its version and, by name, values that are equal exactly when they are the same
    object."""

    version: str
    resources: Mapping[str, Any]
    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of listeners and routes: name → the clusters that it names."""


@dataclass(frozen=True, slots=True)
class Response:
    """One message owed to the client."""

    type_url: str
    version: str
    nonce: str
    resources: tuple[Any, ...]


@dataclass(slots=True)
class TypeState:
    """One type on one stream."""

    wildcard: bool
    names: frozenset[str]
    nonce: str = ""
    sent_version: str = ""
    sent: dict[str, Any] = field(default_factory=dict)
    """Name → the value last sent, or None when its absence was told."""
    has: dict[str, Any] = field(default_factory=dict)
    """Name → the value last sent, also where it is due once more."""
    usable: frozenset[str] = frozenset()
    """Names that the client has taken, in some version."""
    acked_version: str = ""
    nacked_version: str = ""
    nack_detail: str = ""
    answered: bool = False
    """The last response was acknowledged or refused."""
    responded: bool = False
    """Something was sent on this stream."""
    changed_at: float = 0.0
    """When the state last changed, in the caller's clock."""

    def wanted(self, resources: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name → value of everything subscribed; None for what is not there."""
        return resources if self.wildcard else {name: resources.get(name) for name in self.names}


class Subscriptions:
    """The stream's state. Not shared between streams."""

    def __init__(self) -> None:
        self.types: dict[str, TypeState] = {}
        self._nonce = 0

    def on_request(
        self, type_url: str, names: Sequence[str], nonce: str, error: str | None, now: float
    ) -> tuple[Kind, str]:
        """Take a request in. `error` is the client's complaint on a refusal. Returns what it meant and the version
        that it was about."""
        if type_url not in ORDER:
            return Kind.UNKNOWN_TYPE, ""
        state = self.types.get(type_url)
        if state is None:
            wildcard = type_url in _FULL and (not names or "*" in names)
            self.types[type_url] = TypeState(wildcard=wildcard, names=frozenset(names), changed_at=now)
            return Kind.SUBSCRIBE, ""
        if nonce != state.nonce:
            return Kind.STALE, ""
        if not state.wildcard:
            state.names = frozenset(names)
            state.sent = {name: value for name, value in state.sent.items() if name in state.names}
        if state.answered or not state.responded:
            # A change of names between responses, not an answer.
            return Kind.SUBSCRIBE, ""
        state.answered = True
        state.changed_at = now
        if error is not None:
            state.nacked_version, state.nack_detail = state.sent_version, error
            state.usable = frozenset(state.sent) - _refused(frozenset(state.sent) - state.usable, state.usable, error)
            return Kind.NACK, state.sent_version
        state.acked_version, state.usable = state.sent_version, frozenset(state.sent)
        state.nacked_version = state.nack_detail = ""
        return Kind.ACK, state.sent_version

    def due(self, offers: Mapping[str, Offer], now: float) -> list[Response]:
        """What must be sent now, in the order in which it must be sent; it counts as sent from here on."""
        responses = []
        for type_url in ORDER:
            state = self.types.get(type_url)
            offer = offers.get(type_url)
            if state is None or offer is None or (type_url in _NEEDS_CLUSTERS and self._warming()):
                continue
            response = self._due(type_url, state, offer, now)
            if response is not None:
                responses.append(response)
        return responses

    def _warming(self) -> bool:
        """Envoy has not yet said that it can use the clusters that it was sent."""
        clusters = self.types.get(CLUSTER)
        return clusters is not None and clusters.wildcard and clusters.responded and not clusters.answered

    def _refused(self) -> frozenset[str]:
        """The clusters that Envoy was sent and has in no version."""
        clusters = self.types.get(CLUSTER)
        return frozenset() if clusters is None or not clusters.wildcard else frozenset(clusters.sent) - clusters.usable

    def _due(self, type_url: str, state: TypeState, offer: Offer, now: float) -> Response | None:
        wanted = state.wanted(offer.resources)
        if type_url in _NEEDS_CLUSTERS and (refused := self._refused()):
            wanted = {
                name: state.has[name] if state.has.get(name) and offer.needs.get(name, refused) & refused else value
                for name, value in wanted.items()
            }
        missing = object()
        changed = [name for name, value in wanted.items() if state.sent.get(name, missing) is not value]
        gone = type_url in _FULL and any(name not in wanted for name in state.sent)
        if not changed and not gone and (state.responded or type_url not in _FULL):
            return None
        chosen = sorted(wanted) if type_url in _FULL else sorted(changed)
        resources = tuple(wanted[name] for name in chosen if wanted[name] is not None)
        if type_url not in _FULL and not resources:
            # Absence is only told for clusters and listeners; the others follow from them.
            return None
        for dependent in _DEPENDENTS.get(type_url, ()):
            if dependent in self.types and changed:
                self.types[dependent].sent.clear()
        state.sent = {**state.sent, **wanted} if type_url not in _FULL else dict(wanted)
        state.has |= state.sent
        self._nonce += 1
        state.nonce = str(self._nonce)
        state.sent_version = offer.version
        state.answered = False
        state.responded = True
        state.changed_at = now
        return Response(type_url, offer.version, state.nonce, resources)


def _refused(new: Set[str], before: Set[str], complaint: str) -> Set[str]:
    """Which of the names that are new to Envoy it has not taken: it takes the others, and complains of each as
    "name: why" (`CdsApiHelper::onConfigUpdate`). Where it names none, that is all of them, unless there were none
    before: then nobody knows."""
    named = {name for name in new if re.search(rf"(?:^|\s){re.escape(name)}: ", complaint)}
    return named or (new if before else frozenset())
