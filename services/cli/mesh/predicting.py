"""A prediction through the edge, as any gRPC client would ask for it: a golden row of a demo model."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from weir.client import Client, Prediction

from libs.errors import WeirError, http_status

MODEL = "cancer-gbdt"
"""Which demo model is asked. Its golden rows are of tumours that it was not trained with."""
_GOLDEN = Path("models") / "demo" / MODEL / "golden.json"
_TIMEOUT = 10.0
_PAUSE = 0.05


class First(NamedTuple):
    """What came of it."""

    prediction: Prediction
    expected: float
    """What it gave where it was trained."""
    seconds: float
    """Of the call that was answered."""


async def first(root: Path, url: str, *, ca: str, key: str, settle: float) -> First:
    """Ask until it is answered.

    :param settle: seconds in which a refusal with 503 is no failure: endpoints may be on their way to the edge.
    :raises WeirError: refused.
    """
    asked, expected = golden(root)
    ends = time.monotonic() + settle
    async with Client(urlsplit(url).netloc, ca=ca, api_key=key) as client:
        while True:
            begun = time.monotonic()
            try:
                told = await client.predict(MODEL, {"features": [asked]}, timeout=_TIMEOUT)
            except WeirError as error:
                if http_status(error.reason) != 503 or time.monotonic() >= ends:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                return First(told, expected, time.monotonic() - begun)


def golden(root: Path) -> tuple[list[float], float]:
    """The first golden row and its probability."""
    case: dict[str, Any] = json.loads((root / _GOLDEN).read_text(encoding="utf-8"))["cases"][0]
    inputs, outputs = case["inputs"][0], case["outputs"][0]
    return inputs["data"][: inputs["shape"][1]], outputs["data"][0]
