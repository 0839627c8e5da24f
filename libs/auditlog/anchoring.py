"""Whether a log may go on, by what places outside its disk say of it. Pure but for the look at the log's own hashes.

Who has the disk, and the key that lies on it, can write any history and sign it. What they cannot rewrite is what was
put elsewhere: the newest checkpoint, every few seconds in etcd, and now and then in a bucket. A log goes on only if it
contains every checkpoint that is found there, record by record; a place that lost its checkpoint is a fault as well,
for nothing else tells that from an attack. An anchor is one or two checkpoint lines: the newest one, and in etcd the
newest one that the bucket was given, so that a bucket that was emptied shows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from libs.auditlog.chain import Checkpoint, LineError, decode_checkpoint
from libs.auditlog.files import LogDamagedError
from libs.auditlog.keys import Verifier


@dataclass(frozen=True, slots=True)
class Reading:
    """What one place says."""

    place: str
    """For people: "etcd", "the bucket"."""
    lines: tuple[bytes, ...] | None
    """Its checkpoints' lines, newest first; empty when it holds none, None when it could not be asked."""


@dataclass(slots=True)
class Judgement:
    """What the places together say."""

    faults: list[str] = field(default_factory=list)
    """Why the log may not go on."""
    notes: list[str] = field(default_factory=list)
    """What could not be compared."""
    lines: list[bytes] = field(default_factory=list)
    """Every checkpoint that was found."""


def judge(
    etcd: Reading, bucket: Reading | None, *, count: int, hash_at: Callable[[int], bytes], verify: Verifier
) -> Judgement:
    """Compare a log of `count` records with its anchors. `hash_at` gives the hash of one of its records and raises
    LogDamagedError when the disk does not lead from there to the log's head. `bucket` is None where there is none."""
    found = Judgement()
    places = [etcd] if bucket is None else [etcd, bucket]
    known: dict[str, list[Checkpoint]] = {}
    for reading in places:
        known[reading.place] = []
        if reading.lines is None:
            found.notes.append(f"{reading.place} could not be asked for its anchor")
            continue
        for line in reading.lines:
            found.lines.append(line)
            try:
                checkpoint = decode_checkpoint(line, verify)
            except LineError as error:
                found.faults.append(f"the anchor in {reading.place}: {error}")
                continue
            known[reading.place].append(checkpoint)
            if fault := _contradicts(checkpoint, reading.place, count, hash_at):
                found.faults.append(fault)
    if count and etcd.lines == ():
        found.faults.append("the anchor in etcd is lost")
    if bucket is not None and bucket.lines is not None:
        given = max((checkpoint.count for checkpoint in known[etcd.place][1:]), default=None)
        kept = max((checkpoint.count for checkpoint in known[bucket.place]), default=None)
        if given is not None and (kept is None or kept < given):
            found.faults.append(f"{bucket.place} was given the checkpoint of record {given} and has lost it")
    return found


def _contradicts(checkpoint: Checkpoint, place: str, count: int, hash_at: Callable[[int], bytes]) -> str:
    """What is wrong with the log by one checkpoint; "" if nothing is."""
    if checkpoint.count > count:
        return f"records {count + 1} to {checkpoint.count} were anchored in {place} and are missing"
    try:
        same = hash_at(checkpoint.count) == checkpoint.hash
    except (LogDamagedError, OSError) as error:
        return f"record {checkpoint.count}, anchored in {place}, cannot be read: {error}"
    return "" if same else f"record {checkpoint.count} is not the one that was anchored in {place}"
