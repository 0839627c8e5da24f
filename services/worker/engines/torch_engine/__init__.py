"""The torch engine: continuous batching of Llama-family checkpoints on a CPU. Importing it does not import torch."""

from services.worker.engines.torch_engine.engine import TorchCore, TorchSettings, build

__all__ = ["TorchCore", "TorchSettings", "build"]
