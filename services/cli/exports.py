"""The file of an export: one JSON object a line, so that it can be read, compared and kept anywhere.

The first line names the format and the revision, the last one the digest; a line between them is a resource with its
value as it is stored. It holds the hashes of API keys: it is written readable by its owner only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from weir.registry.v1 import registry_pb2

FORMAT = "weir-registry-export/1"
_PART_BYTES = 500_000


class ExportFileError(Exception):
    """The file is no export, is damaged, or breaks off; the message says which."""


def write(path: Path, parts: Iterable[registry_pb2.ExportResponse]) -> tuple[int, int, str]:
    """Writes the stream to the file, whole or not at all, and returns values, revision and digest.

    :raises ExportFileError: the stream broke off, or its digest does not hold.
    :raises OSError: the file cannot be written.
    """
    from libs.changes.exports import ExportDigest

    found, count, revision, told = ExportDigest(), 0, 0, ""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", opener=_private) as file:
            for part in parts:
                if not count and not revision:
                    _line(file, {"format": FORMAT, "revision": part.revision})
                revision, told = part.revision, part.digest
                for each in part.values:
                    found.add(each.resource, each.value)
                    _line(file, {"resource": each.resource, "value": _text(each)})
                    count += 1
            if not told or told != found.hex:
                raise ExportFileError("the export broke off, or was damaged on its way; nothing was written")
            _line(file, {"digest": told})
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count, revision, told


def read(path: Path) -> list[registry_pb2.ImportRequest]:
    """The messages that import the file; the last one has the digest.

    :raises ExportFileError: see there.
    :raises OSError: the file cannot be read.
    """
    from weir.registry.v1 import registry_pb2

    from libs.changes.exports import ExportDigest

    made = [registry_pb2.ImportRequest()]
    found, size, digest = ExportDigest(), 0, ""
    lines = _lines(path)
    if next(lines, {}).get("format") != FORMAT:
        raise ExportFileError(f"{path} is no {FORMAT}")
    for line in lines:
        if digest:
            raise ExportFileError(f"{path} goes on behind its digest")
        digest = line.get("digest", "")
        if digest:
            continue
        try:
            name, value = line["resource"], line["value"].encode("utf-8")
        except (KeyError, AttributeError, UnicodeEncodeError):
            raise ExportFileError(f"{path}: a line is no resource") from None
        found.add(name, value)
        made[-1].values.add(resource=name, value=value)
        size += len(name) + len(value)
        if size >= _PART_BYTES:
            made.append(registry_pb2.ImportRequest())
            size = 0
    if digest != found.hex:
        what = "its content is not what its digest says" if digest else "it breaks off before its digest"
        raise ExportFileError(f"{path} is damaged: {what}")
    made.append(registry_pb2.ImportRequest(digest=digest))
    return made


def _private(name: str, flags: int) -> int:
    # Exclusive: a file or link that somebody left under this name keeps its owner, its mode and its target.
    return os.open(name, flags | os.O_EXCL, 0o600)


def _text(each: registry_pb2.ExportedValue) -> str:
    try:
        return each.value.decode("utf-8")
    except UnicodeDecodeError:
        raise ExportFileError(f"the value of {each.resource} is no text") from None


def _line(file: TextIO, content: dict[str, Any]) -> None:
    file.write(json.dumps(content, ensure_ascii=False) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        try:
            for text in file:
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise ExportFileError(f"{path}: a line is no object")
                yield line
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ExportFileError(f"{path}: a line is no JSON") from None
