"""Verdicts and findings as protobuf."""

from collections.abc import Iterable, Mapping

from weir.safety.v1 import safety_pb2

from libs.errors import Reason, WeirError
from libs.safety_filter import Finding, Verdict
from services.safety.policy.book import Pins

ACTIONS = {
    "": safety_pb2.ACTION_UNSPECIFIED,
    "flag": safety_pb2.ACTION_FLAG,
    "tokenise": safety_pb2.ACTION_TOKENISE,
    "redact": safety_pb2.ACTION_REDACT,
    "block": safety_pb2.ACTION_BLOCK,
}


def intervention(finding: Finding) -> safety_pb2.Intervention:
    """Return a finding for the wire."""
    return safety_pb2.Intervention(
        category=finding.category, pattern=finding.pattern, action=ACTIONS[finding.action], pack=finding.pack
    )


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, each once: a text full of addresses is one finding, not thousands."""
    return list(dict.fromkeys(findings))


def input_reply(
    verdict: Verdict, pins: Pins, *, values: Mapping[str, str], alters_output: bool
) -> safety_pb2.SafetyReply:
    """Return the reply to CheckInput, under these policies; `values` are what tokens in the verdict's texts stand
    for."""
    reply = safety_pb2.SafetyReply()
    result = reply.input
    result.policies.extend(pins)
    result.alters_output = alters_output
    if not verdict.action:
        return reply
    result.action = ACTIONS[verdict.action]
    findings = distinct(verdict.findings)
    result.interventions.extend(map(intervention, findings))
    if verdict.action in ("tokenise", "redact"):
        result.texts.extend(verdict.texts)
        result.values.extend(safety_pb2.TokenValue(token=token, value=value) for token, value in values.items())
    elif verdict.action == "block":
        block = next(finding for finding in findings if finding.action == "block")
        message = f"the input was stopped by safety policy {block.pack}"
        result.rejection.CopyFrom(WeirError(Reason.CONTENT_FILTER, message, limit=block.category).to_rejection())
    return reply
