"""Rebuilds the demo models of the unary plane; a minute on one core.

`python -m models.predict [--output models/demo]`
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import torch

from models.predict import cancer, diabetes, digits, folder, topics, wine

logger = logging.getLogger("models.predict")


def main() -> None:
    """Train all of them and write their folders."""
    parser = argparse.ArgumentParser(prog="python -m models.predict", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("models/demo"), help="where the folders go")
    output = parser.parse_args().output
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    networks: list[digits.Network] = []

    def train_digits(place: Path) -> folder.Trained:
        trained, network = digits.train(place)
        networks.append(network)
        return trained

    recipes: dict[str, Callable[[Path], folder.Trained]] = {
        "cancer-gbdt": cancer.train_gbdt,
        "cancer-linear": cancer.train_linear,
        "digits-torch": train_digits,
        "digits-int8": lambda place: digits.quantise(networks[0], place),
        "topics": topics.train,
        "diabetes-lgbm": diabetes.train,
        "wine-sklearn": wine.train,
    }
    for name, train in recipes.items():
        place = output / name
        place.mkdir(parents=True, exist_ok=True)
        trained = train(place)
        folder.write(trained, place)
        logger.info("%s: %s", name, ", ".join(f"{score.name} {score}" for score in trained.scores))


if __name__ == "__main__":
    main()
