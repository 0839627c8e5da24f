"""What a file of a model is, by its bytes: which format, and whether it is a pickle. Standard library alone; nothing of
the file runs, and of large files only the beginning is read."""

from __future__ import annotations

import bz2
import lzma
import pickletools
import re
import warnings
import zipfile
import zlib
from pathlib import Path, PurePath
from typing import Any, BinaryIO

PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".dill")
"""What pickles are called."""
INSTEAD = "save it as ONNX, UBJ, LightGBM text, skops (scikit-learn: `skops.io.dump(estimator, 'model.skops')`) or .pt2"
_HEAD = 1 << 20
_MANY = 8
"""So many operations of a pickle in a row, with what each needs on the stack, are no chance."""
_MADE = frozenset({"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"})
_ZIP = b"PK\x03\x04"
_LZ4 = b"\x04\x22\x4d\x18"
_UBJ = re.compile(rb"\{(?:[iU].|I..|l.{4}|L.{8})learner", re.DOTALL)
_JSON = re.compile(rb'\s*\{\s*"learner"\s*:')
_TEXT = re.compile(rb"tree\r?\nversion=v\d")
_GRAPH, _IR_VERSION = 7, 1
_ONNX = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Fields of `onnx.ModelProto` and how each is encoded (protobuf's wire types)."""


def is_pickle(file: Path) -> bool:
    """Whether it is a pickle of any protocol, bare, compressed as joblib does it, or in torch's archive; or is called
    so.

    :raises OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        return holds_pickle(file.name, stream)


def holds_pickle(name: str, stream: BinaryIO) -> bool:
    """The same of what is open: a stream that can seek, at its beginning, of a file of that name."""
    if PurePath(name).suffix.lower() in PICKLES:
        return True
    head = stream.read(_HEAD)
    if head[:4] == _ZIP:
        return any(name.count("/") <= 1 and name.endswith("data.pkl") for name in _members(stream))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes, in what is no text
        return _pickled(head, len(head) == _HEAD) or _pickled(_unpacked(head), cut=True)


def pickle_fault(path: str) -> str:
    """What to say of one."""
    return f"{path!r} is a pickle, and a pickle runs code where it is read: {INSTEAD}"


def format_of(file: Path) -> str:
    """ "onnx", "xgboost", "lightgbm", "sklearn" or "torch", where the bytes leave no doubt; else empty.

    :raises OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        head = stream.read(64)
        if _UBJ.match(head) or _JSON.match(head):
            return "xgboost"
        if _TEXT.match(head):
            return "lightgbm"
        names = _members(stream)
        if "schema.json" in names:
            return "sklearn"
        if any(name.endswith("archive_format") for name in names):
            return "torch"
        return "onnx" if _is_onnx(stream) else ""


def _members(stream: BinaryIO) -> list[str]:
    stream.seek(0)
    if stream.read(4) != _ZIP:
        return []
    try:
        return zipfile.ZipFile(stream).namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return []


def _is_onnx(stream: BinaryIO) -> bool:
    """Whether it is, to its last byte, a message with fields of a `ModelProto` only, its version and graph among
    them."""
    size = stream.seek(0, 2)
    stream.seek(0)
    seen: set[int] = set()
    while stream.tell() < size:
        tag = _varint(stream)
        field, wire = tag >> 3, tag & 7
        if _ONNX.get(field) != wire:
            return False
        value = _varint(stream)
        if value < 0 or (wire == 2 and stream.seek(value, 1) > size):
            return False
        seen.add(field)
    return {_GRAPH, _IR_VERSION} <= seen


def _varint(stream: BinaryIO) -> int:
    """-1: there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            return -1
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return -1


def _pickled(data: bytes, cut: bool) -> bool:
    """:param cut: there may be more behind it."""
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    depth, marks, ops, named = 0, list[int](), 0, False
    try:
        for op, argument, at in pickletools.genops(data):
            if op.name == "STOP":
                return depth > 0 and (named or cut or (at or 0) + 1 == len(data))
            depth = _depth(op, depth, marks)
            ops += 1
            named |= _names(op.name, argument)
            if named and op.name in _MADE:
                return True
    except (ValueError, UnicodeDecodeError, OverflowError):
        return cut and ops >= _MANY
    return False


def _names(op: str, argument: Any) -> bool:
    """Whether an operation says what is to be imported, as the protocols before 2 do."""
    return op in ("GLOBAL", "INST") and all(each.isidentifier() for each in re.split("[. ]", argument))


def _depth(op: pickletools.OpcodeInfo, depth: int, marks: list[int]) -> int:
    """How many things are on a pickle's stack after an operation.

    :raises ValueError: it takes more than there are.
    """
    taken = op.stack_before
    if pickletools.markobject in taken or (op.name == "POP" and marks and marks[-1] == depth):
        if not marks:
            raise ValueError(op.name)
        left = marks.pop() - (taken.index(pickletools.markobject) if pickletools.markobject in taken else 0)
    else:
        left = depth - len(taken)
    if left < (marks[-1] if marks else 0):
        raise ValueError(op.name)
    if op.name == "MARK":
        marks.append(left)
        return left
    return left + len(op.stack_after)


def _unpacked(head: bytes) -> bytes:
    """The beginning of what is compressed; empty where nothing is."""
    try:
        if head[:2] == b"\x1f\x8b":
            return zlib.decompressobj(31).decompress(head, _HEAD)
        if head[:1] == b"\x78" and int.from_bytes(head[:2]) % 31 == 0:
            return zlib.decompressobj().decompress(head, _HEAD)
        if head[:2] == b"ZF":  # of joblib before 0.10: the length in 19 hexadecimal digits, then zlib
            return zlib.decompressobj().decompress(head[21:].removeprefix(b" "), _HEAD)
        if head[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(head, _HEAD)
        if head[:6] == b"\xfd7zXZ\x00" or head[:3] == b"\x5d\x00\x00":
            return lzma.LZMADecompressor(memlimit=1 << 28).decompress(head, _HEAD)
    except (zlib.error, OSError, lzma.LZMAError, EOFError):
        return b""
    return _literals(head) if head[:4] == _LZ4 else b""


def _literals(frame: bytes) -> bytes:
    """What an LZ4 frame begins with: the first thing of its first block are bytes as they were."""
    flags = frame[4:5][0] if len(frame) > 4 else 0
    block = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    size, rest = int.from_bytes(frame[block : block + 4], "little"), frame[block + 4 :]
    if size & 0x80000000:
        return rest[: size & 0x7FFFFFFF]
    count, at = (rest[0] >> 4 if rest else 0), 1
    while count >= 15 and at < len(rest):
        count, at = count + rest[at], at + 1
        if rest[at - 1] != 255:
            break
    return rest[at : at + count]
