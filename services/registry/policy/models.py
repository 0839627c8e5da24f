"""Model versions and aliases."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from services.registry.policy.faults import Fault, check_id, check_name, check_sha256, check_text, check_version

TIERS = ("fast", "quality")
"""Served tiers."""
ROLES = ("weights", "tokenizer", "config", "chat_template", "adapter")
"""Roles of files; other files have none."""
RESERVED_PATH = "manifest.json"
"""The file of a model folder that lists the others; it is made from the record and never part of it."""
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,63}")
_MAX_METRICS = 64
# An envelope holds the manifest once, in base64; 512 artifacts with long paths stay below this.
_MAX_SIGNATURE = 256 * 1024
_MAX_ARTIFACTS = 512
_MAX_TARGETS = 16
_MAX_CONTEXT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArtifactSpec:
    """A file of a model version."""

    path: str
    """Relative to the source, with "/"."""
    sha256: str
    """64 hex digits."""
    size: int
    """Bytes."""
    role: str = ""
    """One of `ROLES` or empty."""


@dataclass(frozen=True, slots=True)
class ProvenanceSpec:
    """Where a version comes from."""

    source_uri: str = ""
    revision: str = ""
    builder: str = ""
    base: str = ""
    """"name@version" or empty."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is checked of a model version; fields as in `weir.registry.v1.ModelVersion`."""

    name: str
    version: str
    artifacts: Sequence[ArtifactSpec]
    source: str
    architecture: str
    context_length: int
    tier: str
    pool: str
    temperature: float
    top_p: float
    max_tokens: int
    safety_policy: str
    training_data_sha256: str
    chat_template_sha256: str
    schema_sha256: str = ""
    tokenizer_sha256: str = ""
    namespace: str = ""
    safety_policy_version: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Offline metrics by name."""
    provenance: ProvenanceSpec = ProvenanceSpec()
    signature_length: int = 0
    """Characters of the envelope; whether it holds is decided elsewhere (see libs.artifacts)."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A share of an alias."""

    model_version: str
    """"name@version"."""
    weight: int
    """Percent."""
    arm: str
    """Experiment arm or empty."""


def check_model(spec: ModelSpec, *, policies: Mapping[str, int]) -> Fault | None:
    """The first fault of a new model version, or None.

    :param policies: the safety policies that exist, id → version.
    """
    named = (
        check_name("model_version.name", spec.name)
        or check_version("model_version.version", spec.version)
        or check_name("model_version.pool", spec.pool)
        or check_text("model_version.source", spec.source, 1024)
        or check_text("model_version.architecture", spec.architecture, 100)
    )
    if named:
        return named
    if not spec.source:
        return Fault("model_version.source", "model_version.source is required")
    if spec.tier not in TIERS:
        return Fault("model_version.tier", f"model_version.tier must be one of {', '.join(TIERS)}")
    if not 1 <= spec.context_length <= _MAX_CONTEXT:
        return Fault("model_version.context_length", f"context_length must be between 1 and {_MAX_CONTEXT}")
    for name in ("training_data_sha256", "chat_template_sha256", "schema_sha256", "tokenizer_sha256"):
        value = getattr(spec, name)
        if value and (fault := check_sha256(f"model_version.{name}", value)):
            return fault
    if spec.namespace and (fault := check_id("model_version.namespace", spec.namespace)):
        return fault
    if spec.signature_length > _MAX_SIGNATURE:
        return Fault("model_version.signature", f"a signature has at most {_MAX_SIGNATURE} characters")
    return (
        _check_policy(spec, policies)
        or _check_sampling(spec)
        or _check_metrics(spec.metrics)
        or _check_provenance(spec)
        or _check_artifacts(spec.artifacts)
    )


def _check_policy(spec: ModelSpec, policies: Mapping[str, int]) -> Fault | None:
    if not spec.safety_policy:
        if spec.safety_policy_version:
            return Fault("model_version.safety_policy_version", "a version of which safety policy? none is named")
        return None
    if spec.safety_policy not in policies:
        return Fault("model_version.safety_policy", f"no safety policy {spec.safety_policy!r}")
    newest = policies[spec.safety_policy]
    if spec.safety_policy_version > newest:
        return Fault(
            "model_version.safety_policy_version",
            f"safety policy {spec.safety_policy!r} is at version {newest}, not yet at {spec.safety_policy_version}",
        )
    return None


def _check_metrics(metrics: Mapping[str, float]) -> Fault | None:
    if len(metrics) > _MAX_METRICS:
        return Fault("model_version.offline_metrics", f"at most {_MAX_METRICS} offline metrics")
    for name, value in metrics.items():
        where = f"model_version.offline_metrics[{name[:64]!r}]"
        if not _METRIC.fullmatch(name):
            return Fault(where, "a metric's name has 1 to 64 letters, digits and any of _ . : / @ -")
        if not math.isfinite(value):
            return Fault(where, "a metric must be a finite number")
    return None


def _check_provenance(spec: ModelSpec) -> Fault | None:
    prefix = "model_version.provenance"
    for name, longest in (("source_uri", 1024), ("revision", 200), ("builder", 200)):
        if fault := check_text(f"{prefix}.{name}", getattr(spec.provenance, name), longest):
            return fault
    base = spec.provenance.base
    if not base:
        return None
    name, at, version = base.partition("@")
    if not at or check_name("", name) or check_version("", version):
        return Fault(f"{prefix}.base", "the base must be a model version, name@version")
    if base == f"{spec.name}@{spec.version}":
        return Fault(f"{prefix}.base", "a version cannot be made from itself")
    return None


def _check_sampling(spec: ModelSpec) -> Fault | None:
    prefix = "model_version.sampling_defaults"
    if not 0.0 <= spec.temperature <= 2.0:
        return Fault(f"{prefix}.temperature", "temperature must be between 0 and 2")
    if not 0.0 < spec.top_p <= 1.0:
        return Fault(f"{prefix}.top_p", "top_p must be above 0 and at most 1")
    if spec.max_tokens > spec.context_length:
        return Fault(f"{prefix}.max_tokens", "max_tokens must fit the context")
    return None


def _check_artifacts(artifacts: Sequence[ArtifactSpec]) -> Fault | None:
    if not 1 <= len(artifacts) <= _MAX_ARTIFACTS:
        return Fault("model_version.artifacts", f"between 1 and {_MAX_ARTIFACTS} artifacts are needed")
    seen: set[str] = set()
    for number, artifact in enumerate(artifacts):
        where = f"model_version.artifacts[{number}]"
        path = PurePosixPath(artifact.path)
        inside = artifact.path and not path.is_absolute() and ".." not in path.parts and str(path) == artifact.path
        if not inside or "\\" in artifact.path or not artifact.path.isprintable():
            return Fault(f"{where}.path", "an artifact's path must be relative and stay inside its source")
        if artifact.path == RESERVED_PATH:
            return Fault(f"{where}.path", f"{RESERVED_PATH} is made from the record; it is no artifact")
        if artifact.path in seen:
            return Fault(f"{where}.path", f"the path {artifact.path!r} appears twice")
        seen.add(artifact.path)
        if fault := check_sha256(f"{where}.sha256", artifact.sha256):
            return fault
        if artifact.size == 0:
            return Fault(f"{where}.bytes", "an artifact must not be empty")
        if artifact.role and artifact.role not in ROLES:
            return Fault(f"{where}.role", f"a role must be one of {', '.join(ROLES)}, or empty")
    return None


def check_alias(name: str, targets: Sequence[TargetSpec], *, versions: Collection[str]) -> Fault | None:
    """The first fault of an alias, or None.

    :param versions: "name@version" of the model versions that exist.
    """
    if fault := check_name("alias.name", name):
        return fault
    if not 1 <= len(targets) <= _MAX_TARGETS:
        return Fault("alias.targets", f"an alias needs between 1 and {_MAX_TARGETS} targets")
    seen: set[tuple[str, str]] = set()
    for number, target in enumerate(targets):
        where = f"alias.targets[{number}]"
        if target.model_version not in versions:
            return Fault(f"{where}.model_version", f"no model version {target.model_version!r}")
        if target.arm and (fault := check_id(f"{where}.arm", target.arm)):
            return fault
        if (target.model_version, target.arm) in seen:
            return Fault(f"{where}.model_version", "a target appears twice")
        seen.add((target.model_version, target.arm))
    total = sum(target.weight for target in targets)
    if total != 100:
        return Fault("alias.targets", f"weights must sum to 100, not {total}")
    return None
