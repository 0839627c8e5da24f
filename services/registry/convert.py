"""Protobuf messages to what the policy checks."""

from __future__ import annotations

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.manifest import manifest_digest
from libs.deadlines import to_seconds
from services.registry.policy.models import ArtifactSpec, ModelSpec, ProvenanceSpec, TargetSpec
from services.registry.policy.plans import PlanSpec, PriceSpec, SloSpec, StepSpec
from services.registry.policy.safety import RuleSpec
from services.registry.policy.tenants import KeySpec, LimitsSpec, TenantSpec
from services.registry.policy.trust import TrustedKeySpec, TrustSpec


def model_spec(message: pb.ModelVersion) -> ModelSpec:
    """Of a model version."""
    return ModelSpec(
        name=message.name,
        version=message.version,
        artifacts=[ArtifactSpec(item.path, item.sha256, item.bytes, item.role) for item in message.artifacts],
        source=message.source,
        architecture=message.architecture,
        context_length=message.context_length,
        tier=message.tier,
        pool=message.pool,
        temperature=message.sampling_defaults.temperature,
        top_p=message.sampling_defaults.top_p,
        max_tokens=message.sampling_defaults.max_tokens,
        safety_policy=message.safety_policy,
        training_data_sha256=message.training_data_sha256,
        chat_template_sha256=message.chat_template_sha256,
        schema_sha256=message.schema_sha256,
        tokenizer_sha256=message.tokenizer_sha256,
        namespace=message.namespace,
        safety_policy_version=message.safety_policy_version,
        metrics=dict(message.offline_metrics),
        provenance=ProvenanceSpec(
            source_uri=message.provenance.source_uri,
            revision=message.provenance.revision,
            builder=message.provenance.builder,
            base=message.provenance.base,
        ),
        signature_length=len(message.signature),
    )


def model_digest(message: pb.ModelVersion) -> str:
    """The content address of a model version; see libs.artifacts.manifest."""
    return manifest_digest(message)


def trust_spec(message: pb.TrustPolicy) -> TrustSpec:
    """Of a trust policy."""
    keys = [TrustedKeySpec(key.key_id, key.public_key, key.note) for key in message.keys]
    return TrustSpec(message.namespace, keys, message.threshold)


def target_specs(message: pb.Alias) -> list[TargetSpec]:
    """Of an alias."""
    return [TargetSpec(target.model_version, target.weight, target.arm) for target in message.targets]


def tenant_spec(message: pb.Tenant) -> TenantSpec:
    """Of a tenant."""
    return TenantSpec(
        id=message.id,
        display_name=message.display_name,
        plan=message.plan,
        plan_policy=message.plan_policy,
        weight=message.weight,
        workloads=list(message.workloads),
        safety_policy=message.safety_policy,
        safety_fail_mode=message.safety_fail_mode,
        max_deadline_seconds=_seconds(message, "max_deadline"),
        jwt_issuer=message.jwt_issuer,
    )


def limits_spec(message: pb.Limits) -> LimitsSpec:
    """Of limits."""
    return LimitsSpec(
        tenant=message.tenant,
        model=message.model,
        requests_per_minute=message.requests_per_minute,
        tokens_per_minute=message.tokens_per_minute,
        spend_microusd=message.spend_microusd,
        spend_window_seconds=_seconds(message, "spend_window"),
    )


def plan_spec(message: pb.PlanPolicy) -> PlanSpec:
    """Of a plan's policy."""
    return PlanSpec(message.id, message.weight, message.over_quota, message.kv_share, list(map(_step, message.ladder)))


def slo_spec(message: pb.Slo) -> SloSpec:
    """Of objectives."""
    return SloSpec(
        route=message.route,
        tier=message.tier,
        ttft_p95=_seconds(message, "ttft_p95"),
        itl_p95=_seconds(message, "itl_p95"),
        e2e_p95=_seconds(message, "e2e_p95"),
        e2e_p99=_seconds(message, "e2e_p99"),
        availability=message.availability,
        stream_completion=message.stream_completion,
    )


def price_spec(message: pb.Price) -> PriceSpec:
    """Of a price."""
    return PriceSpec(
        message.model,
        message.input_microusd_per_million,
        message.output_microusd_per_million,
        message.input_cost_microusd_per_million,
        message.output_cost_microusd_per_million,
    )


def key_spec(request: pb.CreateKeyRequest) -> KeySpec:
    """Of a new key."""
    return KeySpec(request.tenant, list(request.scopes), request.note, _seconds(request, "ttl"))


def rule_specs(message: pb.SafetyPolicy) -> list[RuleSpec]:
    """Of a safety policy."""
    return [
        RuleSpec(rule.id, rule.category, rule.pattern, rule.action, rule.stage, rule.replacement)
        for rule in message.rules
    ]


def without_hash(message: pb.ApiKey) -> pb.ApiKey:
    """A key as operators see it."""
    shown = pb.ApiKey()
    shown.CopyFrom(message)
    shown.ClearField("hash")
    return shown


def _step(message: pb.DegradationStep) -> StepSpec:
    kind = message.WhichOneof("step")
    if kind == "cap_output":
        return StepSpec(kind=kind, max_tokens=message.cap_output.max_tokens, pressure=message.cap_output.pressure)
    if kind == "smaller_model":
        return StepSpec(kind=kind, replacements=dict(message.smaller_model.models))
    if kind == "cached_answer":
        return StepSpec(kind=kind, max_age_seconds=_seconds(message.cached_answer, "max_age"))
    if kind == "default_answer":
        return StepSpec(kind=kind, text=message.default_answer.text)
    if kind == "cpu_fallback":
        return StepSpec(kind=kind, replacements=dict(message.cpu_fallback.pools))
    return StepSpec(kind="")


def _seconds(message: Message, field: str) -> float | None:
    """A Duration field; None when it is unset."""
    return to_seconds(getattr(message, field)) if message.HasField(field) else None
