"""Whether an engine can serve a checkpoint, said without loading it: by its JSON files and the headers of its weights.

What the torch engine can do is asked of the torch engine (`parse_config`, `check_weights`) and stands nowhere else.
vLLM and TensorRT-LLM decide when they load: here is what their adapters would refuse before that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

from libs.families import ModelConfig, parse_config
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.config import load_config
from services.worker.engines.torch_engine.weights import (
    INDEX,
    SINGLE,
    WEIGHT_TYPES,
    Weights,
    check_weights,
    load_weights,
)
from services.worker.model_files import ModelFiles

ENGINES = ("torch", "vllm", "tensorrt_llm", "simulated")
CONFIG = "config.json"
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_MOST_FIELDS = 300
"""Of a config.json in which it is looked for the fields that a reason lies in."""
_MOST_LOOKS = 2000
"""Fields that are looked at, in all: where many things speak against a config.json at once, not all are told."""
_LONGEST = 120
"""Characters of a value that are shown."""
_AUTOMATIC = "{} itself decides when it loads it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an engine would say of a folder."""

    engine: str
    reasons: tuple[str, ...] = ()
    """Why it cannot serve it, each in a line; none: it can, as far as is known without loading it."""
    notes: tuple[str, ...] = ()
    """What else there is to know."""
    weight_bytes: int = 0
    """Memory for weights as the engine holds them by default; 0: not known."""
    kv_bytes: int = 0
    """Memory for keys and values of one sequence as long as the context; 0: not known."""


def verdicts(files: ModelFiles, context: int = 0, common: Sequence[str] = ()) -> list[Verdict]:
    """What each engine would say.

    :param context: tokens of one sequence; 0: as many as the model was made for.
    :param common: what speaks against it whatever the engine is.
    """
    try:
        raw = files.read_object(CONFIG)
    except EngineLoadError as error:
        return [Verdict(engine=each, reasons=(*common, _short(files, error))) for each in ENGINES]
    weights, broken = _weights(files)
    reasons, config = _torch_config(files, raw, context)
    why = [*common, *([broken] if broken else [])]
    made = [
        _torch(files, config, weights, context, [*common, *reasons], broken),
        _vllm(raw, config, weights, context, why),
        Verdict(engine="tensorrt_llm", reasons=tuple(why), notes=(_AUTOMATIC.format("TensorRT-LLM"),)),
        Verdict(engine="simulated", reasons=tuple(common), notes=("it reads no weights: its answers are made up",)),
    ]
    if weights is not None:
        weights.close()
    return made


def refusals(raw: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], object]) -> list[str]:
    """Every reason for which an engine refuses a config.json, each with the fields that it lies in and their values.

    An engine says one reason at a time, and alone knows what it takes. So a reason lies in the fields without which it
    says something else that is no new fault, and the next one is what it says without those.

    :param parse: raises EngineLoadError for what the engine does not do.
    """
    return _refusals(raw, parse, frozenset(), count())


def _refusals(
    raw: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], object], left: frozenset[str], looks: Iterator[int]
) -> list[str]:
    reason = _refusal(raw, parse)
    if not reason.text:
        return []
    lies_in: dict[str, list[str]] = {}
    changing: set[str] = set()
    for name in raw.keys() - left if len(raw) <= _MOST_FIELDS else ():
        if next(looks) >= _MOST_LOOKS:
            break
        others = [{key: value for key, value in raw.items() if key != name}, {**raw, name: None}]
        for other in [*others, {**raw, name: 1}] if reason.malformed else others:
            then = _refusal(other, parse)
            if then.malformed or then.text == reason.text:
                continue
            changing.add(name)
            further = _refusals(other, parse, left | {name}, looks)
            if further or not then.text:
                lies_in[name] = max(lies_in.get(name, []), further, key=len)
    if left and not lies_in:
        return []  # it comes of what was left out
    blamed = lies_in or (() if reason.malformed else changing)
    fields = ", ".join(f"{name} is {_shown(raw[name])}" for name in sorted(blamed))
    first = f"{reason.text} ({CONFIG}: {fields})" if fields else reason.text
    return [first, *max(lies_in.values(), key=len, default=[])]


@dataclass(frozen=True, slots=True)
class _Refusal:
    text: str
    malformed: bool = False


def _refusal(raw: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], object]) -> _Refusal:
    try:
        parse(raw)
    except EngineLoadError as error:
        if error.__cause__ is None:
            return _Refusal(str(error))
        cause = error.__cause__
    except _MALFORMED as error:
        cause = error
    else:
        return _Refusal("")
    if isinstance(cause, KeyError):
        return _Refusal(f"{CONFIG}: {cause.args[0]} is missing", malformed=True)
    return _Refusal(f"{CONFIG} is malformed ({type(cause).__name__}: {cause})", malformed=True)


def _torch_config(files: ModelFiles, raw: Mapping[str, Any], context: int) -> tuple[list[str], ModelConfig | None]:
    if reasons := refusals(raw, parse_config):
        return reasons, None
    try:
        config = load_config(files)
    except EngineLoadError as error:
        return [_short(files, error)], None
    if context > config.context:
        said = f"a context of {context} tokens is longer than the model's ({CONFIG}: max_position_embeddings is"
        return [f"{said} {config.context})"], config
    return [], config


def _weights(files: ModelFiles) -> tuple[Weights | None, str]:
    """The headers, or why there are none that can be read."""
    there = sorted(path.name for path in files.folder.iterdir())
    pickled = [name for name in there if name.startswith("pytorch_model") and name.endswith(".bin")]
    if pickled and not any(name.endswith(".safetensors") for name in there):
        return None, (
            f"{pickled[0]}: weights are a pickle, which runs code where it is read, and there are no *.safetensors; "
            "model.save_pretrained(folder, safe_serialization=True) of transformers makes them"
        )
    try:
        return load_weights(files), ""
    except EngineLoadError as error:
        return None, _short(files, error)


def _torch(
    files: ModelFiles,
    config: ModelConfig | None,
    weights: Weights | None,
    context: int,
    reasons: list[str],
    broken: str,
) -> Verdict:
    if broken:
        reasons.append(broken)
    elif weights is not None and config is not None:
        try:
            check_weights(weights, config, files.folder / (INDEX if INDEX in files else SINGLE))
        except EngineLoadError as error:
            reasons.append(_short(files, error))
    elif weights is not None:
        odd = sorted({weights.info(name).kind for name in weights} - WEIGHT_TYPES)
        reasons += [f"tensors have the type {kind}; quantised weights are not read" for kind in odd]
    numbers = sum(prod(weights.info(name).shape) for name in weights) if weights is not None else 0
    kv = kv_values(config, context or config.context) if config is not None else 0
    halves = ("weights are held in float32; with weights: bfloat16 all of it takes half, with int8 weights a quarter",)
    return Verdict(
        engine="torch",
        reasons=tuple(reasons),
        notes=halves if not reasons else (),
        weight_bytes=4 * numbers,
        kv_bytes=4 * kv,
    )


def _vllm(
    raw: Mapping[str, Any], config: ModelConfig | None, weights: Weights | None, context: int, why: list[str]
) -> Verdict:
    named = raw.get("architectures")
    if not isinstance(named, list) or not named:
        why = [*why, f"{CONFIG} names no architectures"]
    notes = [_AUTOMATIC.format("vLLM")]
    if raw.get("auto_map"):
        notes.append(f"code that comes with a checkpoint is not run ({CONFIG}: auto_map): vLLM must know it itself")
    kv = kv_values(config, context or config.context) if config is not None else 0
    stored = weights.total_bytes if weights is not None else 0
    return Verdict(
        engine="vllm", reasons=tuple(why), notes=tuple(notes), weight_bytes=stored, kv_bytes=2 * kv if weights else 0
    )


def kv_values(config: ModelConfig, tokens: int) -> int:
    """Numbers that keys and values of so many tokens are."""
    return 2 * config.layers * config.kv_heads * config.head_width * tokens


def _short(files: ModelFiles, error: Exception) -> str:
    return str(error).replace(f"{files.folder}/", "")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
