"""Model versions and aliases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from services.registry.policy.faults import Fault, check_id, check_name, check_sha256, check_text, check_version

TIERS = ("fast", "quality")
"""Served tiers."""
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


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A share of an alias."""

    model_version: str
    """"name@version"."""
    weight: int
    """Percent."""
    arm: str
    """Experiment arm or empty."""


def check_model(spec: ModelSpec, *, policies: Collection[str]) -> Fault | None:
    """The first fault of a new model version, or None.

    :param policies: ids of safety policies that exist.
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
    if spec.safety_policy and spec.safety_policy not in policies:
        return Fault("model_version.safety_policy", f"no safety policy {spec.safety_policy!r}")
    for field in ("training_data_sha256", "chat_template_sha256"):
        value = getattr(spec, field)
        if value and (fault := check_sha256(f"model_version.{field}", value)):
            return fault
    return _check_sampling(spec) or _check_artifacts(spec.artifacts)


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
        field = f"model_version.artifacts[{number}]"
        path = PurePosixPath(artifact.path)
        inside = artifact.path and not path.is_absolute() and ".." not in path.parts and str(path) == artifact.path
        if not inside or "\\" in artifact.path or not artifact.path.isprintable():
            return Fault(f"{field}.path", "an artifact's path must be relative and stay inside its source")
        if artifact.path in seen:
            return Fault(f"{field}.path", f"the path {artifact.path!r} appears twice")
        seen.add(artifact.path)
        if fault := check_sha256(f"{field}.sha256", artifact.sha256):
            return fault
        if artifact.size == 0:
            return Fault(f"{field}.bytes", "an artifact must not be empty")
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
        field = f"alias.targets[{number}]"
        if target.model_version not in versions:
            return Fault(f"{field}.model_version", f"no model version {target.model_version!r}")
        if target.arm and (fault := check_id(f"{field}.arm", target.arm)):
            return fault
        if (target.model_version, target.arm) in seen:
            return Fault(f"{field}.model_version", "a target appears twice")
        seen.add((target.model_version, target.arm))
    total = sum(target.weight for target in targets)
    if total != 100:
        return Fault("alias.targets", f"weights must sum to 100, not {total}")
    return None
