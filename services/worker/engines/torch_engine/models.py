"""Everything of the torch engine that computes: the models in memory, their arena, their tokenizers' structures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import torch

from libs.clock import Clock
from libs.families import ModelConfig
from services.worker.engines.port import EngineLoadError, SequenceRequest
from services.worker.engines.torch_engine.adapters import LoraWeights
from services.worker.engines.torch_engine.adapting import AdapterSet
from services.worker.engines.torch_engine.attention import AttentionShape, build_attention
from services.worker.engines.torch_engine.blocks import BlockManager
from services.worker.engines.torch_engine.kv import BlockShape, KvMemory, bytes_per_block
from services.worker.engines.torch_engine.loading import Checkpoint, StageTimer
from services.worker.engines.torch_engine.model import Decoder, weight_bytes
from services.worker.engines.torch_engine.prefix import PrefixNames
from services.worker.engines.torch_engine.runner import ModelRunner
from services.worker.engines.torch_engine.sampler import Sampled, SequenceSampler
from services.worker.engines.torch_engine.sequences import Chunk, ModelLimits
from services.worker.engines.torch_engine.settings import TorchSettings
from services.worker.engines.torch_engine.shelf import Changes, Shelf
from services.worker.engines.torch_engine.structure import Structures
from services.worker.model_files import ModelFiles

_SMALLEST_BLOCK = 64  # bytes; of an arena that nobody uses yet


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can run, and the adapters of it that are in memory."""

    runner: ModelRunner
    adapters: AdapterSet


class Models:
    """Made once, in the engine's thread; reads, verifies and tests the models that fit.

    `busy` names the models and adapters that have running sequences.
    """

    def __init__(self, settings: TorchSettings, *, clock: Clock, busy: Callable[[], Set[str]]) -> None:
        """:raises EngineLoadError: a model cannot be used; the message names the file."""
        self._settings = settings
        self._busy = busy
        self.device = _device(settings.device)
        torch.set_num_threads(settings.threads)
        dtype = torch.bfloat16 if settings.weights == "bfloat16" else torch.float32
        self.shelf = Shelf(settings, clock=clock, size=self._size, make=self._make, admit=self._admit)
        self.shelf.open()
        self._structures: dict[str, Structures] = {}
        self._dtype = dtype
        self._take_memory(bytes_per_block(self._shapes()) if self.shelf.configs else 0)
        if not self.shelf.configs:
            prepare_attention(settings.block_size, dtype, self.device)
        with torch.inference_mode():
            self.shelf.fill()

    def pool(self) -> BlockManager:
        """The books of the arena's blocks."""
        memory = self.memory
        return BlockManager(
            self.total_blocks,
            host=memory.host_blocks,
            disk=memory.disk_blocks,
            owner_cap=int(self.total_blocks * self._settings.tenant_share),
            intact=lambda slot: self.memory.intact(slot),
        )

    def limits(self) -> dict[str, ModelLimits]:
        """What the scheduler must know of every model and adapter."""
        return {name: limits_of(config) for name, config in self.shelf.configs.items()}

    def make_room(self, model: str, config: ModelConfig) -> bool:
        """Make the memory of keys and values fit for a further model. While there are models its blocks become wider,
        at most; the first one decides how many there are, and what it says then is True.

        :raises EngineLoadError: there is no memory for that.
        """
        shape = BlockShape(config, self._settings.block_size, self._dtype)
        have, settings = self.memory.bytes_per_block, self._settings
        needed = bytes_per_block([*self._shapes(), shape])
        try:
            if not self.shelf.configs:
                if needed == have:
                    return False
                self.memory.close()
                self._take_memory(needed)
                return True
            if shape.nbytes <= have and have % shape.row_bytes == 0:
                return False
            if settings.kv_bytes:
                raise EngineLoadError(
                    f"{model}: its KV blocks have {needed} bytes, and kv_bytes was divided into blocks of {have}; "
                    "start the worker with this model, or load it first"
                )
            self.memory.widen(needed)
        except (OSError, RuntimeError) as error:
            raise EngineLoadError(f"{model}: no memory for KV blocks of {needed} bytes ({error})") from error
        self._arena = self.memory.arena(self._dtype)
        return False

    def names_of(self, model: str, files: ModelFiles) -> PrefixNames:
        """How the blocks of a model or adapter are named; `files` are those of its weights.

        :raises EngineLoadError: it has public prefixes and its tokenizer cannot be read.
        """
        adapter = model if model in self._settings.adapters else ""  # its content is what was read of it first
        content = f"{files.key} {adapter} {self._settings.weights} {self._dtype}"
        return PrefixNames(content, self._settings.block_size, self._public_prefixes(model, files))

    def forget(self, model: str) -> None:
        """A model leaves for good."""
        self._structures.pop(model, None)

    def names(self) -> dict[str, PrefixNames]:
        """How the blocks of every model and adapter are named.

        :raises EngineLoadError: there are public prefixes for a model whose tokenizer cannot be read.
        """
        shelf = self.shelf
        return {name: self.names_of(name, shelf.files(shelf.base(name))) for name in shelf.configs}

    def sampler(self, request: SequenceRequest, seed: int) -> SequenceSampler:
        """A sequence's sampling state.

        :raises StructureError: its structure is malformed, unsupported or too complex.
        :raises EngineLoadError: it asks for a structure and the model's tokenizer cannot be used.
        """
        matcher = None
        if request.params.structure is not None:
            matcher = self._structures_of(request.model).matcher(request.params.structure)
        ends: list[int] = []
        if request.params.min_tokens:
            config = self.shelf.configs[request.model]
            found = request.params.ends(frozenset(config.eos_token_ids))
            ends = [token for token in found if token < config.vocabulary]
        return SequenceSampler.create(
            request.params, request.prompt, seed, matcher=matcher, resumed=request.resumed, ends=ends
        )

    def execute(
        self, base: str, chunks: Sequence[Chunk], samplers: Mapping[int, SequenceSampler]
    ) -> list[Sampled | None]:
        """Compute chunks of one model and its adapters; see `ModelRunner.execute`."""
        loaded = self.shelf.loaded(base)
        if loaded.runner.arena is not self._arena:  # it has become wider
            loaded.runner.move_to(self._arena)
        adapting = loaded.adapters.adapt(
            [chunk.sequence.request.model for chunk in chunks], [chunk.count for chunk in chunks]
        )
        with torch.inference_mode():
            return loaded.runner.execute(chunks, samplers, adapting)

    def examine(self, base: str) -> None:
        """Repeat the self-test of a model's load.

        :raises EngineLoadError: it fails.
        """
        with torch.inference_mode():
            self.shelf.loaded(base).runner.self_test(base)

    def embed(self, name: str, prompt: Sequence[int], most: Callable[[], int]) -> Generator[bool, None, list[float]]:
        """See `ModelRunner.embed`.

        :raises EngineLoadError: the model is unknown or not in memory.
        :raises ValueError: a prompt is empty, too long or holds an unknown token id.
        """
        loaded = self.shelf.loaded(name)
        return loaded.runner.embed(prompt, most, lambda tokens: loaded.adapters.adapt([name], [tokens]))

    def numerics(self, names: Iterable[str]) -> dict[str, str]:
        """See `EngineInfo.numerics`; an adapter's are its base's."""
        bases = {name: self.shelf.peek(self.shelf.base(name)) for name in names}
        return {
            name: base.runner.numerics
            for name, base in bases.items()
            if base and base.runner.numerics and base.adapters.exact(name)
        }

    def turn(self, *, used: Set[str], wanted: Sequence[str]) -> Changes:
        """See `Shelf.turn`."""
        return self.shelf.turn(used=used, wanted=wanted, busy=self._busy)

    def timings(self) -> tuple[float, float, float]:
        """Seconds that all runners have spent on preparing, forward passes and sampling."""
        timings = [loaded.runner.timings for loaded in self.shelf.all_loaded()]
        return (
            sum(each.prepare for each in timings),
            sum(each.forward for each in timings),
            sum(each.sample for each in timings),
        )

    def close(self) -> None:
        """Drop everything."""
        self.shelf.close()
        self.memory.close()

    # ---- called by the shelf ----------------------------------------------------------------------------------------

    def _make(self, name: str, checkpoint: Checkpoint, timer: StageTimer) -> Loaded:
        settings = self._settings
        with torch.inference_mode():
            with timer.stage("build"):
                model = Decoder(
                    checkpoint.config,
                    checkpoint.weights,
                    kind=settings.weights,
                    device=self.device,
                    positions=self._positions(checkpoint.config),
                )
                runner = ModelRunner(model, self._arena, block_size=settings.block_size, rows=settings.max_running)
            with timer.stage("warm_up"):
                runner.warm_up(prompt_tokens=settings.max_step_tokens)
            with timer.stage("self_test"):
                runner.self_test(name)
        adapters = AdapterSet(
            name, checkpoint.config, most=settings.max_adapters, dtype=model.dtype, device=self.device
        )
        return Loaded(runner, adapters)

    def _admit(self, loaded: Loaded, name: str, weights: LoraWeights) -> Sequence[str]:
        return loaded.adapters.add(name, weights, busy=self._busy())

    def _size(self, config: ModelConfig) -> int:
        return weight_bytes(config, self._settings.weights, self.device, self._positions(config))

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _positions(self, config: ModelConfig) -> int:
        """How many tokens the longest sequence can have."""
        return min(config.context, self.total_blocks * self._settings.block_size)

    def _shapes(self) -> list[BlockShape]:
        return [BlockShape(each, self._settings.block_size, self._dtype) for each in self.shelf.configs.values()]

    def _take_memory(self, block: int) -> None:
        """Make the arena and its tiers for blocks of so many bytes; 0: no model is known yet."""
        settings = self._settings
        self.total_blocks = settings.kv_bytes // block if settings.kv_bytes and block else settings.total_blocks
        if self.total_blocks < 1:
            raise EngineLoadError(f"kv_bytes: a block has {block} bytes")
        try:
            self.memory = KvMemory(
                bytes_per_block=block or _SMALLEST_BLOCK,
                total_blocks=self.total_blocks,
                host_blocks=settings.host_bytes // block if block else 0,
                disk_blocks=settings.disk_bytes // block if block else 0,
                disk_folder=settings.spill_folder,
                device=self.device,
            )
        except (OSError, RuntimeError) as error:
            raise EngineLoadError(f"no memory for keys and values: {error}") from error
        self._arena = self.memory.arena(self._dtype)

    def _structures_of(self, name: str) -> Structures:
        base = self.shelf.base(name)
        if base not in self._structures:
            config = self.shelf.configs[base]
            self._structures[base] = Structures.load(
                self.shelf.files(base), vocabulary=config.vocabulary, eos_token_ids=config.eos_token_ids
            )
        return self._structures[base]

    def _public_prefixes(self, name: str, files: ModelFiles) -> list[list[int]]:
        texts = self._settings.public_prefixes.get(name, ())
        if not texts:
            return []
        content = files.read("tokenizer.json")
        import tokenizers

        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing narrower
            raise EngineLoadError(f"{files.folder / 'tokenizer.json'}: {error}") from error
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def limits_of(config: ModelConfig) -> ModelLimits:
    """What the scheduler must know of a model."""
    return ModelLimits(
        context=config.context,
        vocabulary=config.vocabulary,
        eos_token_ids=frozenset(config.eos_token_ids),
        window=max(config.windows) if all(config.windows) and config.windows else 0,
    )


def prepare_attention(block_size: int, dtype: torch.dtype, device: torch.device) -> None:
    """Load or compile attention's kernel, so that the first model need not wait for that."""
    shape = AttentionShape(heads=1, kv_heads=1, head_width=32, layers=1, block_size=block_size, dtype=dtype)
    build_attention(shape, device)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EngineLoadError(f"device {name} cannot be used: {error}") from error
    return device
