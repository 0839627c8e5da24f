"""What sealing costs a record of the audit log: `python -m loadtest.bench_sealing`.

CPU of one request's record, from the values that the event loop made of it to its line in the chain, in groups of 64
and without the disk: clear, as logs were before there were keys; sealed under its tenant's key; and under the key of
one of many end users. The three take turns. `draft_us` is what comes before, on the event loop: the record made and
scanned for secrets. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from weir.audit.v1 import audit_pb2

from libs.auditlog.chain import ZERO, encode_entry
from libs.auditlog.frame import Draft, Sealed
from libs.sealing.keks import FileKeks
from libs.sealing.keyring import Keyring, SealingKey
from libs.sealing.vault import Vault
from services.audit.convert import draft_of_record

GROUP = 64


def record_of(number: int, person: str) -> audit_pb2.Record:
    """A finished request, every field set that a gateway sets."""
    event = audit_pb2.RequestEvent(
        request_id=f"req-{number:032x}",
        tenant=f"tenant-{number % 20}",
        key_id=person or "k-0123456789abcdef",
        model="weir-quality",
        model_version="weir-quality@3",
        operation="chat",
        outcome="stop",
        prompt_tokens=812,
        completion_tokens=301,
        cached_prompt_tokens=640,
        duration=Duration(seconds=4, nanos=120_000_000),
        time_to_first_token=Duration(nanos=210_000_000),
        worker="worker-a",
        zone="zone-a",
        trace_id=f"{number:032x}",
        safety_policies=["default@1"],
    )
    made = audit_pb2.Record(id=event.request_id, source="gateway/gateway-0", request=event)
    made.time.FromNanoseconds(time.time_ns())
    return made


def clear(drafts: list[Draft], _: Keyring) -> None:
    """As it was: the same JSON in the clear, chained."""
    prev = ZERO
    for number, draft in enumerate(drafts, 1):
        prev, _line = encode_entry(prev, number, draft.header[:-1] + b"," + draft.payload[1:])


def sealed(drafts: list[Draft], ring: Keyring) -> None:
    """As it is."""
    prev = ZERO
    keys = ring.keys_for([draft.wanted for draft in drafts if draft.wanted])
    for number, (draft, key) in enumerate(zip(drafts, keys, strict=True), 1):
        if not isinstance(key, SealingKey):
            raise SystemExit(str(key))
        prev, _line = encode_entry(prev, number, Sealed(draft, key, ring).record(prev, number))


def timed(work: Callable[[list[Draft], Keyring], None], drafts: list[Draft], ring: Keyring) -> float:
    """Microseconds of CPU per record."""
    started = time.thread_time()
    for at in range(0, len(drafts), GROUP):
        work(drafts[at : at + GROUP], ring)
    return (time.thread_time() - started) / len(drafts) * 1e6


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_200)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rng = random.Random(1)
    started = time.thread_time()
    plain = [_draft(record_of(number, "")) for number in range(options.records)]
    drafting = (time.thread_time() - started) / len(plain) * 1e6
    people = [_draft(record_of(number, f"jwt-{rng.randrange(200):016x}")) for number in range(options.records)]
    found: dict[str, list[float]] = {"clear_us": [], "sealed_us": [], "sealed_subject_us": []}
    with tempfile.TemporaryDirectory() as folder:
        vault = Vault(Path(folder) / "sealing")
        ring = Keyring(vault, FileKeks(Path(folder) / "kek", create=True), now=time.time, monotonic=time.monotonic)
        wanted = [draft.wanted for draft in people if draft.wanted]
        started = time.thread_time()
        ring.keys_for(wanted)
        made = (time.thread_time() - started) / len(vault.names()) * 1e6
        for _ in range(options.rounds):
            found["clear_us"].append(timed(clear, plain, ring))
            found["sealed_us"].append(timed(sealed, plain, ring))
            found["sealed_subject_us"].append(timed(sealed, people, ring))
        vault.close()
    told = {name: round(statistics.median(each), 1) for name, each in found.items()}
    sys.stdout.write(
        json.dumps(
            {
                **told,
                "new_key_us": round(made, 1),
                "draft_us": round(drafting, 1),
                "rounds": options.rounds,
                "group": GROUP,
            }
        )
        + "\n"
    )


def _draft(record: audit_pb2.Record) -> Draft:
    return draft_of_record(record, max_bytes=1 << 14)


if __name__ == "__main__":
    main()
