"""Where the log's files lie.

<log>/000000000000000001.log      segments, named by their first record
<log>/lock                        held by the one process that writes
<checkpoints>/checkpoints.log     signed checkpoints, outside the log's directory
<keys>/checkpoint.key, .pub       the signing key
"""

from pathlib import Path

CHECKPOINTS_NAME = "checkpoints.log"
LOCK_NAME = "lock"


def segment_path(directory: Path, first: int) -> Path:
    """Return the segment that begins with record `first`."""
    return directory / f"{first:018d}.log"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return (first record, path) of the segments in order; other files are ignored."""
    found = [(int(path.stem), path) for path in directory.glob("*.log") if path.stem.isdecimal()]
    return sorted(found)


def lines_of(path: Path, *, start: int = 0) -> "tuple[list[bytes], bytes]":
    """Return (whole lines with their newlines, torn rest) of a file from byte `start` on."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    lines = _split(data)
    torn = b""
    if lines and not lines[-1].endswith(b"\n"):
        torn = lines.pop()
    return lines, torn


def _split(data: bytes) -> list[bytes]:
    # Not splitlines(): that breaks at a carriage return too, which a damaged file may hold.
    parts = data.split(b"\n")
    return [*(part + b"\n" for part in parts[:-1]), *([parts[-1]] if parts[-1] else [])]
