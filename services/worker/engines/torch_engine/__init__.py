"""The torch engine: continuous batching of Llama-family checkpoints on a CPU. Importing it does not import torch."""

from services.worker.engines.torch_engine.engine import TorchCore, build
from services.worker.engines.torch_engine.settings import AdapterSource, TorchSettings

__all__ = ["AdapterSource", "TorchCore", "TorchSettings", "build"]
