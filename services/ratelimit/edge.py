"""Envoy's rate-limit protocol: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`."""

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import duration_pb2

from libs.errors import Reason, WeirError
from libs.gcra import Admitted, Denied, Ledger, LimitKind
from libs.rpc import require_peer, traceparent_of
from libs.telemetry.tracing import SERVER, span
from services.ratelimit import metrics
from services.ratelimit.policy.descriptors import EdgeQuestion, edge_question, is_over, report_of
from services.ratelimit.policy.headers import limit_headers, replaced, retry_headers
from services.ratelimit.ports import Nanoseconds

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
COUNTED_HEADER = "x-weir-request-counted"
"""Tells the gateway that this request was counted here; absent when Envoy let it pass while this service was away."""
_OK = rls_pb2.RateLimitResponse.OK
_OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
_MINUTE = rls_pb2.RateLimitResponse.RateLimit.MINUTE


class EdgeServicer(rls_pb2_grpc.RateLimitServiceServicer):
    """Answers Envoy from the ledger.

    The body of a refusal is one plain sentence: the edge makes it an OpenAI error envelope for HTTP and the status
    message for gRPC.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        now: Nanoseconds,
        domain: str,
        burst_seconds: int,
        peers: tuple[str, ...],
        tls: bool,
    ) -> None:
        self._ledger = ledger
        self._now = now
        self._domain = domain
        self._burst_seconds = burst_seconds
        self._peers = peers
        self._tls = tls

    async def ShouldRateLimit(  # noqa: N802 - the name on the wire
        self, request: rls_pb2.RateLimitRequest, context: grpc.aio.ServicerContext
    ) -> rls_pb2.RateLimitResponse:
        """Takes one request of the tenant and looks whether the estimated tokens would fit.

        :raises WeirError: PERMISSION_DENIED for a peer that is not Envoy; INVALID_REQUEST for another domain or for
            descriptors that do not name one tenant.
        """
        require_peer(context, self._peers, tls=self._tls)
        with span("ratelimit.edge", parent=traceparent_of(context), kind=SERVER) as trace:
            question = self._question(request)
            outcome = self._ledger.admit_edge(
                question.tenant, requests=question.requests, tokens=question.tokens, now=self._now()
            )
            trace.set("weir.tenant", question.tenant)
            trace.set("weir.outcome", outcome.kind.value if isinstance(outcome, Denied) else "ok")
            return self._answer(question, outcome)

    def _question(self, request: rls_pb2.RateLimitRequest) -> EdgeQuestion:
        if request.domain != self._domain:
            raise WeirError(Reason.INVALID_REQUEST, "unknown rate-limit domain", limit="domain")
        hits = request.hits_addend
        try:
            return edge_question(
                (descriptor.entries, descriptor.hits_addend.value or hits) for descriptor in request.descriptors
            )
        except ValueError as error:
            raise WeirError(Reason.INVALID_REQUEST, str(error), limit="descriptors") from error

    def _answer(self, question: EdgeQuestion, outcome: Admitted | Denied) -> rls_pb2.RateLimitResponse:
        if isinstance(outcome, Denied):
            metrics.EDGE_DENIED[outcome.kind].inc()
            state = replaced(self._ledger.report(question.tenant, "*", self._now()), outcome)
            response = rls_pb2.RateLimitResponse(overall_code=_OVER, raw_body=outcome.message().encode())
            headers = limit_headers(state, self._burst_seconds) + retry_headers(outcome)
        else:
            metrics.EDGE_OK.inc()
            state = outcome
            response = rls_pb2.RateLimitResponse(overall_code=_OK)
            response.request_headers_to_add.add(key=COUNTED_HEADER, value="1")
            headers = limit_headers(state, self._burst_seconds)
        response.response_headers_to_add.extend(
            [base_pb2.HeaderValue(key=name, value=value) for name, value in headers]
        )
        for kind in question.kinds:
            _add_status(response, kind, is_over(kind, outcome), state)
        return response


def _add_status(response: rls_pb2.RateLimitResponse, kind: LimitKind | None, over: bool, state: Admitted) -> None:
    status = response.statuses.add(code=_OVER if over else _OK)
    if kind is None:
        return
    report = report_of(kind, state)
    if not report.limit:
        return
    # The protocol's numbers have 32 bits; a limit beyond that is told as the most they hold.
    status.current_limit.requests_per_unit = min(report.limit, 0xFFFFFFFF)
    status.current_limit.unit = _MINUTE
    status.current_limit.name = kind.value
    status.limit_remaining = min(report.remaining, 0xFFFFFFFF)
    seconds, nanos = divmod(report.reset_ns, 1_000_000_000)
    status.duration_until_reset.CopyFrom(duration_pb2.Duration(seconds=seconds, nanos=nanos))
