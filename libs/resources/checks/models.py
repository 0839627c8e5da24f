"""What model versions, aliases and pins may say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import (
    check_choice,
    check_count,
    check_range,
    check_reason,
    check_required,
    entry,
    shown,
)
from libs.resources.checks.faults import Fault, check_id, check_name, check_sha256, check_text, check_version
from libs.resources.checks.predictions import check_prediction
from libs.resources.checks.safety import check_pins
from libs.resources.namespaces import namespace_of

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

TIERS = ("fast", "quality")
"""Served tiers."""
_DIGESTS = ("training_data_sha256", "chat_template_sha256", "schema_sha256", "tokenizer_sha256")
_METRIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,63}")
_MAX_METRICS = 64
# An envelope holds the manifest once, in base64; 512 artifacts with long paths stay below this.
_MAX_SIGNATURE = 256 * 1024
_MAX_ARTIFACTS = 512
_MAX_TARGETS = 16
_MAX_CONTEXT = 16 * 1024 * 1024
_last: list[Any] = [None, {}]
"""The collection that `_namespaces_of` last looked at, and what it found."""


def check_model(message: pb.ModelVersion, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a model version; whether its signature holds is decided elsewhere (see libs.artifacts)."""
    yield from check_name("metadata.name", message.name)
    for fault in check_version("metadata.name", message.version):
        yield Fault(fault.field, f"the version behind '@' {fault.message}")
    if message.namespace:
        yield from check_id("metadata.namespace", message.namespace)
    yield from _check_owner("metadata.name", message.name, {namespace_of(message)}, snapshot)
    yield from check_name("spec.pool", message.pool)
    yield from check_required("spec.source", message.source)
    yield from check_text("spec.source", message.source, 1024)
    yield from check_text("spec.architecture", message.architecture, 100)
    if message.HasField("prediction"):
        yield from check_prediction(message, snapshot)
    else:
        yield from check_choice("spec.tier", message.tier, TIERS)
        yield from check_range("spec.context_length", message, 1, _MAX_CONTEXT)
    for name in _DIGESTS:
        if value := getattr(message, name):
            yield from check_sha256(f"spec.{name}", value)
    if len(message.signature) > _MAX_SIGNATURE:
        yield Fault("spec.signature", f"must have at most {_MAX_SIGNATURE} characters")
    yield from check_pins(message.safety_policies)
    yield from _check_sampling(message)
    yield from _check_metrics(message)
    yield from _check_provenance(message)
    yield from _check_artifacts(message)


def _check_owner(field: str, name: str, namespaces: set[str], snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """A name belongs to the namespace that has versions of it: nobody else's keys may sign what is called so."""
    foreign = _namespaces_of(snapshot).get(name, set()) - namespaces
    if foreign:
        yield Fault(field, f"the name {shown(name)} belongs to namespace {shown(min(foreign))}")


def _namespaces_of(snapshot: RegistrySnapshot) -> Mapping[str, set[str]]:
    """By name, the namespaces of its versions; made once for all models of a change."""
    if _last[0] is not snapshot.model_versions:
        made: dict[str, set[str]] = {}
        for version in snapshot.model_versions.values():
            made.setdefault(version.name, set()).add(namespace_of(version))
        _last[:] = [snapshot.model_versions, made]
    found: Mapping[str, set[str]] = _last[1]
    return found


def _check_sampling(message: pb.ModelVersion) -> Iterator[Fault]:
    path, sampling = "spec.sampling_defaults", message.sampling_defaults
    yield from check_range(f"{path}.temperature", sampling, 0, 2)
    if not 0.0 < sampling.top_p <= 1.0:
        yield Fault(f"{path}.top_p", "must be above 0 and at most 1")
    yield from check_range(f"{path}.min_p", sampling, 0, 1)
    if sampling.repetition_penalty:
        yield from check_range(f"{path}.repetition_penalty", sampling, 0.01, 10)
    if sampling.top_k >= 1 << 31:
        yield Fault(f"{path}.top_k", "must be below 2147483648")
    if sampling.max_tokens > message.context_length:
        yield Fault(f"{path}.max_tokens", "must fit the context")


def _check_metrics(message: pb.ModelVersion) -> Iterator[Fault]:
    yield from check_count("spec.offline_metrics", message.offline_metrics, _MAX_METRICS)
    for name, value in islice(message.offline_metrics.items(), _MAX_METRICS):
        field = entry("spec.offline_metrics", name)
        if not _METRIC.fullmatch(name):
            yield Fault(field, "a metric's name has 1 to 64 letters, digits and any of _ . : / @ -")
        if not math.isfinite(value):
            yield Fault(field, "must be a finite number")


def _check_provenance(message: pb.ModelVersion) -> Iterator[Fault]:
    path, provenance = "spec.provenance", message.provenance
    yield from check_text(f"{path}.source_uri", provenance.source_uri, 1024)
    yield from check_text(f"{path}.revision", provenance.revision, 200)
    yield from check_text(f"{path}.builder", provenance.builder, 200)
    yield from check_text(f"{path}.unchecked", provenance.unchecked, 2048)
    if not provenance.base:
        return
    name, _, version = provenance.base.partition("@")
    if any(check_name("", name)) or any(check_version("", version)):
        yield Fault(f"{path}.base", "must be a model version, name@version")
    if (name, version) == (message.name, message.version):
        yield Fault(f"{path}.base", "a version cannot be made from itself")


def _check_artifacts(message: pb.ModelVersion) -> Iterator[Fault]:
    from libs.artifacts.manifest import ROLES

    yield from check_count("spec.artifacts", message.artifacts, _MAX_ARTIFACTS, least=1)
    seen: set[str] = set()
    for number, artifact in enumerate(message.artifacts[:_MAX_ARTIFACTS]):
        path = f"spec.artifacts[{number}]"
        yield from _check_path(f"{path}.path", artifact.path)
        if artifact.path in seen:
            yield Fault(f"{path}.path", f"the path {shown(artifact.path)} appears twice")
        seen.add(artifact.path)
        yield from check_sha256(f"{path}.sha256", artifact.sha256)
        if artifact.bytes == 0:
            yield Fault(f"{path}.bytes", "an artifact must not be empty")
        yield from check_choice(f"{path}.role", artifact.role, (*ROLES, ""))


def _check_path(field: str, path: str) -> Iterator[Fault]:
    from libs.artifacts.manifest import FOLDER_MANIFEST, inside

    if not inside(path):
        yield Fault(field, "must be relative and stay inside its source")
    if path == FOLDER_MANIFEST:
        yield Fault(field, f"{FOLDER_MANIFEST} is made from the record; it is no artifact")


def check_alias(message: pb.Alias, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of an alias."""
    yield from check_name("metadata.name", message.name)
    yield from check_count("spec.targets", message.targets, _MAX_TARGETS, least=1)
    seen: set[tuple[str, str]] = set()
    for number, target in enumerate(message.targets[:_MAX_TARGETS]):
        path = f"spec.targets[{number}]"
        yield from check_required(f"{path}.model_version", target.model_version)
        if target.arm:
            yield from check_id(f"{path}.arm", target.arm)
        if (target.model_version, target.arm) in seen:
            yield Fault(f"{path}.model_version", "a target appears twice")
        seen.add((target.model_version, target.arm))
    named = (snapshot.model_versions.get(target.model_version) for target in message.targets)
    namespaces = {namespace_of(version) for version in named if version is not None}
    if namespaces:
        yield from _check_owner("metadata.name", message.name, namespaces, snapshot)
    total = sum(target.weight for target in message.targets)
    if total != 100:
        yield Fault("spec.targets", f"weights must sum to 100, not {total}")


def check_pin(message: pb.Pin, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of a pin: it is kept until somebody takes it away, who must know what for."""
    yield from check_reason("spec.reason", message.reason)
