"""Envoy's rate-limit protocol: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`."""

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import duration_pb2

from libs.auditlog.security import Kind, Sight
from libs.auditlog.watch import SecurityWatch
from libs.errors import Reason, WeirError
from libs.quota import Admitted, LimitKind, limit_headers, retry_headers
from libs.rpc import traceparent_of
from libs.telemetry.tracing import SERVER, span
from services.ratelimit.gate import Gate, Verdict
from services.ratelimit.policy.descriptors import EdgeQuestion, edge_question, report_of
from services.ratelimit.policy.passing import PASS_MS

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
COUNTED_HEADER = "x-weir-request-counted"
"""Tells the gateway that this request was counted here; absent when Envoy let it pass while this service was away."""
REASON_HEADER = "x-weir-reason"
"""The closed reason of a refusal, "QUOTA_TOKENS": the same as in the mesh, in metrics and in logs."""
CODE_HEADER = "x-weir-code"
"""The reason in lower case, which the edge writes into its error envelope as `code`, as the gateway does: Envoy's
formats cannot change the case of a header."""
_OK = rls_pb2.RateLimitResponse.OK
_OVER = rls_pb2.RateLimitResponse.OVER_LIMIT
_MINUTE = rls_pb2.RateLimitResponse.RateLimit.MINUTE
_SECOND = 1_000_000_000


class EdgeServicer(rls_pb2_grpc.RateLimitServiceServicer):
    """Answers Envoy.

    The body of a refusal is one plain sentence: the edge makes it an OpenAI error envelope for HTTP and the status
    message for gRPC.
    """

    def __init__(self, *, gate: Gate, watch: SecurityWatch, domain: str) -> None:
        self._gate = gate
        self._watch = watch
        self._domain = domain

    async def ShouldRateLimit(  # noqa: N802 - the name on the wire
        self, request: rls_pb2.RateLimitRequest, context: grpc.aio.ServicerContext
    ) -> rls_pb2.RateLimitResponse:
        """Takes one request of the tenant and looks whether the estimated tokens would fit.

        :raises WeirError: INVALID_REQUEST for another domain or for descriptors that do not name one tenant.
        """
        with span("ratelimit.edge", parent=traceparent_of(context), kind=SERVER) as trace:
            question = self._question(request)
            verdict = await self._gate.decide(question, trace.traceparent)
            trace.set("weir.tenant", question.tenant)
            if verdict.refusal is not None:
                reason = verdict.refusal.reason.name.lower()
                self._watch.note(Sight(Kind.RATE_LIMITED, reason, tenant=question.tenant))
            trace.set("weir.outcome", "ok" if verdict.refusal is None else verdict.refusal.reason.name)
            return _answer(question, verdict)

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


def _answer(question: EdgeQuestion, verdict: Verdict) -> rls_pb2.RateLimitResponse:
    refusal = verdict.refusal
    headers = limit_headers(verdict.state.requests, verdict.state.tokens, verdict.state.spend)
    if refusal is None:
        response = rls_pb2.RateLimitResponse(overall_code=_OK)
        if verdict.counted:
            response.request_headers_to_add.add(key=COUNTED_HEADER, value="1")
    else:
        response = rls_pb2.RateLimitResponse(overall_code=_OVER, raw_body=refusal.message.encode())
        headers += retry_headers(None if refusal.retry_after is None else round(refusal.retry_after * _SECOND))
        reason = refusal.reason.name
        headers += ((REASON_HEADER, reason), (CODE_HEADER, reason.lower()))
    response.response_headers_to_add.extend([base_pb2.HeaderValue(key=name, value=value) for name, value in headers])
    response.dynamic_metadata.update({"free": verdict.passing, "ms": PASS_MS})
    for kind in question.kinds:
        _add_status(response, kind, kind is not None and kind is verdict.kind, verdict.state)
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
    seconds, nanos = divmod(report.reset_ns, _SECOND)
    status.duration_until_reset.CopyFrom(duration_pb2.Duration(seconds=seconds, nanos=nanos))
