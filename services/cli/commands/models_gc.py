"""`weir models pin`, `unpin` and `gc`: what stays, and what may go."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options
from services.cli.commands.models_registry import TIMEOUT, Store, open_blobs, with_registry
from services.cli.output import Json, failed, failures, plain, print_json, print_table
from services.cli.quantities import parse_seconds

_EXPORT_TIMEOUT = 60.0


def pin(
    name: Annotated[str, typer.Argument(metavar="VERSION", help="Such as weir-fast@1.")],
    reason: Annotated[str, typer.Option(help="Why; needed.")],
    warm: Annotated[bool, typer.Option("--warm", help="Keep it loaded in its pool too.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Keep a version from garbage collection."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    wanted = registry_pb2.Pin(model_version=name, reason=reason, warm=warm, revision=-1)
    with failures():
        request = registry_pb2.SetPinRequest(pin=wanted, change=options(reason, dry_run=dry_run))
        made = calls.registry("SetPin", request).pin
    if as_json:
        print_json(plain(made))
    else:
        print(f"{name} {'would be' if dry_run else 'is'} pinned{' and kept loaded' if warm else ''}: {reason}")


def unpin(
    name: Annotated[str, typer.Argument(metavar="VERSION", help="Such as weir-fast@1.")],
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Take a pin away."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        request = registry_pb2.DeletePinRequest(model_version=name, change=options(reason, dry_run=dry_run))
        made = calls.registry("DeletePin", request).pin
    if as_json:
        print_json(plain(made))
    else:
        print(f"{name} {'would be' if dry_run else 'is'} no longer pinned (it was: {made.reason})")


def pins(as_json: Json = False) -> None:
    """List pins."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        found = calls.registry("ListPins", registry_pb2.ListPinsRequest()).pins
    if as_json:
        print_json({"pins": [plain(each) for each in found]})
        return
    print_table(
        ("VERSION", "WARM", "REASON"),
        ((each.model_version, each.warm, each.reason) for each in found),
        empty="no version is pinned",
    )


def gc(
    keep: Annotated[int, typer.Option(min=0, help="Newest versions of each name that stay, needed or not.")] = 3,
    version_grace: Annotated[str, typer.Option(help="Younger versions stay.")] = "7d",
    blob_grace: Annotated[str, typer.Option(help="Files last pushed later than so long ago stay.")] = "1d",
    blobs: Store = "",
    reason: Reason = "garbage collection",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove versions that no alias, rollout, pin or worker needs, then files that no version has."""
    from libs.artifacts import BlobError
    from libs.artifacts.gc import collect

    ages = (parse_seconds(version_grace, "--version-grace"), parse_seconds(blob_grace, "--blob-grace"))
    with failures():
        store = open_blobs(blobs)

        async def work(stub: Any) -> Any:
            try:
                return await collect(
                    store,
                    read=lambda: _read(stub),
                    delete=lambda name: _delete(stub, name, reason),
                    clock=time.time,
                    keep=keep,
                    version_grace=ages[0],
                    blob_grace=ages[1],
                    dry_run=dry_run,
                )
            finally:
                await store.close()

        try:
            done = with_registry(work)
        except BlobError as error:
            raise failed(str(error)) from error
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "versions": list(done.versions),
                "refused": dict(done.refused),
                "kept": {each.model_version: list(each.reasons) for each in done.plan.kept},
                "blobs": [{"sha256": each.digest, "bytes": each.size} for each in done.blobs],
                "restored": list(done.restored),
                "remains_of_uploads": done.remains,
            }
        )
        return
    gone = set(done.versions)
    print_table(
        ("VERSION", "", "WHY"),
        [
            *(
                (
                    each.model_version,
                    ("goes" if dry_run else "gone") if each.model_version in gone else "stays",
                    done.refused.get(each.model_version, each.reason),
                )
                for each in done.plan.doomed
            ),
            *((each.model_version, "stays", ", ".join(dict.fromkeys(each.reasons))) for each in done.plan.kept),
        ],
        empty="no model versions",
    )
    freed = sum(each.size for each in done.blobs)
    print(f"{len(done.blobs)} files {'would be' if dry_run else 'were'} removed, {freed / 1e6:.1f} MB")
    if done.restored:
        print(f"{len(done.restored)} files were put back: a version came to need them meanwhile")


async def _read(stub: Any) -> Any:
    """The registry as it is now, not as one of its replicas last heard: the export waits for the newest change. What
    workers have is beside it; a version that one comes to have later is refused when it is to be deleted."""
    from dataclasses import replace

    from weir.registry.v1 import registry_pb2 as pb

    from libs.errors import Reason as Why
    from libs.errors import WeirError
    from libs.registry import KeyValue, keys, snapshot_of

    values: list[Any] = []
    digest, revision = "", 0
    async for part in stub.Export(pb.ExportRequest(), timeout=_EXPORT_TIMEOUT):
        values += [KeyValue(keys.ROOT + value.resource, value.value, max(1, part.revision)) for value in part.values]
        digest, revision = part.digest or digest, part.revision
    if not digest:
        raise WeirError(Why.DEPENDENCY_UNAVAILABLE, "the registry's export ended before its end; try again")
    snapshot = snapshot_of(values, revision)
    if snapshot.faults:
        where = next(iter(snapshot.faults))
        raise WeirError(Why.CONFLICT, f"the registry holds what cannot be read, {where}: who knows what it needs")
    workers = await stub.ListEndpoints(pb.ListEndpointsRequest(), timeout=TIMEOUT)
    endpoints = {(each.service, each.instance): each for each in workers.endpoints}
    return replace(snapshot, endpoints=endpoints)


async def _delete(stub: Any, name: str, reason: str) -> str:
    import grpc
    from weir.registry.v1 import registry_pb2 as pb

    from libs.errors import Reason as Why
    from libs.errors import from_rpc_error

    request = pb.DeleteModelVersionRequest(model_version=name, change=options(reason))
    try:
        await stub.DeleteModelVersion(request, timeout=TIMEOUT)
    except grpc.aio.AioRpcError as error:
        refusal = from_rpc_error(error)
        if refusal.reason is Why.NOT_FOUND:
            return "it is gone already"
        if refusal.reason is not Why.CONFLICT:
            raise
        return refusal.message
    return ""
