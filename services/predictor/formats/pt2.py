"""What a `.pt2` file may hold before torch reads it.

`torch.export.load` trusts its file: tensors that were saved as pickles are unpickled whole, symbolic sizes go through
`sympify`, which evaluates them, an operator is whatever `torch.…` leads to (`torch.os.system` too), and guards are
compiled as Python. What programs really hold is narrow, and here it must be no more than that: raw tensors, operators
of ATen, arithmetic of sizes. Archives of the older format and compiled ones (AOTInductor) are refused.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.export.pt2_archive._package import PT2ArchiveReader
from torch.utils._sympy import functions

from services.predictor.formats.step import LoadError

PROGRAM = "models/model.json"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SAMPLES = "data/sample_inputs/model.pt"
_RAW = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
_OTHERS = re.compile(r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version")
_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed)\.(?!from_file)\w+\.\w+|torch\.sym_(float|int|ite|max|min|not|sqrt)"
    r"|_operator\.(add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|not_|or_|pow|sub|truediv)"
    r"|math\.(ceil|floor|sqrt|trunc)"
)
_WORDS = frozenset(functions.__all__) | set(
    re.findall(
        r"\w+",
        "Add And Eq Equality Float Ge GreaterThan Gt Integer Le LessThan Lt Max Min Mod Mul Ne Not Or Pow Rational "
        "StrictGreaterThan StrictLessThan Symbol True Unequality False evaluate false finite integer negative "
        "nonnegative nonzero positive precision real true",
    )
)
_QUOTED = re.compile(r"'[A-Za-z]?\d[\d.]*'")
_SYMBOL = re.compile(r"[suzf]\d+")
_WORD = re.compile(r"[A-Za-z_]\w*")
_SIZES = re.compile(r"[\w\s()+\-*/%<>=!&|,.]*")


def check(content: bytes) -> dict[str, Any]:
    """The program of a file's content, if that holds nothing but a program.

    :raises LoadError: naming what it holds besides.
    """
    try:
        with PT2ArchiveReader(io.BytesIO(content)) as archive:
            names = archive.get_file_names()
            _check_names(names)
            for name in _CONFIGS:
                if name in names:
                    _check_config(json.loads(archive.read_bytes(name)))
            if _SAMPLES in names:
                torch.load(io.BytesIO(archive.read_bytes(_SAMPLES)), weights_only=True)
            program: dict[str, Any] = json.loads(archive.read_bytes(PROGRAM))
    except LoadError:
        raise
    except Exception as error:  # of zip, JSON and torch, whose unpickler has its own
        raise LoadError(f"no program of torch.export: {type(error).__name__}: {str(error)[:200]}") from None
    for key, value in _strings(program, ""):
        if key == "target" and not _TARGET.fullmatch(value):
            raise LoadError(f"operator {value[:80]!r}: programs have those of ATen only")
        if key == "expr_str" and not _is_size(value):
            raise LoadError(f"{value[:80]!r} is no arithmetic of sizes")
    return program


def _check_names(names: list[str]) -> None:
    if PROGRAM not in names or len(names) != len(set(names)):
        raise LoadError("no program of torch.export, or of its older format: save it again")
    for name in names:
        if name not in (PROGRAM, _SAMPLES, *_CONFIGS) and not _RAW.fullmatch(name) and not _OTHERS.fullmatch(name):
            raise LoadError(f"the archive holds {name[:80]!r}: only programs with raw tensors are read")


def _check_config(config: dict[str, Any]) -> None:
    for name, entry in config["config"].items():
        if entry["use_pickle"]:
            raise LoadError(f"tensor {name[:80]!r} is a pickle, and a pickle runs code where it is read")


def _strings(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """All strings of a document with the key that they or their list stand under."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _strings(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, key)
    elif isinstance(value, str):
        yield key, value


def _is_size(expression: str) -> bool:
    bare = _QUOTED.sub("0", expression)
    words = (word for word in _WORD.findall(bare) if not _SYMBOL.fullmatch(word))
    return bool(_SIZES.fullmatch(bare)) and all(word in _WORDS for word in words)
