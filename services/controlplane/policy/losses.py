"""Requests that the edge answered or broke off by itself because those behind it did not: no gateway counts them.

A dead gateway takes its own counts with it, and of what Envoy refuses no process of the mesh ever hears. Envoy tells of
such requests here (its access log over gRPC, see `edge.py`), and they count against the availability of their route.

What a caller did himself, and what a process behind the edge has answered, is not among them: the one is nobody's loss,
the other is counted where it was answered. A request that was tried again and then served has no flag.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from libs import paths

OURS = frozenset({"UH", "UF", "UO", "UC", "UT", "UPE", "LR", "NC", "OM"})
"""Envoy's response flags (`%RESPONSE_FLAGS%`) for what was lost behind it or refused for want of its own room. Not UR:
who resets a stream lives, and counts it by itself (a deadline that has passed, a reader that reads nothing)."""
REFUSED_OR_AWAY = "UAEX"
"""ext_authz denied it, or did not answer: the details tell which."""
CALLERS = frozenset({"DC", "DR", "DPE"})
"""The caller left, or broke the protocol."""
ASKED_FOR = (*sorted(OURS), REFUSED_OR_AWAY)
"""Flags of requests that Envoy is to tell of."""

_ANSWERED = "via_upstream"
_AWAY = "ext_authz_error"
_BEGUN = "upstream_reset_after_response_started"
_ROUTES = {
    paths.CHAT: "generate",
    paths.COMPLETIONS: "generate",
    paths.NATIVE: "generate",
    paths.EMBED: "embed",
}
"""The edge's routes that ask for answers, as objectives call them; those of predictions are known by their cluster."""
_PREDICTIONS = ("prediction/", "predictor/")


@dataclass(frozen=True, slots=True)
class Ended:
    """A request as Envoy tells of it."""

    route: str
    """The name of the edge's route; empty where there was none yet."""
    cluster: str
    flags: Set[str]
    details: str
    """How its answer came about (`%RESPONSE_CODE_DETAILS%`)."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What it counts against."""

    route: str
    """As objectives call it."""
    model_version: str
    """Empty where the edge does not know it: it is in a body that the edge does not read."""
    begun: bool
    """Its stream had begun."""


def loss_of(ended: Ended) -> Loss | None:
    """What a request that has ended counts against; None: nothing."""
    route, version = _ROUTES.get(ended.route, ""), ""
    for prefix in _PREDICTIONS:
        if ended.cluster.startswith(prefix):
            route, version = "predict", ended.cluster.removeprefix(prefix)
    if not route or ended.flags & CALLERS or ended.details.startswith(_ANSWERED):
        return None
    if not (ended.flags & OURS or ended.details.startswith(_AWAY)):
        return None
    return Loss(route, version, begun=route == "generate" and ended.details.startswith(_BEGUN))
