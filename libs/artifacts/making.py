"""What a push makes of what nobody says: of where the folder lies, of its files, and of what is registered."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.files import json_object
from libs.artifacts.folder import Options, alike, context_in
from libs.artifacts.manifest import FOLDER_MANIFEST

_CACHED = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_REVISION = re.compile(r"[0-9a-f]{40,64}")
_SHOWN = 12
"""Digits of a revision that make a version."""
_DOWNLOADED = ".cache/huggingface/download/config.json.metadata"
"""Where `hf download --local-dir` writes down, in its first line, of which revision a file is."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a folder of Hugging Face's comes from."""

    name: str
    """The model's, without its owner; else the folder's."""
    uri: str = ""
    revision: str = ""


def origin_of(folder: Path) -> Origin:
    """What the place of a folder says: a snapshot in Hugging Face's cache, or what was downloaded to a folder."""
    place = folder.resolve()
    if place.parent.name == "snapshots" and (found := _CACHED.fullmatch(place.parent.parent.name)):
        uri = f"https://huggingface.co/{found['owner']}/{found['name']}"
        return Origin(found["name"], uri, place.name if _REVISION.fullmatch(place.name) else "")
    try:
        first = (folder / _DOWNLOADED).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        first = ""
    return Origin(place.name, "", first if _REVISION.fullmatch(first) else "")


def complete(
    folder: Path, options: Options, known: Iterable[pb.ModelVersion] = (), pools: Collection[str] = ()
) -> tuple[Options, list[tuple[str, str]]]:
    """The options, with what neither they nor manifest.json say made where that can be, and with the pool whoever says
    it; and what was made, by name, each with why it is so.

    :param known: versions that are registered.
    :param pools: those that have workers.
    :raises FolderError: a file is malformed.
    """
    listed, known, origin = json_object(folder / FOLDER_MANIFEST), list(known), origin_of(folder)
    made: dict[str, tuple[str, str]] = {}

    def said(name: str) -> str:
        return getattr(options, name) or str(listed.get(name) or "") or made.get(name, ("",))[0]

    def make(name: str, value: str, why: str) -> None:
        if value and not said(name):
            made[name] = (value, why)

    make("name", _slug(origin.name), "the folder's" if not origin.uri else "the cache's")
    make("version", origin.revision[:_SHOWN], "of its revision")
    _, like = alike(said("name"), options.base or str(_object(listed, "provenance").get("base") or ""), known)
    if like == pb.ModelVersion():
        generate = [each for each in known if not each.HasField("prediction")]
        make("pool", _only(pools), "the only one with workers")
        make("pool", _only(each.pool for each in generate), "the only one")
        beside = _only(each.tier for each in generate if each.pool == said("pool"))
        make("tier", beside, f"as all of pool {said('pool')}")
    options, lines = _with(replace(options, pool=said("pool") or like.pool), made, origin)
    if not context_of(folder, options) and (context := context_in(json_object(folder / "config.json"))):
        lines.append(("context", f"{context} tokens (config.json's; --context-length says another)"))
    return options, lines


def context_of(folder: Path, options: Options) -> int:
    """The context that a version of the folder is to have, tokens; 0: nobody says, so as long as the model's."""
    listed = json_object(folder / FOLDER_MANIFEST).get("context_length")
    return options.context_length or (listed if isinstance(listed, int) else 0)


def _with(
    options: Options, made: Mapping[str, tuple[str, str]], origin: Origin
) -> tuple[Options, list[tuple[str, str]]]:
    values: dict[str, Any] = {name: value for name, (value, _) in made.items()}
    whole = replace(options, **values)
    if origin.uri and not options.source_uri and not options.revision:
        whole = replace(whole, source_uri=origin.uri, revision=origin.revision)
    return whole, [(name, f"{value} ({why}; --{name} says another)") for name, (value, why) in made.items()]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")[:63].rstrip("-.")


def _only(names: Iterable[str]) -> str:
    found = {each for each in names if each}
    return found.pop() if len(found) == 1 else ""


def _object(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}
