"""The torch engine: continuous batching of decoders from safetensors. Importing it imports neither torch nor what
drives it (`hosting.py`): where torch and numpy are, its core runs."""

from services.worker.engines.torch_engine.engine import TorchCore
from services.worker.engines.torch_engine.settings import AdapterSource, TorchSettings

__all__ = ["AdapterSource", "TorchCore", "TorchSettings"]
