"""One prediction from its arrival to its end: `Call` → `Answer`, or a `WeirError`."""

from __future__ import annotations

import enum

import msgspec
from inference.open_inference_pb2 import ModelInferRequest, ModelInferResponse

from libs.errors import WeirError
from libs.routing import Route, RouteRequest
from libs.telemetry.tracing import Span


class Rank(enum.IntEnum):
    """Whose requests run first, as admission has it (workers' `Submit.priority`); smaller is more urgent."""

    PAID = 0
    FREE = 1
    OVER_QUOTA = 5
    BATCH = 10
    MIRRORED = 20


class Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Who asks for what, of which version, and until when."""

    request: ModelInferRequest
    tenant: str
    key_id: str = ""
    request_counted: bool = False
    """The edge has taken it from requests per minute."""
    model: str
    """As the caller named it: an alias, or a pinned "name@version"."""
    user: str = ""
    session: str = ""
    route: Route
    """The version that is to answer, which is registered, its arm and rollout, and whom its copy goes to."""
    request_id: str
    client_request_id: str = ""
    rows: int
    """What it asks about, at least 1; 1 of a version that takes its inputs whole."""
    arrived: float
    """Monotonic seconds."""
    edge: float = 0.0
    """Seconds that it was under way before, as far as the edge told."""
    deadline: float
    """Monotonic seconds; a little of the caller's own time is left for the way back."""
    given: float
    """Seconds that its caller gave it, or we did."""
    rank: Rank
    """By its plan, and lower where the caller asked for that; the account may lower it further."""
    degradable: bool = True
    """It may be answered by something else than the version's own, fresh computation."""
    span: Span

    @property
    def question(self) -> RouteRequest:
        """What decides the route: by what its caller keeps its arm."""
        return RouteRequest(self.tenant, self.model, user=self.user, session=self.session, request_id=self.request_id)

    @property
    def version(self) -> str:
        """The version that is to answer, "name@version"."""
        return self.route.model_version

    @property
    def traceparent(self) -> str:
        """Of its span."""
        return self.span.traceparent


class Stages(msgspec.Struct, kw_only=True):
    """Seconds that each stage of a call took; 0 of one that there was none of."""

    edge: float = 0.0
    decode: float = 0.0
    queue: float = 0.0
    """Until its batch began."""
    batch: float = 0.0
    """Putting its batch's inputs together, and taking the outputs apart."""
    compute: float = 0.0
    encode: float = 0.0


class Answer(msgspec.Struct, kw_only=True, eq=False):
    """What a call got."""

    response: ModelInferResponse
    version: str
    """That gave it; another than the call's where it is degraded."""
    rows: int
    stages: Stages
    batch_rows: int = 0
    """Rows of the batch that it ran in; 0 where nothing ran for it."""
    cached: bool = False
    """Nothing ran: the same was asked before, a moment ago or at the same time."""
    degraded: tuple[str, ...] = ()
    """What the ladder did, see `ladder.py`, and what was put in place of values, see `rules.py`; empty: it is what was
    asked for."""
    cause: WeirError | None = None
    """What the call's own version ended with, where it is degraded: its caller does not hear it, its arm does."""
