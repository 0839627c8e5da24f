"""Versions that predict under rollout: the demo model `cancer-gbdt`, pushed again whole or spoilt, and who asks it."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.http_client import Reply, post
from loadtest.overload.samples import OK
from loadtest.rollout.site import RolloutSite, rollout_site
from loadtest.rollout.traffic import Traffic
from tests.support.mesh import ROOT

ALIAS = "cancer-gbdt"
MODEL = ROOT / "models" / "demo" / ALIAS
SMALLER = "cancer-linear@1"
"""What `cancer-gbdt@1` falls back to, and who is spoilt with a ladder."""
STOOD_IN = "STOOD_IN"
"""The outcome of a call that the ladder answered: its version did not."""


@dataclass(slots=True)
class PredictionTraffic(Traffic):
    """Poisson arrivals on one alias, over the Open Inference Protocol's REST form through the edge: a row each."""

    def asked(self, rng: random.Random) -> tuple[str, bytes]:
        """See `Traffic`."""
        row, user = rng.choice(_rows()), f"user-{rng.randrange(self.users)}"
        tensor = {"name": "features", "datatype": "FP32", "shape": [1, len(row)], "data": row}
        body = json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()
        path = f"/v2/models/{self.alias}/infer"
        return user, post(self._host, path, self.key, body, headers=(("x-weir-user", user),))

    def told(self, reply: Reply, start: float) -> tuple[str, float | None, int]:
        """See `Traffic`; an answer comes at once, and has no tokens."""
        if reply.status != 200:
            return reply.header("x-weir-reason").upper() or f"HTTP_{reply.status}", None, 0
        return STOOD_IN if reply.header("x-weir-degraded") else OK, reply.ended - start, 0


class PredictorSite(RolloutSite):
    """The mesh under a drill of versions that predict."""

    async def push_folder(self, folder: Path, name: str, version: str) -> str:
        """A folder whose manifest says what it predicts, as a version; returns "name@version"."""
        await self.weir("models", "push", str(folder), "--name", name, "--version", version)
        return f"{name}@{version}"

    async def push_again(self, version: str) -> str:
        """`cancer-gbdt` as it is, as another version."""
        folder = self.folder / f"{ALIAS}@{version}"
        await asyncio.to_thread(same_model, folder)
        return await self.push_folder(folder, ALIAS, version)

    def traffic(self, alias: str, *, rate: float, users: int, seed: int) -> Traffic:
        """See `RolloutSite`."""
        return PredictionTraffic(
            address=self.address, key=self.mesh.env["WEIR_KEY_ACME"], alias=alias, rate=rate, users=users, seed=seed
        )


@asynccontextmanager
async def predictor_site(folder: Path, *, settings: Sequence[str] = ()) -> AsyncIterator[PredictorSite]:
    """A mesh of its own with two predictors, its registry in view. Calls have more time than any machine needs."""
    own = ("replicas.predictor=2", "predictor.default_deadline.classical=20", "predictor.default_deadline.deep=20")
    async with rollout_site(folder, settings=(*own, *settings)) as site:
        yield PredictorSite(site.mesh, site.view, site.folder)


def same_model(folder: Path) -> Path:
    """The demo model with another card: what is registered under one name differs, what is computed does not."""
    shutil.copytree(MODEL, folder)
    declared = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    kept = {name: declared[name] for name in ("architecture", "pool", "prediction")}
    (folder / "manifest.json").write_text(json.dumps(kept), encoding="utf-8")
    with (folder / "card.md").open("a", encoding="utf-8") as card:
        card.write(f"\nPushed once more as {folder.name}.\n")
    return folder


def _rows() -> list[list[float]]:
    if not _ROWS:
        cases: list[dict[str, Any]] = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
        for tensor in (case["inputs"][0] for case in cases):
            width = tensor["shape"][1]
            _ROWS.extend(tensor["data"][at : at + width] for at in range(0, len(tensor["data"]), width))
    return _ROWS


_ROWS: list[list[float]] = []
