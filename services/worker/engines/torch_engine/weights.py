"""Reads safetensors files: which tensors there are at once, the tensors themselves one by one when asked for.

Headers are checked completely before a byte of any tensor is read, so a truncated or padded file is refused in
milliseconds and by name. Tensors are read into memory of their own rather than mapped: the process then holds each
byte once, and a file that is overwritten later cannot change a running model or kill its process.
"""

from __future__ import annotations

import json
import math
import os
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from libs.families import ModelConfig
from services.worker.engines.port import EngineLoadError
from services.worker.model_files import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

Group = Literal["qkv", "o", "gate_up", "down"]
"""Linear layers that are computed as one."""

_LONGEST_HEADER = 100_000_000  # the format's own bound
_READ = 1 << 30  # Linux reads at most 2 GiB at once

# safetensors' name of an element type: torch's name, bytes.
_TYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
WEIGHT_TYPES = frozenset(("F64", "F32", "F16", "BF16"))
"""Element types that hold weights as they are; the others mean a quantised checkpoint."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: its file, element type (safetensors' name), shape and first byte in the file."""

    path: Path
    kind: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Its length in the file."""
        return math.prod(self.shape) * _TYPES[self.kind][1]


class Weights(Mapping[str, "Tensor"]):
    """The tensors of some safetensors files by name. Looking one up reads it: keep what is used twice.

    Iterating, `in`, `len` and `info` read nothing. The files stay open until the object is dropped. Threads may read
    at the same time.
    """

    def __init__(self, infos: Mapping[str, TensorInfo], files: Mapping[Path, int]) -> None:
        """Takes over the open descriptors of `files`."""
        self._infos = dict(infos)
        self._files = dict(files)
        self._stamps = {path: _content(descriptor) for path, descriptor in files.items()}
        self._close = weakref.finalize(self, _close, list(files.values()))

    def __getitem__(self, name: str) -> Tensor:
        """The tensor as stored, in memory of its own.

        :raises KeyError: there is none of that name.
        :raises EngineLoadError: its file cannot be read, or was written since it was opened: what was verified then
            is no longer there.
        """
        import torch

        info = self._infos[name]
        flat = torch.empty(info.bytes, dtype=torch.uint8)
        view, done = flat.numpy().data, 0
        try:
            while done < info.bytes:
                count = os.preadv(self._files[info.path], [view[done : done + _READ]], info.offset + done)
                if not count:
                    raise EngineLoadError(f"{info.path}: cannot be read (it became shorter while it was read)")
                done += count
        except OSError as error:
            raise EngineLoadError(f"{info.path}: cannot be read ({error.strerror})") from error
        if _content(self._files[info.path]) != self._stamps[info.path]:
            raise EngineLoadError(f"{info.path}: cannot be read (it was written since it was verified)")
        return flat.view(getattr(torch, _TYPES[info.kind][0])).reshape(info.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def info(self, name: str) -> TensorInfo:
        """Type, shape and place of a tensor, without reading it.

        :raises KeyError: there is none of that name.
        """
        return self._infos[name]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(info.bytes for info in self._infos.values())

    def close(self) -> None:
        """Close the files now; nothing can be read any more. Idempotent."""
        self._close()
        self._infos.clear()


def load_weights(files: ModelFiles) -> Weights:
    """The tensors of a checkpoint by name, read when looked up: of the safetensors files of its index if it has one,
    else of model.safetensors.

    :raises EngineLoadError: a file is missing, truncated or not safetensors, a tensor is in two files, or the files
        hold other tensors than the index says; the message names the file or the tensor.
    """
    if INDEX not in files:
        return open_tensors(files, [SINGLE])
    listed = _weight_map(files)
    weights = open_tensors(files, sorted(set(listed.values())))
    _check_index(files.folder / INDEX, listed, weights)
    return weights


def open_tensors(source: ModelFiles, names: Sequence[str]) -> Weights:
    """The tensors of safetensors files by name.

    :raises EngineLoadError: as `load_weights`.
    """
    infos: dict[str, TensorInfo] = {}
    files = {source.folder / name: descriptor for name, descriptor in source.open_all(names).items()}
    try:
        for path, descriptor in files.items():
            try:
                found = _read_header(path, descriptor)
            except _FormatError as error:
                raise EngineLoadError(f"{path}: cannot be read ({error})") from None
            for name in infos.keys() & found.keys():
                raise EngineLoadError(f"{path}: tensor {name} is also in {infos[name].path.name}")
            infos |= found
    except BaseException:
        _close(list(files.values()))
        raise
    return Weights(infos, files)


@dataclass(frozen=True, slots=True)
class Site:
    """Linear layers of the same `inner` inputs that are computed as one: (name, outputs) of each tensor."""

    parts: tuple[tuple[str, int], ...]
    inner: int
    bias: bool


def sites(config: ModelConfig) -> dict[Group, Site]:
    """The linear layers of every layer, by the names of their tensors in it."""
    width, hidden = config.width, config.hidden
    query, key = config.heads * config.head_width, config.kv_heads * config.head_width
    qkv = {"q_proj": query, "k_proj": key, "v_proj": key}
    gate_up = {"gate_proj": hidden, "up_proj": hidden}
    if config.family.fused:
        qkv, gate_up = {"qkv_proj": query + 2 * key}, {"gate_up_proj": 2 * hidden}
    return {
        "qkv": Site(tuple((f"self_attn.{name}", rows) for name, rows in qkv.items()), width, config.qkv_bias),
        "o": Site((("self_attn.o_proj", width),), query, config.output_bias),
        "gate_up": Site(tuple((f"mlp.{name}", rows) for name, rows in gate_up.items()), width, config.mlp_bias),
        "down": Site((("mlp.down_proj", width),), hidden, config.mlp_bias),
    }


def norm_widths(config: ModelConfig) -> dict[str, int]:
    """The norms of every layer, by the names of their tensors in it, and how many numbers each has."""
    norms = config.family.norms
    outer = (norms.attention_in, norms.attention_out, norms.mlp_in, norms.mlp_out)
    widths = {name: config.width for name in outer if name}
    if config.family.head_norms:
        heads = (config.heads, config.kv_heads) if config.family.head_norms == "whole" else (1, 1)
        widths["self_attn.q_norm"], widths["self_attn.k_norm"] = (count * config.head_width for count in heads)
    return widths


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this shape holds, in the names of transformers."""
    layer: dict[str, tuple[int, ...]] = {f"{name}.weight": (width,) for name, width in norm_widths(config).items()}
    for site in sites(config).values():
        layer |= {f"{name}.weight": (rows, site.inner) for name, rows in site.parts}
        layer |= {f"{name}.bias": (rows,) for name, rows in site.parts if site.bias}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocabulary, config.width)}
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (config.width,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocabulary, config.width)
    return shapes


def check_weights(weights: Weights, config: ModelConfig, where: Path) -> None:
    """Compare names, shapes and types with what `config` asks for, without reading a tensor. `where` is for messages
    about tensors that lie in no file.

    :raises EngineLoadError: a tensor is missing, surplus, of another shape or of a type that no weight has.
    """
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in weights:
            raise EngineLoadError(f"{where}: tensor {name} is missing")
        info = weights.info(name)
        if info.shape != shape:
            raise EngineLoadError(f"{info.path}: tensor {name} has shape {info.shape} instead of {shape}")
        if info.kind not in WEIGHT_TYPES:
            raise EngineLoadError(f"{info.path}: tensor {name} has type {info.kind}; quantised weights are not read")
    for name in weights:
        if name not in expected and not _harmless(name, config):
            raise EngineLoadError(f"{weights.info(name).path}: tensor {name} belongs to no layer of this model")


def _harmless(name: str, config: ModelConfig) -> bool:
    # Early Llama checkpoints carry the rotary frequencies, which config.json determines; a tied model may carry its
    # head twice.
    return name.endswith(".rotary_emb.inv_freq") or (config.tied and name == "lm_head.weight")


def _check_index(index: Path, listed: Mapping[str, str], weights: Weights) -> None:
    for name, file in listed.items():
        if name not in weights:
            raise EngineLoadError(f"{index.parent / file}: tensor {name} is missing, {index.name} says it is there")
        if weights.info(name).path.name != file:
            raise EngineLoadError(f"{weights.info(name).path}: tensor {name} should be in {file}, says {index.name}")
    for name in weights:
        if name not in listed:
            raise EngineLoadError(f"{weights.info(name).path}: tensor {name} is not in {index.name}")


def _weight_map(source: ModelFiles) -> dict[str, str]:
    index = source.folder / INDEX
    listed = source.read_object(INDEX)
    try:
        files = {str(name): str(file) for name, file in listed["weight_map"].items()}
    except (KeyError, AttributeError) as error:
        raise EngineLoadError(f"{index}: malformed ({type(error).__name__}: {error})") from error
    if any(Path(file).name != file for file in files.values()):
        raise EngineLoadError(f"{index}: names a file outside the model's folder")
    if not files:
        raise EngineLoadError(f"{index}: names no file")
    return files


class _FormatError(Exception):
    """What is wrong with a safetensors file."""


def _read_header(path: Path, descriptor: int) -> dict[str, TensorInfo]:
    """The tensors of one file; raises _FormatError unless they fill it exactly."""
    size = os.fstat(descriptor).st_size
    if size < 8:
        raise _FormatError(f"it has {size} bytes, no room for the length of a header")
    (length,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
    if length > _LONGEST_HEADER:
        raise _FormatError(f"its header claims {length} bytes: it is not safetensors")
    if 8 + length > size:
        raise _FormatError(f"it has {size} bytes and ends inside its header of {length}")
    try:
        header = json.loads(os.pread(descriptor, length, 8), object_pairs_hook=_without_repeats)
        header.pop("__metadata__", None)
        infos = {name: _tensor(path, name, raw, 8 + length) for name, raw in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _FormatError(f"its header is malformed: {type(error).__name__}: {error}") from None
    position = 8 + length
    for name, info in sorted(infos.items(), key=lambda item: (item[1].offset, item[1].bytes)):
        if info.offset != position:
            raise _FormatError(f"tensor {name} begins at byte {info.offset} instead of {position}")
        position += info.bytes
    if position != size:
        raise _FormatError(f"it has {size} bytes, its header describes {position}")
    return infos


def _tensor(path: Path, name: str, raw: Mapping[str, Any], base: int) -> TensorInfo:
    kind, shape = raw["dtype"], tuple(raw["shape"])
    begin, end = raw["data_offsets"]
    if kind not in _TYPES:
        raise _FormatError(f"tensor {name} has the unknown type {kind}")
    if not all(type(each) is int and each >= 0 for each in (*shape, begin, end)):
        raise _FormatError(f"tensor {name} has a shape or place that is not whole numbers")
    info = TensorInfo(path, kind, shape, base + begin)
    if info.bytes != end - begin:
        raise _FormatError(f"tensor {name} takes {end - begin} bytes, its shape and type {info.bytes}")
    return info


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _FormatError(f"{name} appears twice in its header")
        found[name] = value
    return found


def _content(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
