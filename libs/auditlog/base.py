"""Where a log begins whose oldest records were truncated: a signed statement beside the checkpoints.

    {"base":<records before it>,"hash":"<64 hex>","signature":"<128 hex>","time":"<RFC 3339>"}\\n

Its signature is over other bytes than a checkpoint's, so no checkpoint passes for one: who has the disk and no key
cannot cut off a beginning. An older base with the segments that belong to it is an older log; the anchors tell.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from libs.auditlog.chain import ZERO, LineError
from libs.auditlog.disk import Disk, sync_directory
from libs.auditlog.keys import Signer, Verifier

BASE_NAME = "base"
_DOMAIN = b"weir audit base\0"
_LINE = re.compile(
    rb'\{"base":([1-9][0-9]{0,18}),"hash":"([0-9a-f]{64})","signature":"([0-9a-f]{128})","time":"([0-9TZ:.-]{20,30})"\}\n'
)


@dataclass(frozen=True, slots=True)
class Base:
    """The log begins after `count` records, the last of which had the hash `hash`."""

    count: int = 0
    hash: bytes = ZERO


def read_base(checkpoints: Path, verify: Verifier) -> Base:
    """The base in a folder of checkpoints; that of a whole log where there is none.

    Raises:
        LineError: its form or signature does not hold.
        OSError: it cannot be read.
    """
    path = checkpoints / BASE_NAME
    if not path.exists():
        return Base()
    return decode_base(path.read_bytes(), verify)


def decode_base(line: bytes, verify: Callable[[bytes, bytes], bool]) -> Base:
    """Reads one.

    Raises:
        LineError: its form or signature does not hold.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise LineError("the base is malformed")
    base = Base(int(match[1]), bytes.fromhex(match[2].decode()))
    if not verify(bytes.fromhex(match[3].decode()), _signed(base, match[4])):
        raise LineError(f"the base after record {base.count} has a bad signature")
    return base


def write_base(checkpoints: Path, base: Base, *, time: str, sign: Signer, disk: Disk) -> None:
    """Puts a base in the place of the one before; whole or not at all.

    Raises:
        OSError: it cannot be written; the one before is as it was.
    """
    signature = sign(_signed(base, time.encode()))
    line = b'{"base":%d,"hash":"%b","signature":"%b","time":"%b"}\n' % (
        base.count,
        base.hash.hex().encode(),
        signature.hex().encode(),
        time.encode(),
    )
    partial = checkpoints / (BASE_NAME + ".new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[disk.write(descriptor, bytes(rest)) :]
        disk.sync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(checkpoints / BASE_NAME)
    sync_directory(checkpoints)


def _signed(base: Base, time: bytes) -> bytes:
    return b"".join((_DOMAIN, base.count.to_bytes(8, "big"), base.hash, time))
