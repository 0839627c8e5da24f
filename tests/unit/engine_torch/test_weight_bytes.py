"""What a model is said to take in memory beside what it does take: `weight_bytes` is a bound only if the two agree."""

import pytest
import support_checkpoints as support
import torch

from libs.clock import SystemClock
from services.worker.engines.torch_engine.loading import StageTimer, read_checkpoint
from services.worker.engines.torch_engine.model import Decoder, weight_bytes
from services.worker.model_files import ModelFiles


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_takes_what_it_was_said_to_take(tmp_path, kind, tied):
    support.save_checkpoint(tmp_path, vocab_size=1000, tie_word_embeddings=tied, max_position_embeddings=4096)
    checkpoint = read_checkpoint(ModelFiles(tmp_path), StageTimer(support.MODEL, SystemClock()))
    said = weight_bytes(checkpoint.config, kind, torch.device("cpu"))
    # Norms are not in the second figure, scales of int8 not in the first.
    assert Decoder(checkpoint.config, checkpoint.weights, kind=kind).nbytes == pytest.approx(said, rel=0.08)
