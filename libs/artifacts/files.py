"""What a model's folder holds: its files, which of them make a version, and their digests."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, cast

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.blobs import sha256_of
from libs.artifacts.manifest import FOLDER_MANIFEST, inside
from libs.artifacts.progress import Watch
from libs.artifacts.roles import role_of

_HASH_THREADS = 2
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_JSON = 64 << 20
_OTHER_FOLDERS = frozenset({"coreml", "gguf", "onnx", "openvino", "original"})
_OTHER_FORMS = ("*.bin", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.ot", "*.pt", "*.pth", "*.tflite", "consolidated*")
"""Beside safetensors, what no engine here reads."""


class FolderError(Exception):
    """A folder cannot be made a model version; the message names the file or the field."""


def files_of(folder: Path) -> list[str]:
    """Paths of the files that make a version of a folder that has no manifest: not hidden, and not `unread`, in order.

    :raises FolderError: one is a link, but of Hugging Face's cache, or no regular file.
    """
    return [path for path, read in _sorted_out(folder) if read]


def unread(folder: Path) -> list[str]:
    """Of a checkpoint's files, those that no engine reads: the same weights in other forms, and what is empty.

    :raises FolderError: as of `files_of`.
    """
    if json_object(folder / FOLDER_MANIFEST).get("files"):
        return []
    return [path for path, read in _sorted_out(folder) if not read]


def _sorted_out(folder: Path) -> list[tuple[str, bool]]:
    """Files that are not hidden, each with whether it makes the version."""
    found = list(_visible(folder))
    paths = [path.relative_to(folder).as_posix() for path in found]
    whole = "config.json" in paths and any(fnmatch(path, "model*.safetensors") for path in paths)
    # Empty is the `__init__.py` of a model's code; weights that are empty are a fault.
    return [
        (path, bool(role_of(path) or place.stat().st_size) and not (whole and _is_other_form(path)))
        for path, place in zip(paths, found, strict=True)
    ]


def _visible(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or str(relative) == FOLDER_MANIFEST:
            continue
        if path.is_symlink() and not _of_cache(folder, path):
            raise FolderError(f"{relative} is a link; a model's files must lie in its folder themselves")
        if path.is_file():
            yield path
        elif not path.is_dir():
            raise FolderError(f"{relative} is no regular file")


def _is_other_form(path: str) -> bool:
    first, inside_one, _ = path.partition("/")
    return bool(inside_one and first in _OTHER_FOLDERS) or any(fnmatch(Path(path).name, form) for form in _OTHER_FORMS)


def _of_cache(folder: Path, path: Path) -> bool:
    """Whether a link leads to where Hugging Face's cache keeps what a snapshot of it is made of."""
    snapshot = folder.resolve()
    blobs = snapshot.parent.parent / "blobs"
    return snapshot.parent.name == "snapshots" and path.resolve().parent == blobs


def artifacts_in(
    folder: Path, listed: Mapping[str, Any], added: Mapping[str, Path], watch: Watch | None = None
) -> list[pb.Artifact]:
    """A version's files with their digests: those that its manifest lists, else `files_of`, and what is added to them.

    Large files in Hugging Face's cache are named by their SHA-256, and are not read for it: whoever stores them sees
    whether it holds.

    :raises FolderError: a file is missing, outside the folder, a link, empty or not what the manifest says.
    """
    said, watch = _said(listed), watch or Watch()
    places = {**{path: folder / path for path in _checked(folder, said, added)}, **added}
    named = {path: digest for path, place in places.items() if (digest := "" if path in added else _named(place))}
    watch.begin("digesting", sum(place.stat().st_size for path, place in places.items() if path not in named))

    def artifact(path: str) -> pb.Artifact:
        told = {} if path in added else said.get(path, {})
        return _artifact(path, places[path], told, named.get(path, ""), watch)

    with ThreadPoolExecutor(_HASH_THREADS, thread_name_prefix="digest") as pool:
        return list(pool.map(artifact, sorted(places)))


def _named(place: Path) -> str:
    """The digest by which Hugging Face's cache names what a link leads to; empty: it does not."""
    if not place.is_symlink():
        return ""
    blob = place.resolve()
    return blob.name if _DIGEST.fullmatch(blob.name) and blob.parent.name == "blobs" else ""


def paths_in(folder: Path) -> list[str]:
    """Paths of the files that make the version of a folder, of which none is read.

    :raises FolderError: as of `artifacts_in`.
    """
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder")
    return _checked(folder, _said(json_object(folder / FOLDER_MANIFEST)))


def _said(listed: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What a manifest says of each file, by path."""
    said: dict[str, Mapping[str, Any]] = {}
    for each in listed.get("files") or ():
        if not isinstance(each, dict) or not isinstance(each.get("path"), str):
            raise FolderError(f"{FOLDER_MANIFEST}: malformed list of files")
        said[each["path"]] = each
    return said


def _checked(folder: Path, said: Collection[str], added: Collection[str] = ()) -> list[str]:
    """The files that a manifest lists, else those that are there."""
    paths = list(said) or files_of(folder)
    if not paths:
        raise FolderError(f"{folder} holds no files")
    for path in paths:
        if path not in added:
            _check_place(folder, path)
    return paths


def _check_place(folder: Path, path: str) -> None:
    if not inside(path) or path == FOLDER_MANIFEST:
        raise FolderError(f"{FOLDER_MANIFEST} lists {path!r}, which lies outside the folder")
    place = folder
    for part in path.split("/"):
        place = place / part
        if place.is_symlink() and not _of_cache(folder, place):
            raise FolderError(f"{path} is a link; a model's files must lie in its folder themselves")
    if not place.is_file():
        raise FolderError(f"{path} is missing")


def _artifact(path: str, place: Path, said: Mapping[str, Any], named: str, watch: Watch) -> pb.Artifact:
    if named:
        digest, size = named, place.stat().st_size
    else:
        with place.open("rb", buffering=0) as file:
            digest, size = sha256_of(cast(BinaryIO, file), watch.add)
    if size == 0:
        raise FolderError(f"{path} is empty")
    if said and (str(said.get("sha256", "")).lower(), said.get("bytes")) != (digest, size):
        raise FolderError(f"{path} is not what {FOLDER_MANIFEST} says; make the manifest anew")
    return pb.Artifact(path=path, sha256=digest, bytes=size, role=str(said.get("role", "")) or role_of(path))


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file.

    :raises FolderError: it is none.
    """
    try:
        if path.stat().st_size > _MAX_JSON:
            raise FolderError(f"{path.name} is too large")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{path.name} is no JSON") from error
    if not isinstance(content, dict):
        raise FolderError(f"{path.name} is no JSON object")
    return content
