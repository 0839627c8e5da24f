"""Calls of the registry that the commands of `weir models` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from services.cli.output import failed

T = TypeVar("T")
Store = Annotated[str, typer.Option("--blobs", metavar="URI", help="Another blob store than the mesh's.")]
TIMEOUT = 10.0
"""Seconds of one call; see services.cli.calls."""


def with_registry(use: Callable[[Any], Awaitable[T]]) -> T:
    """What `use` makes of a stub of the registry; for commands of several calls.

    :raises WeirError, NoMeshError: as in `calls.with_channel`.
    """
    from weir.registry.v1 import registry_pb2_grpc

    from services.cli import calls

    return calls.with_channel("registry", lambda channel: use(registry_pb2_grpc.RegistryServiceStub(channel)))


def list_models() -> Any:
    """All versions and aliases."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return calls.registry("ListModels", registry_pb2.ListModelsRequest())


def version_called(name: str) -> Any:
    """A model version, "name@version".

    :raises typer.Exit: there is none.
    """
    for version in list_models().model_versions:
        if f"{version.name}@{version.version}" == name:
            return version
    raise failed(f"no model version is called {name!r}")


def trust_policies() -> dict[str, Any]:
    """Trust policies by namespace."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return {
        trust.namespace: trust
        for trust in calls.registry("ListTrustPolicies", registry_pb2.ListTrustPoliciesRequest()).trusts
    }


def open_blobs(uri: str) -> Any:
    """The blob store at an address, or the mesh's.

    :raises typer.Exit: there is none, or the address makes no sense.
    :raises NoMeshError: no address is given, and there is no mesh.
    """
    from libs.artifacts import BlobError, BlobUriError, open_store
    from services.cli.config import locate

    address = uri or locate().blobs
    if not address:
        raise failed("this mesh has no blob store; name one with --blobs")
    try:
        return open_store(address)
    except (BlobUriError, BlobError) as error:
        raise failed(str(error)) from error


def signing_keys(paths: list[Path]) -> list[Any]:
    """The keys in these files; without any, the mesh's development key if it has one.

    :raises typer.Exit: a file cannot be used.
    """
    from libs.artifacts import KeyFileError, read_key
    from services.cli.config import locate

    default = [] if paths else [path for path in (locate().signing_key,) if path.exists()]
    try:
        return [read_key(path) for path in paths or default]
    except KeyFileError as error:
        raise failed(str(error)) from error
