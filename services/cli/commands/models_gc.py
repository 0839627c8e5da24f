"""`weir models gc`: what may go. Versions stay that are pinned: `weir set pin VERSION reason=… --create`."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from services.cli import calls
from services.cli.app import DryRun, Option, Output, Reason
from services.cli.commands.models_registry import Store, open_blobs
from services.cli.output import failed, print_found
from services.cli.quantities import parse_seconds


def gc(
    keep: Annotated[int, Option(least=0, help="Newest versions of each name that stay, needed or not.")] = 3,
    version_grace: Annotated[str, Option(help="Younger versions stay.")] = "7d",
    blob_grace: Annotated[str, Option(help="Files last pushed later than so long ago stay.")] = "1d",
    blobs: Store = "",
    reason: Reason = "garbage collection",
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Remove versions that no alias, rollout, pin or worker needs, then files of no version."""
    from libs.artifacts import BlobError
    from libs.artifacts.gc import collect

    graces = {
        "version_grace": parse_seconds(version_grace, "--version-grace"),
        "blob_grace": parse_seconds(blob_grace, "--blob-grace"),
    }
    store = open_blobs(blobs)

    async def work() -> Any:
        async def read() -> Any:
            # What workers have is beside it; a version that one comes to have later is refused when it is to go.
            return calls.read(registry, newest=True)

        async def delete(name: str) -> str:
            return _delete(registry, name, reason)

        try:
            return await collect(store, read=read, delete=delete, clock=time.time, keep=keep, dry_run=dry_run, **graces)
        finally:
            await store.close()

    try:
        with calls.service() as registry:
            done = asyncio.run(work())
    except BlobError as error:
        raise failed(str(error)) from error
    told = {
        "dry_run": dry_run,
        "versions": list(done.versions),
        "refused": dict(done.refused),
        "kept": {each.model_version: list(each.reasons) for each in done.plan.kept},
        "blobs": [{"sha256": each.digest, "bytes": each.size} for each in done.blobs],
        "restored": list(done.restored),
        "remains_of_uploads": done.remains,
    }
    goes = dict.fromkeys(done.versions, "would go" if dry_run else "gone")
    doomed = [(each.model_version, done.refused.get(each.model_version, each.reason)) for each in done.plan.doomed]
    rows = [(name, goes.get(name, "stays"), why) for name, why in doomed]
    rows += [(each.model_version, "stays", ", ".join(dict.fromkeys(each.reasons))) for each in done.plan.kept]
    print_found(output, told, ("VERSION", "OUTCOME", "WHY"), rows, empty="no model versions")
    if output == "json":
        return
    freed = sum(each.size for each in done.blobs)
    print(f"{len(done.blobs)} files {'would be' if dry_run else 'were'} removed, {freed / 1e6:.1f} MB")
    if done.restored:
        print(f"{len(done.restored)} files were put back: a version came to need them meanwhile")


def _delete(registry: calls.Service, name: str, reason: str) -> str:
    import grpc

    try:
        registry("Delete", resources=[{"kind": "ModelVersion", "name": name}], change={"reason": reason})
    except grpc.RpcError as error:
        refusal: Any = calls.weir_error(error)
        if refusal.reason.name == "NOT_FOUND":
            return "it is gone already"
        if refusal.reason.name != "CONFLICT":
            raise
        return str(refusal.message)
    return ""
