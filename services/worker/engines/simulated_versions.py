"""The versions that a simulated engine serves: where each one's tokens come from, and what is wrong with it on purpose.

Versions of one vocabulary give the same tokens for the same input, as two good versions of a model nearly do; a faulty
one fails, is slow or says something else, so that rollouts have something to find. Faults never touch the sequences of
other versions: a slow version's sequences wait, they do not lengthen anybody's steps.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.worker.checkpoint_files import ends_in, read_object
from services.worker.engines.port import EngineLoadError

FAULTS_FILE = "simulated.json"
DRAWS = 1 << 14
"""Length of a table of draws; a power of two."""
_LATEST_ERROR = 8
"""A sequence that is to fail does so in place of one of so many first tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """See `services.worker.config.SimulatedFaults`."""

    error_rate: float = 0.0
    ttft_factor: float = 1.0
    itl_factor: float = 1.0
    garble: bool = False

    def __post_init__(self) -> None:
        """:raises ValueError: a rate or factor makes no sense."""
        if not 0.0 <= self.error_rate <= 1.0:
            raise ValueError(f"error_rate is {self.error_rate}, not from 0 to 1")
        for name in ("ttft_factor", "itl_factor"):
            if not 1.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, not a number from 1 up")

    @property
    def slow(self) -> bool:
        """Whether its sequences take longer than others."""
        return self.ttft_factor > 1.0 or self.itl_factor > 1.0


SOUND = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFiles:
    """What the files of a model folder say."""

    vocabulary: int = 0
    """0: nothing."""
    max_context: int = 0
    """Likewise."""
    eos_token_ids: frozenset[int] = frozenset()
    faults: Mapping[str, Any] = field(default_factory=dict)
    """Those of simulated.json."""


def read_files(folder: str) -> VersionFiles:
    """What the model folder says; nothing when it is "".

    :raises EngineLoadError: the folder or its config.json is missing, or a file is malformed; the message names it.
    """
    if not folder:
        return VersionFiles()
    config = read_object(Path(folder) / "config.json")
    path = Path(folder) / FAULTS_FILE
    try:
        return VersionFiles(
            vocabulary=int(config.get("vocab_size", 0)),
            max_context=int(config.get("max_position_embeddings", 0)),
            eos_token_ids=frozenset(ends_in(Path(folder))),
            faults=read_object(path) if path.exists() else {},
        )
    except (TypeError, ValueError) as error:
        raise EngineLoadError(f"{folder}/config.json: malformed ({error})") from error


def faults_of(model: str, folder: str, told: Mapping[str, Any], set_here: Mapping[str, Any]) -> Faults:
    """The faults that the folder's file tells, under those of the settings.

    :raises EngineLoadError: a field is unknown, of another kind or out of range.
    """
    try:
        faults = Faults(**(dict(told) | dict(set_here)))
    except (TypeError, ValueError) as error:
        where = f"{folder}/{FAULTS_FILE}" if told else f"simulated.versions of {model}"
        raise EngineLoadError(f"{where}: {error}") from error
    return SOUND if faults == SOUND else faults


class SimulatedVersion:
    """One version."""

    __slots__ = ("_rng", "draws", "eos", "faults", "logprob", "max_context", "vocabulary")

    def __init__(
        self,
        name: str,
        *,
        vocabulary: int,
        first_token: int,
        eos: frozenset[int],
        max_context: int,
        seed: int,
        faults: Faults = SOUND,
    ) -> None:
        """Tokens are drawn from [first_token, vocabulary) without `eos`. `seed` also decides which sequences fail.

        :raises ValueError: the vocabulary leaves nothing to draw, or a size is not positive.
        """
        if vocabulary < 2 or max_context < 1:
            raise ValueError("vocabulary and max_context must be positive")
        drawable = [token for token in range(min(first_token, vocabulary // 2), vocabulary) if token not in eos]
        if not drawable:
            raise ValueError("every token of the vocabulary is an end of sequence")
        # Strings seed by their whole content, whatever the interpreter's hash seed is.
        rng = random.Random(f"{seed} {name}" if faults.garble else seed)
        self.draws = rng.choices(drawable, k=DRAWS)
        self.logprob = -math.log(len(drawable))
        self.vocabulary = vocabulary
        self.max_context = max_context
        self.eos = eos
        self.faults = faults
        self._rng = random.Random(f"faults {seed} {name}")

    def fails_at(self) -> int:
        """Which token of the next sequence is an error instead, from 1; 0: none."""
        if not self.faults.error_rate or self._rng.random() >= self.faults.error_rate:
            return 0
        return self._rng.randint(1, _LATEST_ERROR)
