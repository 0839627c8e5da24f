"""The configuration of a checkpoint's folder; what it says is judged in `libs.families`."""

from __future__ import annotations

from libs.families import ModelConfig, parse_config
from libs.versions.ends import ends_of
from services.worker.engines.port import EngineLoadError
from services.worker.model_files import ModelFiles

GENERATION = "generation_config.json"


def load_config(files: ModelFiles) -> ModelConfig:
    """The configuration of a checkpoint. What ends a sequence is said in three places: see `libs.versions.ends`.

    :raises EngineLoadError: a file is missing, malformed or asks for something this engine does not do.
    """
    path = files.folder / "config.json"
    raw = files.read_object("config.json")
    generation = files.read_object(GENERATION) if GENERATION in files else {}
    raw |= {key: generation[key] for key in ("bos_token_id",) if key in generation}
    try:
        if ends := ends_of(lambda name: files.read_object(name) if name in files else {}):
            raw["eos_token_id"] = list(ends)
        return parse_config(raw)
    except EngineLoadError as error:
        raise EngineLoadError(f"{path}: {error}") from None
    except (TypeError, ValueError) as error:  # of the ends
        raise EngineLoadError(f"{path}: malformed ({type(error).__name__}: {error})") from error
