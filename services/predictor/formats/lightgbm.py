"""LightGBM: models saved as text.

Takes one FP32 or FP64 matrix [-1, features], gives FP64; categories are their codes. NaN, ±inf and categories that were
not in the training data go where LightGBM sends them.

Options: `input`, `output`, `contributions` (names of tensors, see trees.py); `predict` ("value" or "margin", before the
link function); `rounds` (the first so many iterations only; by default all, or those that early stopping kept);
`threads` (1).
"""

from __future__ import annotations

import lightgbm as lgb
import numpy as np

from services.predictor.formats.sound import check_lightgbm
from services.predictor.formats.step import THREADS, LoadError, Wiring
from services.predictor.formats.trees import Ports, ports, shaped
from services.predictor.port import ModelError, Tensors


class Booster:
    """The `Step` of a booster."""

    native = True

    def __init__(self, booster: lgb.Booster, wired: Ports, *, margin: bool, rounds: int | None, threads: int) -> None:
        self.inputs = (wired.matrix.name,)
        self.outputs = wired.outputs
        self._booster, self._ports = booster, wired
        self._margin, self._rounds, self._threads = margin, rounds, threads

    def run(self, tensors: Tensors, wanted: frozenset[str]) -> dict[str, np.ndarray]:
        """See `Step`."""
        name = self._ports.matrix.name
        matrix = tensors[name]
        try:
            return {
                tensor.name: shaped(self._compute(matrix, tensor is self._ports.contributions), tensor, len(matrix))
                for tensor in self.outputs
                if tensor.name in wanted
            }
        except (lgb.basic.LightGBMError, ValueError, TypeError):
            raise ModelError(f"input {name!r}: refused", name) from None

    def _compute(self, matrix: np.ndarray, contributions: bool) -> np.ndarray:
        found = self._booster.predict(
            matrix,
            num_iteration=self._rounds,
            raw_score=self._margin,
            pred_contrib=contributions,
            num_threads=self._threads,
        )
        return np.asarray(found)

    def close(self) -> None:
        """See `Step`."""
        del self._booster


def load(content: bytes, wiring: Wiring) -> Booster:
    """Load a step.

    :raises LoadError: the content is no model, or does not fit its declaration.
    """
    options = wiring.options
    threads = options.count("threads", 1, THREADS)
    booster = read_booster(content)
    return Booster(
        booster,
        ports(wiring, booster.num_feature(), "FP64"),
        margin=options.choice("predict", ("value", "margin")) == "margin",
        rounds=options.count("rounds", 0, booster.current_iteration()) or None,
        threads=threads,
    )


def read_booster(content: bytes) -> lgb.Booster:
    """A booster of trees.

    :raises LoadError: the content is none.
    """
    try:
        text = content.decode()
        check_lightgbm(text)
        return lgb.Booster(model_str=text)
    except (lgb.basic.LightGBMError, UnicodeDecodeError, ValueError) as error:
        raise LoadError(f"no LightGBM model: {str(error)[:200]}") from None
