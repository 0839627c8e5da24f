"""`envoy.service.auth.v3.Authorization/Check`: read → identify → allow → answer.

Registered as a handler that answers with bytes, because most of an answer is serialised once per credential.
"""

import grpc
from envoy.service.auth.v3 import external_auth_pb2

from libs.clock import Clock
from libs.paths import ADMIN, is_prediction, is_prediction_over_http, required_scope
from libs.rpc import traceparent_of
from libs.telemetry.tracing import SERVER, span
from services.edge_auth import metrics
from services.edge_auth.authenticator import Authenticator
from services.edge_auth.placement import Placer
from services.edge_auth.policy.credentials import allow, estimated_tokens, shown_credential
from services.edge_auth.policy.types import Principal, Refusal
from services.edge_auth.responses import Form, allowed_end, denied, remembered, ttl_of
from services.edge_auth.security import Lookout

SERVICE = "envoy.service.auth.v3.Authorization"
REPEATED_HEADER = "x-weir-refused"
"""How many refusals the edge repeated to this address since it last asked; Envoy lets no caller send it."""


class AuthorizationServicer:
    """Answers Envoy."""

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        placer: Placer,
        lookout: Lookout,
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._placer = placer
        self._lookout = lookout
        self._clock = clock

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the service to a server."""
        check = grpc.unary_unary_rpc_method_handler(
            self.check, request_deserializer=external_auth_pb2.CheckRequest.FromString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Check": check}),))

    async def check(self, request: external_auth_pb2.CheckRequest, context: grpc.aio.ServicerContext) -> bytes:
        """A serialised `CheckResponse`."""
        with span("edge_auth.check", parent=traceparent_of(context), kind=SERVER) as trace:
            headers = request.attributes.request.http.headers
            if repeated := headers.get(REPEATED_HEADER, ""):
                self._lookout.repeated(int(repeated), _address(request))
            outcome = self._decide(request)
            if isinstance(outcome, bytes):
                metrics.ALLOWED.inc()
                return outcome
            refusal, scope, principal = outcome
            self._lookout.refused(refusal, _address(request), principal)
            metrics.REFUSED[refusal].inc()
            trace.set("weir.outcome", refusal.value)
            form = _form(request.attributes.request.http)
            return denied(refusal, form, scope=scope, revision=self._authenticator.revision)

    def _decide(self, request: external_auth_pb2.CheckRequest) -> bytes | tuple[Refusal, str, Principal | None]:
        http = request.attributes.request.http
        headers = http.headers
        scope = required_scope(http.path)
        if scope is None:
            return Refusal.UNKNOWN_PATH, "", None
        credential = shown_credential(headers)
        if not credential:
            return Refusal.NO_CREDENTIAL, "", None
        verdict = self._authenticator.identify(credential)
        if isinstance(verdict, Refusal):
            return verdict, "", None
        now = self._clock.time()
        refusal = allow(verdict.principal, scope, now)
        if refusal is Refusal.SCOPE_MISSING and scope == ADMIN and self._authenticator.has_role(verdict.principal):
            refusal = None
        if refusal is not None:
            return refusal, scope if refusal is Refusal.SCOPE_MISSING else "", verdict.principal
        self._lookout.allowed(verdict.principal, _address(request))
        place = self._placer.place(verdict.principal.tenant, http.path, headers)
        # Tensors are no tokens: predictions are charged by their rows, where those are counted.
        end = b"" if is_prediction(http.path) else allowed_end(estimated_tokens(headers.get("content-length", "")))
        ttl = ttl_of(verdict.principal.expires_at, now)
        return verdict.start + end + place + remembered(self._authenticator.revision, ttl, self._placer.rules)


def _form(http: external_auth_pb2.CheckRequest) -> Form:
    """How a refusal reads to whoever asked so."""
    if http.headers.get("content-type", "").startswith("application/grpc"):
        return Form.GRPC
    return Form.PREDICTION if is_prediction_over_http(http.path) else Form.OPENAI


def _address(request: external_auth_pb2.CheckRequest) -> str:
    """The caller's address, as Envoy took it from the connection."""
    return request.attributes.source.address.socket_address.address
