"""Which namespace a model version is of: whose keys sign it, who publishes it, to whom it is granted."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2 as pb

DEFAULT_NAMESPACE = "default"
"""The namespace of versions that name none."""


def namespace_of(version: pb.ModelVersion) -> str:
    """Its namespace."""
    return version.namespace or DEFAULT_NAMESPACE
