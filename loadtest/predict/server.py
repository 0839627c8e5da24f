"""`python -m loadtest.predict.server ROOT`: a predictor with the models of a bench, over mTLS, registry in memory.

Prints its address when they are loaded. A line `NAME FOLDER` on standard input registers another version and is
answered with `NAME` when it is ready; the end of standard input ends it. Nothing is accounted for: there is no limiter
and no audit log.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import LocalBlobStore, Options, manifest_digest, push, sign
from libs.authority.identity import Identity
from libs.config import TlsFiles
from libs.pki import issue
from loadtest.predict.models import TREES
from tests.support.predictor import Rig, running

TENANTS = ("acme", "flood")


async def _serve(root: Path) -> None:
    own = issue(root / "pki", Identity("predictor"))
    tls = TlsFiles(own.ca, own.cert, own.key)
    async with running(root, books=None, tls=tls) as rig:
        await rig.put(*(pb.Tenant(id=name, plan=pb.PLAN_PAID) for name in TENANTS))
        await _load(rig, "cancer-gbdt", TREES)
        for folder in sorted((root / "models").iterdir()):
            await _load(rig, folder.name, folder)
        _say(rig.address)
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, _, folder_ = line.strip().partition(" ")
            await _load(rig, name, Path(folder_))
            _say(name)


async def _load(rig: Rig, name: str, folder: Path) -> None:
    made = (await push(folder, LocalBlobStore(rig.root / "blobs"), Options())).version
    made.prediction.ClearField("smaller")
    made.digest = manifest_digest(made)
    made.signature = sign(made, rig.key)
    await rig.put(made, pb.Alias(name=name, targets=[pb.AliasTarget(model_version=f"{name}@1", weight=100)]))
    try:
        await rig.loaded(f"{name}@1")
    except TimeoutError:
        raise SystemExit(str(rig.predictor.endpoint_extra()["model_states"])) from None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1])))
