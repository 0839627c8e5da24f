"""Protobuf messages to what the policy checks."""

from __future__ import annotations

from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

from libs.deadlines import to_seconds
from services.registry.policy.models import ArtifactSpec, ModelSpec, TargetSpec, digest
from services.registry.policy.safety import RuleSpec
from services.registry.policy.tenants import KeySpec, LimitsSpec, TenantSpec


def model_spec(message: pb.ModelVersion) -> ModelSpec:
    """Of a model version."""
    return ModelSpec(
        name=message.name,
        version=message.version,
        artifacts=[ArtifactSpec(item.path, item.sha256, item.bytes) for item in message.artifacts],
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
    )


def model_digest(message: pb.ModelVersion) -> str:
    """The content address of a model version; see `policy.models.digest`."""
    return digest(json_format.MessageToDict(message, preserving_proto_field_name=True))


def target_specs(message: pb.Alias) -> list[TargetSpec]:
    """Of an alias."""
    return [TargetSpec(target.model_version, target.weight, target.arm) for target in message.targets]


def tenant_spec(message: pb.Tenant) -> TenantSpec:
    """Of a tenant."""
    return TenantSpec(
        id=message.id,
        display_name=message.display_name,
        plan=message.plan,
        weight=message.weight,
        workloads=list(message.workloads),
        safety_policy=message.safety_policy,
        safety_fail_mode=message.safety_fail_mode,
        max_deadline_seconds=to_seconds(message.max_deadline) if message.HasField("max_deadline") else None,
        jwt_issuer=message.jwt_issuer,
    )


def limits_spec(message: pb.Limits) -> LimitsSpec:
    """Of limits."""
    return LimitsSpec(message.tenant, message.model, message.requests_per_minute, message.tokens_per_minute)


def key_spec(request: pb.CreateKeyRequest) -> KeySpec:
    """Of a new key."""
    ttl = to_seconds(request.ttl) if request.HasField("ttl") else None
    return KeySpec(request.tenant, list(request.scopes), request.note, ttl)


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
