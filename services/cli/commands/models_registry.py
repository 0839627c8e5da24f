"""What the commands of `weir models` share: versions and trust in the registry, blobs, keys, looks at folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from libs.children.alone import run_alone
from services.cli import calls
from services.cli.app import Option
from services.cli.output import failed

_SECONDS = 300.0
"""For a child that has 120 of processor time."""
Store = Annotated[str, Option("--blobs", metavar="URI", help="Another blob store than the mesh's.")]


def version_called(name: str) -> Any:
    """A model version, "name@version".

    :raises SystemExit: there is none.
    """
    version = calls.snapshot("models").model_versions.get(name)
    if version is None:
        raise failed(f"no model version is called {name!r}; `weir get models` lists them")
    return version


def trust_policies() -> dict[str, Any]:
    """Trust policies by namespace."""
    return dict(calls.snapshot("trust").trust)


def register(registry: calls.Service, version: Any, *, reason: str, dry_run: bool) -> Any:
    """Registers a version, or asks whether it would be; as the registry has it."""
    from libs.resources.codec import pack, unpack

    resource = pack(version)
    for each in calls.listing(registry, ["ModelVersion"])[0]:
        if each.metadata.name == resource.metadata.name:
            resource.metadata.labels.MergeFrom(each.metadata.labels)
    registry("Apply", resources=[resource], change={"reason": reason, "dry_run": dry_run})
    if dry_run:
        return version
    return unpack(registry("Get", kind="ModelVersion", name=resource.metadata.name).resource)


def open_blobs(uri: str) -> Any:
    """The blob store at an address, or the mesh's.

    :raises SystemExit: there is none, or the address makes no sense.
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


def signing_keys(paths: Sequence[Path]) -> list[Any]:
    """The keys in these files; without any, the mesh's development key if it has one.

    :raises SystemExit: a file cannot be used.
    """
    from libs.artifacts import KeyFileError, read_key
    from services.cli.config import locate

    default = [] if paths else [path for path in (locate().signing_key,) if path.exists()]
    try:
        return [read_key(path) for path in paths or default]
    except KeyFileError as error:
        raise failed(str(error)) from error


def ask_alone(module: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a process of its own says of a folder: libraries that parse a stranger's files do it there.

    :raises SystemExit: it says that something is wrong, or comes to no end.
    """
    try:
        tried = run_alone(module, json.dumps(asked).encode(), seconds=_SECONDS)
    except TimeoutError:
        raise failed(f"the model could not be read within {_SECONDS:.0f} s") from None
    if tried.returncode:
        why = f"signal {-tried.returncode}" if tried.returncode < 0 else tried.stderr.decode(errors="replace")[-500:]
        raise failed(f"the process that read the model died: {why}")
    told: dict[str, Any] = json.loads(tried.stdout)
    if "fault" in told:
        raise failed(told["fault"])
    return told
