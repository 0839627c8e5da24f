"""Rebuilds the demo models: corpus, tokenizer, training, files and manifests.

`python -m models.training [--only fast|quality] [--output models/demo] [--work .weir/training]`
"""

from __future__ import annotations

import argparse
import hashlib
import logging
from pathlib import Path

import torch

from models.training import manifest, tokenizer, train
from models.training.corpus import Corpus, sha256

DOCUMENTS = 40_000
CORPUS_SEED = 20
HELD_OUT_SEED = 21

logger = logging.getLogger("models.training")


def main() -> None:
    """Train what the arguments name and write the checkpoints."""
    parser = argparse.ArgumentParser(prog="python -m models.training", description=__doc__)
    parser.add_argument("--only", choices=sorted(train.RECIPES), action="append", help="train only this model")
    parser.add_argument("--output", type=Path, default=Path("models/demo"), help="where the checkpoints go")
    parser.add_argument("--work", type=Path, default=Path(".weir/training"), help="resumable training states")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)

    dialogues = list(Corpus(CORPUS_SEED).draw(DOCUMENTS))
    digest = sha256(dialogues)
    bpe = tokenizer.train(dialogues, train.VOCABULARY)
    stream = train.encode(bpe, dialogues)
    unseen = train.encode(bpe, list(Corpus(HELD_OUT_SEED).draw(400)))
    logger.info("%d documents, %d tokens, sha256 %s", len(dialogues), len(stream), digest)
    for name in arguments.only or sorted(train.RECIPES):
        recipe = train.RECIPES[name]
        # The state belongs to this corpus and this recipe; a changed one starts afresh.
        key = hashlib.sha256(f"{digest} {recipe}".encode()).hexdigest()[:12]
        state = arguments.work / f"{name}-{key}.pt"
        model = train.train(recipe, stream, state)
        logger.info("%s held-out loss %.3f", name, train.held_out_loss(model, unseen))
        folder = arguments.output / name
        train.save(recipe, model, bpe, folder)
        manifest.write(folder, name=f"weir-{name}", version="1", training_data_sha256=digest)


if __name__ == "__main__":
    main()
