"""From a model folder to the record of its version: what the files say, and what the person who pushes it adds."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.files import FolderError, artifacts_in, json_object
from libs.artifacts.manifest import BLOBS, FOLDER_MANIFEST, full_name, inside
from libs.artifacts.progress import Watch
from libs.chat_template import TemplateError, chosen
from libs.children.alone import run_alone
from libs.model_files import format_of, is_pickle, pickle_fault
from libs.resources.schemas import schema_sha256
from libs.versions.ends import ends_of, token_ids

_TRIAL = 60.0
"""Seconds for the trial of a chat template; it has 5 of processor time."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_NOT_KEPT = (
    *("bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "epsilon_cutoff", "eta_cutoff", "guidance_scale"),
    *("min_length", "min_new_tokens", "no_repeat_ngram_size", "num_beams", "penalty_alpha", "stop_strings"),
    *("suppress_tokens", "typical_p"),
)
"""Of a generation_config.json, what shapes outputs and no record has; 0, 1 and nothing mean that it is off."""
_WANTED = ("name", "version", "pool", "architecture")
"""What every version says; those that generate say more."""
_TOKENIZER_PARTS = ("added_tokens.json", "merges.txt", "vocab.json", "vocab.txt")
"""Files of tokenizers of several files; what the others (`tokenizer_config.json`) hold maps no text to tokens."""


class FormatError(FolderError):
    """A file is of another format than is said of it."""

    def __init__(self, path: str, said: str, found: str) -> None:
        super().__init__(f"{path} is said to be {said}, but it is {found}")
        self.path, self.said, self.found = path, said, found


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person says of a model version; empty and zero leave it to the folder's files."""

    name: str = ""
    version: str = ""
    tier: str = ""
    """"fast" or "quality"."""
    pool: str = ""
    """The worker pool that serves it."""
    namespace: str = ""
    """Whose keys sign it; empty is "default"."""
    architecture: str = ""
    context_length: int = 0
    """Tokens."""
    max_tokens: int = 0
    """Tokens that a request gets that does not say."""
    safety_policies: Sequence[str] = ()
    """"strict@1"; they replace those of manifest.json."""
    training_data_sha256: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Offline metrics; laid over the folder's."""
    source_uri: str = ""
    revision: str = ""
    builder: str = ""
    built_at: float = 0.0
    """Unix seconds; 0: unknown."""
    base: str = ""
    """The version it was made from, "name@version"."""
    unchecked: str = ""
    """Why no engine can serve it, where it is to be pushed nevertheless."""
    prediction: pb.PredictionSpec | None = None
    """In the place of that of manifest.json."""
    added: Mapping[str, Path] = field(default_factory=dict)
    """By path in the version, files that are not the folder's, or instead of its own."""


def describe(
    folder: Path, options: Options, known: Iterable[pb.ModelVersion] = (), watch: Watch | None = None
) -> pb.ModelVersion:
    """The record of the model in a folder, unsigned, with `source` "blobs:". Reads and digests every file whose digest
    is not known (see `artifacts_in`).

    Files: those that `manifest.json` lists, if there is one (in the form of models/demo/*/manifest.json; digests in it
    must be right); else all files that are not hidden. What it says of the model counts before what `config.json`,
    `generation_config.json` and `tokenizer_config.json` say, and `options` count before both. Tier, pool and
    `max_tokens`, if nobody says them, are those of the base among the versions that are `known`, or else of the newest
    one of the name; architecture, context length and tokenizer are the base's, because an adapter's folder does not say
    what it adapts. The tokenizer's digest is of its files where there are any, whatever the manifest says: streams are
    carried over between versions with the same one.

    Versions that predict (`prediction` in manifest.json: a `PredictionSpec`) need no tier and no context.

    :raises FolderError: a file is missing, outside the folder, a link, empty or not what manifest.json says; something
        that must be known is nowhere said.
    :raises OSError: a file cannot be read.
    """
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder")
    listed = json_object(folder / FOLDER_MANIFEST)
    artifacts = artifacts_in(folder, listed, options.added, watch)
    paths = {each.path: each.sha256 for each in artifacts}
    config = json_object(folder / "config.json") if "config.json" in paths else {}
    generation = json_object(folder / "generation_config.json") if "generation_config.json" in paths else {}
    sampling = {**_sampling(generation), **_mapping(listed, "sampling_defaults")}
    architectures = config.get("architectures") or [""]
    name = options.name or _text(listed, "name")
    provenance = _provenance(_mapping(listed, "provenance"), options)
    known = list(known)
    base, like = alike(name, provenance.base, known)
    built = pb.ModelVersion(
        name=name,
        version=options.version or _text(listed, "version"),
        artifacts=artifacts,
        source=BLOBS,
        architecture=options.architecture
        or _text(listed, "architecture")
        or str(architectures[0])
        or base.architecture,
        context_length=options.context_length
        or _number(listed, "context_length")
        or context_in(config)
        or base.context_length,
        tier=options.tier or _text(listed, "tier") or like.tier,
        pool=options.pool or _text(listed, "pool") or like.pool,
        sampling_defaults=pb.SamplingDefaults(
            temperature=_float(sampling, "temperature", 1.0),
            top_p=_float(sampling, "top_p", 1.0),
            max_tokens=options.max_tokens or _number(sampling, "max_tokens") or like.sampling_defaults.max_tokens,
            top_k=_number(sampling, "top_k"),
            min_p=_float(sampling, "min_p", 0.0),
            repetition_penalty=_float(sampling, "repetition_penalty", 0.0),
        ),
        eos_token_ids=_eos(listed, folder, paths),
        safety_policies=options.safety_policies or _texts(listed, "safety_policies"),
        training_data_sha256=options.training_data_sha256 or _text(listed, "training_data_sha256"),
        chat_template_sha256=_template_digest(folder, paths) or _text(listed, "chat_template_sha256"),
        namespace=options.namespace or _text(listed, "namespace"),
        schema_sha256=_text(listed, "schema_sha256") or paths.get("schema.json", ""),
        tokenizer_sha256=_tokenizer_digest(paths) or _text(listed, "tokenizer_sha256") or base.tokenizer_sha256,
    )
    if not options.max_tokens and "max_tokens" not in _mapping(listed, "sampling_defaults"):
        # Nobody said it of this context, which may be shorter than the checkpoint's.
        built.sampling_defaults.max_tokens = min(built.sampling_defaults.max_tokens, built.context_length)
    for name, value in {**_mapping(listed, "offline_metrics"), **options.metrics}.items():
        if not isinstance(value, int | float):
            raise FolderError(f"{FOLDER_MANIFEST}: the offline metric {name} must be a number")
        built.offline_metrics[str(name)] = float(value)
    if provenance != pb.Provenance():
        built.provenance.CopyFrom(provenance)
    try_template(folder, paths)
    if options.prediction is not None:
        built.prediction.CopyFrom(options.prediction)
    elif said := _mapping(listed, "prediction"):
        built.prediction.CopyFrom(prediction_of(said))
    if built.HasField("prediction"):
        for step in built.prediction.steps:
            check_step(folder, step)
        formats = [step.format for step in built.prediction.steps]
        built.architecture = built.architecture or next((each for each in formats if each != "python"), "")
        # A mesh that has one pool of predictors needs no name for it.
        pools = {each.pool for each in known if each.HasField("prediction")}
        built.pool = built.pool or (pools.pop() if len(pools) == 1 else "")
        schema, said_schema = schema_sha256(built.prediction), _text(listed, "schema_sha256")
        if said_schema not in ("", schema):
            raise FolderError(f"{FOLDER_MANIFEST}: schema_sha256 is {said_schema}; inputs and outputs have {schema}")
        built.schema_sha256 = schema
    for name in _WANTED if built.HasField("prediction") else (*_WANTED, "tier", "context_length"):
        if not getattr(built, name):
            raise FolderError(f"{folder} does not say its {name.replace('_', ' ')}; say --{name.replace('_', '-')}")
    return built


def check_step(folder: Path, step: pb.PredictionStep) -> None:
    """Refuses pickles, and files that are certainly of another format than the step says.

    :raises FormatError, FolderError: it is one; there is no such file.
    """
    if not inside(step.path) or not (folder / step.path).is_file():
        raise FolderError(f"{FOLDER_MANIFEST}: prediction: there is no file {step.path!r}")
    if is_pickle(folder / step.path):
        raise FolderError(pickle_fault(step.path))
    if (found := format_of(folder / step.path)) not in ("", step.format):
        raise FormatError(step.path, step.format, found)


def _sampling(generation: Mapping[str, Any]) -> dict[str, Any]:
    # A checkpoint that does not sample says so by do_sample, whatever temperature stands beside it.
    if generation.get("do_sample") is False:
        found = {"temperature": 0.0}
    else:
        found = {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}
    if generation.get("repetition_penalty") not in (None, 1, 1.0):
        found["repetition_penalty"] = generation["repetition_penalty"]
    if generation.get("max_new_tokens"):
        found["max_tokens"] = generation["max_new_tokens"]
    return found


def not_kept(folder: Path, paths: Container[str]) -> list[str]:
    """What generation_config.json says of outputs and no version's record has, a line each.

    :raises FolderError: it is malformed.
    """
    generation = json_object(folder / "generation_config.json") if "generation_config.json" in paths else {}
    said = {name: generation[name] for name in _NOT_KEPT if generation.get(name) not in (None, 0, 1, [], "")}
    return [f"generation_config.json: {name} is {value!r}, which nobody does here" for name, value in said.items()]


def _eos(listed: Mapping[str, Any], folder: Path, paths: Mapping[str, str]) -> Sequence[int]:
    try:
        said = token_ids(listed.get("eos_token_ids"))
        return said or ends_of(lambda name: json_object(folder / name) if name in paths else {})
    except (TypeError, ValueError) as error:
        raise FolderError(f"{folder}: what ends a sequence is malformed ({error})") from error


def _tokenizer_digest(paths: Mapping[str, str]) -> str:
    """That of the file that holds the whole tokenizer, or else of the list of its parts; "" when there are none."""
    if whole := paths.get("tokenizer.json") or paths.get("tokenizer.model"):
        return whole
    parts = [f"{name} {paths[name]}\n" for name in _TOKENIZER_PARTS if name in paths]
    return hashlib.sha256("".join(parts).encode()).hexdigest() if parts else ""


def _template_digest(folder: Path, paths: Container[str]) -> str:
    """Of the template's text, wherever it stands."""
    template = _template(folder, paths)
    return hashlib.sha256(template.encode()).hexdigest() if template else ""


def _template(folder: Path, paths: Container[str]) -> str:
    alone = (folder / "chat_template.jinja").read_bytes() if "chat_template.jinja" in paths else None
    config, older = (
        json_object(folder / name) if name in paths else {} for name in ("tokenizer_config.json", "chat_template.json")
    )
    try:
        return chosen(alone, config, older)
    except TemplateError as error:
        raise FolderError(f"chat_template: {error}") from error


def context_in(config: Mapping[str, Any]) -> int:
    """The context that a config.json says, tokens; 0: it says none.

    :raises FolderError: it is malformed.
    """
    field = "max_position_embeddings"
    return _number(config, field) or _number(_mapping(config, "text_config"), field)


def try_template(folder: Path, paths: Container[str]) -> bool:
    """Renders conversations with the folder's chat template, in a process of its own, which the operating system bounds
    (see libs.chat_template). False: it has none.

    :param paths: the files that make the version.
    :raises FolderError: it must not be used.
    """
    template = _template(folder, paths)
    if template:
        _render(template)
    return bool(template)


def _render(template: str) -> None:
    try:
        tried = run_alone("libs.chat_template", template.encode(), seconds=_TRIAL)
    except TimeoutError:
        raise FolderError(f"chat_template: still renders after {_TRIAL} s") from None
    if tried.returncode:
        said = tried.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if tried.returncode == 1 and said else "its trial went beyond its time or memory"
        raise FolderError(f"chat_template: {why[:300]}")


def alike(name: str, base: str, versions: Sequence[pb.ModelVersion]) -> tuple[pb.ModelVersion, pb.ModelVersion]:
    """The base, and what the version is most like; empty records where there is none."""
    nothing = pb.ModelVersion()
    found = next((each for each in versions if full_name(each) == base), nothing)
    same = [each for each in versions if each.name == name]
    newest = max(same, key=lambda each: each.created_at.ToNanoseconds(), default=nothing)
    return found, newest if found is nothing else found


def _provenance(said: Mapping[str, Any], options: Options) -> pb.Provenance:
    made = pb.Provenance()
    for name in ("source_uri", "revision", "builder", "base"):
        setattr(made, name, getattr(options, name) or _text(said, name))
    made.unchecked = options.unchecked
    if options.built_at:
        made.built_at.FromNanoseconds(int(options.built_at * 1e9))
    elif said.get("built_at"):
        try:
            made.built_at.FromJsonString(str(said["built_at"]))
        except ValueError as error:
            raise FolderError(f"{FOLDER_MANIFEST}: provenance.built_at is no RFC 3339 time") from error
    return made


def prediction_of(said: Mapping[str, Any]) -> pb.PredictionSpec:
    """A manifest's `prediction`.

    :raises FolderError: it is none.
    """
    try:
        return json_format.ParseDict(dict(said), pb.PredictionSpec())
    except json_format.ParseError as error:
        raise FolderError(f"{FOLDER_MANIFEST}: prediction: {error}") from error


def _mapping(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name) or {}
    if not isinstance(value, dict):
        raise FolderError(f"{FOLDER_MANIFEST}: {name} must be an object")
    return value


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return "" if value is None else str(value)


def _texts(content: Mapping[str, Any], name: str) -> list[str]:
    value = content.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise FolderError(f"{name} must be a list of texts")
    return value


def _number(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name) or 0
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise FolderError(f"{name} must be a whole number")
    return value


def _float(content: Mapping[str, Any], name: str, default: float) -> float:
    value = content.get(name, default)
    if not isinstance(value, int | float):
        raise FolderError(f"{name} must be a number")
    return float(value)
