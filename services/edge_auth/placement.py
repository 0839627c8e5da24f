"""Where a caller of a unary prediction stands among the versions of its model: told to Envoy, which sends it there."""

from collections.abc import Mapping

from libs.paths import is_prediction
from libs.registry import RegistrySnapshot
from libs.routing import RouteRequest, RoutingTable, rules_of
from services.edge_auth.responses import NO_MODEL, placed


class Placer:
    """Places with the very functions of router and gateways, on the newest snapshot."""

    def __init__(self) -> None:
        self._table = RoutingTable.of(RegistrySnapshot())
        self.rules = rules_of(self._table.splits)
        """By which it places callers."""

    def use(self, snapshot: RegistrySnapshot) -> None:
        """Decides by this snapshot from now on."""
        self._table = RoutingTable.of(snapshot, self._table)
        self.rules = rules_of(self._table.splits)

    def place(self, tenant: str, path: str, headers: Mapping[str, str]) -> bytes:
        """What is to be appended to the answer for this request; nothing where there is nothing to choose among.

        A model that the tenant may not use, or that there is not, is taken from the request: Envoy, which has routes
        for every model that is served, then sees a prediction for none. So it is for a tenant that is bound to regions
        while a predictor is outside of them.

        :param headers: with lower-case names; `x-weir-model` is what is asked for, `x-weir-user` and `x-weir-session`
            are by what the caller keeps its arm.
        """
        if not is_prediction(path):
            return b""
        model = headers.get("x-weir-model", "")
        if not model:
            return b""
        user, session = headers.get("x-weir-user", ""), headers.get("x-weir-session", "")
        if not self._table.access.may_use(tenant, model) or not self._table.may_predict(tenant):
            return NO_MODEL
        found = self._table.place(RouteRequest(tenant, model, user=user, session=session))
        return b"" if found is None else placed(found.bucket, found.rollout_id)
