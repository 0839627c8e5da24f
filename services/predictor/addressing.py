"""Which version a call is for: what the edge chose, or what the body's name means for its tenant. Pure but for the
messages."""

from __future__ import annotations

from typing import NamedTuple

from inference.open_inference_pb2 import ModelInferRequest
from weir.registry.v1 import registry_pb2

from libs.errors import Reason, WeirError
from libs.registry import tier_of
from libs.routing import Route, RouteRequest, RoutingTable

_MOST_ROUTES = 10_000


class Routed(NamedTuple):
    """What the edge says of a call; all empty where it left the choice to whoever serves it."""

    model: str = ""
    """`x-weir-model`: the name that it was routed by, as its caller or its path wrote it."""
    version: str = ""
    """`x-weir-model-version`: the version that was chosen."""
    arm: str = ""
    rollout: str = ""


def full_name(name: str, version: str) -> str:
    """An alias, or a pinned "name@version", of the protocol's two fields.

    :raises WeirError: INVALID_REQUEST: there is no name, or two versions.
    """
    if not name:
        raise WeirError(Reason.INVALID_REQUEST, "model_name is empty", limit="model_name")
    base, at, pinned = name.partition("@")
    if not version:
        return name
    if at and pinned != version:
        message = f"model_name says version {pinned[:64]!r} and model_version {version[:64]!r}"
        raise WeirError(Reason.INVALID_REQUEST, message, limit="model_version")
    return f"{base}@{version}"


def route_of(table: RoutingTable, asked: RouteRequest, routed: Routed) -> Route:
    """Where the call goes.

    :raises WeirError: INVALID_REQUEST: it was routed by another model than its body names; MODEL_NOT_FOUND, which is
        also what a model is that the tenant may not use, or that generates; REGION_NOT_ALLOWED.
    """
    names = (routed.model, routed.version)
    if routed.model and asked.model not in names and asked.model.partition("@")[0] != routed.model:
        raise _not_routed(f"the request was routed as {routed.model[:100]!r}, its body names {asked.model[:100]!r}")
    if not routed.version:
        route = table.resolve(asked)
    else:
        if not table.access.may_use(asked.tenant, asked.model):
            raise _not_found(asked.model)
        if not _leads(table, asked.model, routed):
            message = f"the request was routed to {routed.version[:100]!r}, its body names {asked.model[:100]!r}"
            raise _not_routed(message)
        route = _as_routed(table, asked, routed)
    version_of(table, route.model_version, asked.model)
    return route


class Found(NamedTuple):
    """Where a call goes, and what the version there declares."""

    route: Route
    spec: registry_pb2.PredictionSpec


class Routes:
    """`route_of` for a process: what does not hang on who else asks, or how often, is remembered while the registry
    stays as it is."""

    def __init__(self) -> None:
        self._table: RoutingTable | None = None
        self._known: dict[tuple[str, str, Routed], Found] = {}

    def of(
        self, table: RoutingTable, tenant: str, model: str, routed: Routed, *, user: str, session: str, request_id: str
    ) -> Found:
        """See `route_of`."""
        if table is not self._table:
            self._table = table
            self._known.clear()
        key = (tenant, model, routed)
        found = self._known.get(key)
        if found is None:
            asked = RouteRequest(tenant, model, user=user, session=session, request_id=request_id)
            route = route_of(table, asked, routed)
            found = Found(route, table.snapshot.model_versions[route.model_version].prediction)
            if _is_fixed(table, model, routed):
                if len(self._known) >= _MOST_ROUTES:
                    self._known.clear()
                self._known[key] = found
        return found


def _is_fixed(table: RoutingTable, model: str, routed: Routed) -> bool:
    if model in table.splits:
        return False
    layout = table.layouts.get(model)
    return bool(routed.version) or layout is None or len(layout.targets) == 1


def version_of(table: RoutingTable, version: str, asked: str) -> registry_pb2.ModelVersion:
    """A registered version that answers predictions.

    :raises WeirError: MODEL_NOT_FOUND: it is not registered, or generates.
    """
    found = table.snapshot.model_versions.get(version)
    if found is None:
        raise _not_found(asked)
    if not found.HasField("prediction"):
        raise WeirError(Reason.MODEL_NOT_FOUND, f"{asked[:100]!r} answers no predictions: it generates", limit="model")
    return found


def _leads(table: RoutingTable, model: str, routed: Routed) -> bool:
    """The name may mean the version, by a rollout, or by the alias as this registry or a moment ago had it."""
    if "@" in model:
        return model == routed.version
    if routed.model == model:
        return True
    split = table.splits.get(model)
    if split is not None and routed.version in split.versions:
        return True
    layout = table.layouts.get(model)
    return layout is not None and any(target.model_version == routed.version for target in layout.targets)


def _as_routed(table: RoutingTable, asked: RouteRequest, routed: Routed) -> Route:
    version = table.snapshot.model_versions.get(routed.version)
    if version is None:
        raise _not_found(asked.model)
    step, mirror, revision = 0, None, table.snapshot.revision
    split = table.splits.get(asked.model)
    if split is not None and split.rollout_id == routed.rollout:
        step, mirror = split.step, table.resolve(asked).mirror if split.shadow_share else None
    return Route(routed.version, routed.arm, version.pool, tier_of(version), (), revision, routed.rollout, step, mirror)


def _not_routed(message: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit="model_name")


def _not_found(model: str) -> WeirError:
    return WeirError(Reason.MODEL_NOT_FOUND, f"There is no model {model[:100]!r}.", limit="model")


def rows_of(request: ModelInferRequest, spec: registry_pb2.PredictionSpec) -> int:
    """What it asks about, by its first input, before anything of it was checked; at least 1."""
    if not spec.max_rows or not request.inputs or not request.inputs[0].shape:
        return 1
    return max(1, request.inputs[0].shape[0])
