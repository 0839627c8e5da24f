"""What became of each request, one JSON object a line: written by load tests of the real mesh, replayed by `validate`.

The first line may be a header, `{"weir": "run", …}`, with what was run: workers, calibration, capacity, objectives.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and its end. Unknown fields are passed over. Times in seconds."""

    at: float
    """When it was sent, since the start of the run."""
    tenant: str
    prompt_tokens: int
    """As the mesh counted them."""
    output_tokens: int
    """What the model would have come to, also when less was delivered."""
    max_tokens: int
    """What the caller asked for."""
    outcome: str
    """"ok", or the reason of the refusal or failure as on the wire without "REASON_" ("REJECTED_DEADLINE", …)."""
    ttft: float | None = None
    """From `at` to the first token; absent without one."""
    e2e: float | None = None
    """From `at` to the end, of whatever kind."""
    queue_class: str = "paid"
    """"paid", "free", "over_quota" or "batch"."""
    weight: float = 1.0
    timeout: float = 60.0
    """The caller's deadline after `at`."""
    request_id: str = ""
    delivered_tokens: int | None = None
    """Output tokens that arrived; absent: all with "ok", else none."""
    retry_after: float | None = None
    gateway: str = ""
    """The gateway that was asked, where the client chose."""
    warmup: bool = False
    """Replayed, but in no figure."""


_DECODER = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


def write(path: Path, records: Iterable[Record], *, header: dict[str, Any] | None = None) -> None:
    """Writes a run."""
    with path.open("wb") as file:
        if header is not None:
            file.write(json.dumps({"weir": "run", **header}).encode() + b"\n")
        for record in records:
            file.write(_ENCODER.encode(record) + b"\n")


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """The header (empty without one) and the requests in order of time.

    :raises ValueError: a line is no record; the message says which.
    """
    header: dict[str, Any] = {}
    records: list[Record] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            if number == 1 and b'"weir"' in line:
                header = json.loads(line)
            else:
                records.append(_DECODER.decode(line))
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return header, sorted(records, key=lambda record: record.at)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.strip())
