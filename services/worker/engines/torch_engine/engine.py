"""The synchronous core of the torch engine: schedule → execute → apply, one step at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from libs.clock import Clock
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SequenceRequest,
    StepOutput,
)
from services.worker.engines.sync import Change
from services.worker.engines.torch_engine.blocks import BlockManager
from services.worker.engines.torch_engine.compiling import Compiling
from services.worker.engines.torch_engine.embedding import Embeddings
from services.worker.engines.torch_engine.outcome import Timings, output_of, report, token_of
from services.worker.engines.torch_engine.pacing import Pacer
from services.worker.engines.torch_engine.scheduler import Scheduler, SchedulerOptions
from services.worker.engines.torch_engine.sequences import Chunk, Plan
from services.worker.engines.torch_engine.settings import TorchSettings

if TYPE_CHECKING:
    from services.worker.engines.torch_engine.loading import Checkpoint
    from services.worker.engines.torch_engine.models import Models
    from services.worker.engines.torch_engine.moving import Moving
    from services.worker.engines.torch_engine.sampler import Sampled, SequenceSampler

_IDLE_SECONDS = 0.01
"""How long a step waits for a model that is being read when there is nothing else to do."""

_UNUSABLE_IN_A_ROW = 8
"""Sequences without finite logits after which their models are tested."""

_CHECK_SECONDS = 1.0
"""Between two comparisons of all blocks with all sequences, which happen when the engine falls idle."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What exists once the engine is loaded."""

    models: Models
    moving: Moving
    pool: BlockManager
    scheduler: Scheduler


class TorchCore:
    """A `SyncEngine` over one or more Llama-family models and their LoRA adapters."""

    def __init__(
        self, settings: TorchSettings, *, clock: Clock, draw_seed: Callable[[], int] = lambda: secrets.randbits(64)
    ) -> None:
        """`draw_seed` gives the seed of a request that brings none."""
        self._settings = settings
        self._clock = clock
        self._draw_seed = draw_seed
        self._pacer = Pacer(target=settings.itl_target, least=settings.block_size)
        self._loaded: _Parts | None = None
        self._samplers: dict[int, SequenceSampler] = {}
        self._compiling = Compiling(self._sampler)
        self._used: frozenset[str] = frozenset()
        self._embeddings = Embeddings(self._embed_tokens)
        self._prefilled = 0
        self._unusable: list[str] = []  # models, one for each sequence that failed since the last token
        self._resident: tuple[str, ...] | None = None
        self._steps = 0
        self._check_after = 0.0
        self._last_step_seconds = 0.0
        self.timings = Timings()

    @property
    def info(self) -> EngineInfo:
        """The models and adapters that are served now; `max_context` is the largest of theirs."""
        settings, parts = self._settings, self._loaded
        total = parts.models.total_blocks if parts else settings.total_blocks
        shelf = parts.models.shelf if parts else None
        known = shelf.configs if shelf else dict.fromkeys((*settings.models, *settings.adapters))
        hidden = parts.moving.hidden if parts else frozenset[str]()
        served = tuple(name for name in known if name not in hidden)
        limits = [each for name, each in parts.models.limits().items() if name not in hidden] if parts else []
        return EngineInfo(
            engine="torch",
            simulated=False,
            models=served,
            block_size=settings.block_size,
            total_blocks=total,
            max_running=settings.max_running,
            max_context=max((min(each.context, total * settings.block_size) for each in limits), default=0),
            preemptive=True,
            holds_shares=True,
            device=parts.models.device.type if parts else "cpu",
            load_seconds={name: each for name, each in shelf.load_seconds.items() if name in served} if shelf else {},
            weight_cache_files=shelf.cache_outcomes if shelf else {},
            numerics=parts.models.numerics(served) if parts else {},
        )

    def load(self) -> None:
        """Verify all models; read, warm up and test those that fit in memory.

        :raises EngineLoadError: one of them cannot be used; the message names the file.
        """
        from services.worker.engines.torch_engine.models import Models
        from services.worker.engines.torch_engine.moving import Moving

        models = Models(self._settings, clock=self._clock, busy=self._busy)
        moving = Moving(models.shelf, accept=self._accept, forget=self._forget, uses=self._uses)
        self._loaded = parts = _assemble(models, moving, self._settings)
        for name in models.shelf.configs.keys() - models.shelf.runnable:
            parts.scheduler.set_away(name)
        self._resident = _resident(models)

    def add(self, requests: Sequence[SequenceRequest]) -> None:
        """See `SyncEngine.add`."""
        free = [request for request in requests if not self._must_compile(request)]
        self._parts.scheduler.add(free)

    def cancel(self, handles: Sequence[int]) -> None:
        """See `SyncEngine.cancel`; the memory is free at once."""
        for handle in self._compiling.forget(handles):
            self._parts.scheduler.report(handle, FinishReason.CANCELLED)
        self._parts.scheduler.cancel(handles)

    def has_work(self) -> bool:
        """See `SyncEngine.has_work`."""
        parts = self._loaded
        return parts is not None and (parts.scheduler.has_work() or len(self._compiling) > 0 or parts.moving.due)

    def step(self) -> StepOutput:
        """See `SyncEngine.step`."""
        parts, monotonic = self._parts, self._clock.monotonic
        started = monotonic()
        self._shelve()
        self._take_compiled()
        before = parts.models.timings()
        plan = parts.scheduler.schedule(started, self._pacer.prompt_tokens())
        scheduled = monotonic()
        parts.models.memory.carry_out(plan.moves)
        output = output_of(self._steps, plan.ended)
        for ended in plan.ended:
            self._samplers.pop(ended.handle, None)
        applied = 0.0
        for base, chunks in self._by_base(plan).items():
            applied += self._execute(base, chunks, output)
        self._finish(plan, output, started)
        prepare, forward, sample = (now - then for now, then in zip(parts.models.timings(), before, strict=True))
        self.timings = Timings(scheduled - started, prepare, forward, sample, applied, self._last_step_seconds)
        return output

    def capacity(self) -> Capacity:
        """See `SyncEngine.capacity`."""
        parts, pacer = self._parts, self._pacer
        scheduler, pool = parts.scheduler, parts.pool
        return Capacity(
            free_blocks=pool.free,
            running=scheduler.running,
            waiting=scheduler.waiting + len(self._compiling),
            queued_prefill_tokens=scheduler.queued_prefill_tokens,
            last_step_seconds=self._last_step_seconds,
            decode_step_seconds=pacer.decode_seconds,
            prefill_tokens_per_second=pacer.prompt_tokens_per_second,
            cached_blocks=pool.cached,
            swapped=scheduler.swapped,
            fragmentation=scheduler.fragmentation,
            prefix_queried_total=scheduler.prefix_counters.queried,
            prefix_hit_total=scheduler.prefix_counters.hit,
            preemptions_total=scheduler.preemptions,
            spilled_blocks=pool.spilled,
            resident=self._resident,
        )

    def embed(self, model: str, prompt: Sequence[int]) -> Generator[bool, None, list[float]]:
        """See `SyncEngine.embed`."""
        return self._embeddings.compute(self._parts.models, model, prompt, self._await_model)

    def bring(self, model: str, folder: str, wake: Callable[[], None]) -> None:
        """See `SyncEngine.bring`."""
        self._parts.moving.bring(model, Path(folder), wake)

    def take_out(self, model: str) -> None:
        """See `SyncEngine.take_out`."""
        self._parts.moving.take_out(model)

    def changes(self) -> Sequence[Change]:
        """See `SyncEngine.changes`."""
        if not self._parts.moving.under_way:
            return ()
        self._parts.moving.advance()  # it may put other parts in place of these
        self._shelve()
        self._parts.moving.advance()
        return list(self._parts.moving.ended())

    def close(self) -> None:
        """Drop the models and every sequence."""
        self._compiling.close()
        self._samplers.clear()
        if self._loaded is not None:
            self._loaded.models.close()
            self._loaded = None

    # ---- one step -------------------------------------------------------------------------------------------------

    def _shelve(self) -> None:
        """Tell the shelf what is wanted and the scheduler what has become of it."""
        scheduler, models, moving = self._parts.scheduler, self._parts.models, self._parts.moving
        awaited = [name for name in self._embeddings.awaited if name not in models.shelf.runnable]
        wanted = list(dict.fromkeys((*scheduler.wanted_models(), *moving.wanted, *awaited)))
        changes = models.turn(used=self._used.union(self._embeddings.busy), wanted=wanted)
        for name in changes.present:
            scheduler.set_present(name)
        for name in changes.away:
            scheduler.set_away(name)
        if changes.present or changes.away:
            self._resident = _resident(models)
        for failed, message in changes.failed.items():
            for name in models.shelf.configs:
                if failed in (name, models.shelf.base(name)):
                    scheduler.fail_model(name, message)
                    self._embeddings.fail(name, message)
            moving.fail(failed, models.shelf.reasons.get(failed, message))

    # ---- models that come and go, called by `Moving` ---------------------------------------------------------------

    def _accept(self, model: str, checkpoint: Checkpoint) -> None:
        from services.worker.engines.torch_engine.models import limits_of

        parts = self._parts
        if parts.models.make_room(model, checkpoint.config):
            self._loaded = parts = _assemble(parts.models, parts.moving, self._settings)
        names = parts.models.names_of(model, checkpoint.files)
        parts.scheduler.add_model(model, limits_of(checkpoint.config), names)

    def _forget(self, model: str) -> None:
        parts = self._parts
        parts.scheduler.remove_model(model)
        parts.models.forget(model)
        self._used -= {model}

    def _uses(self, model: str) -> bool:
        embeds = model in self._embeddings.busy or model in self._embeddings.awaited
        return embeds or self._parts.scheduler.uses(model) or self._compiling.uses(model)

    def _busy(self) -> Set[str]:
        """Models and adapters that compute something now."""
        return self._parts.scheduler.busy_models().union(self._embeddings.busy)

    # ---- embeddings, called by `Embeddings` ------------------------------------------------------------------------

    def _await_model(self) -> None:
        """Wait a moment for a model that is read, unless there are steps, which see to it."""
        if not self.has_work():
            self._shelve()
            self._parts.models.shelf.wait(_IDLE_SECONDS)

    def _embed_tokens(self) -> int:
        """What the last step has left of the prompt tokens that may come between two tokens of others."""
        settings, scheduler = self._settings, self._parts.scheduler
        if not scheduler.has_work():
            return settings.max_step_tokens
        most = self._pacer.prompt_tokens()
        most = settings.max_step_tokens if most is None else min(most, settings.max_step_tokens)
        return max(settings.block_size, most - self._prefilled)

    # ---- a step's parts --------------------------------------------------------------------------------------------

    def _by_base(self, plan: Plan) -> Mapping[str, list[Chunk]]:
        """The chunks of each model, its adapters' among them; single tokens first, each adapter's together."""
        base, grouped = self._parts.models.shelf.base, dict[str, list[Chunk]]()
        for name, chunks in plan.chunks.items():
            grouped.setdefault(base(name), []).extend(chunks)
        return {name: sorted(chunks, key=_order) for name, chunks in grouped.items()}

    def _execute(self, base: str, chunks: Sequence[Chunk], output: StepOutput) -> float:
        """Compute and account for chunks; returns the seconds that the accounting took."""
        for chunk in chunks:
            if chunk.samples:
                self._prepare(chunk, output)
        results = self._parts.models.execute(base, chunks, self._samplers)
        began = self._clock.monotonic()
        sampled = [token_of(result) for result in results]
        handles = [chunk.sequence.request.handle for chunk in chunks]
        told = {handle: result for handle, result in zip(handles, results, strict=True) if result is not None}
        complete = {handle for handle, result in told.items() if result.ends}
        for advanced in self._parts.scheduler.apply(chunks, sampled, complete=complete):
            handle = advanced.sequence.request.handle
            report(output, advanced, told.get(handle))
            if advanced.finish:
                self._samplers.pop(handle, None)
        self._examine(base, told.values())
        return self._clock.monotonic() - began

    def _prepare(self, chunk: Chunk, output: StepOutput) -> None:
        """Before a sequence's first token: its sampling state, and how much of its prompt was found."""
        request = chunk.sequence.request
        if request.handle not in self._samplers:
            self._samplers[request.handle] = self._sampler(request)
        if not chunk.sequence.produced:
            output.prompt_tokens_cached[request.handle] = chunk.sequence.cached or 0

    def _examine(self, base: str, results: Collection[Sampled]) -> None:
        """Tell an engine that makes no numbers any more from prompts that a model makes none of: when sequences failed
        so in a row and none got a token, their models must pass the test of their load once more.

        :raises EngineLoadError: one does not.
        """
        if any(result.token is not None for result in results):
            self._unusable.clear()
        self._unusable += [base for result in results if result.token is None and not result.error]
        if len(self._unusable) >= _UNUSABLE_IN_A_ROW:
            for name in dict.fromkeys(self._unusable):
                self._parts.models.examine(name)
            self._unusable.clear()

    def _must_compile(self, request: SequenceRequest) -> bool:
        """Whether the sequence waits for its structure first; it does from now on."""
        parts = self._parts
        if request.params.structure is None or request.model not in parts.models.shelf.configs:
            return False
        if request.handle in self._compiling or request.handle in parts.scheduler:
            return False  # submitted twice: the scheduler says so
        self._compiling.start(request)
        return True

    def _take_compiled(self) -> None:
        """Let sequences in whose structure is ready; those whose structure is at fault end with an error."""
        for request, sampler in self._compiling.finished():
            if isinstance(sampler, str):
                self._parts.scheduler.report(request.handle, FinishReason.ERROR, sampler)
            else:
                self._samplers[request.handle] = sampler
                self._parts.scheduler.add([request])

    def _sampler(self, request: SequenceRequest) -> SequenceSampler:
        seed = self._draw_seed() if request.params.seed is None else request.params.seed
        return self._parts.models.sampler(request, seed)

    def _finish(self, plan: Plan, output: StepOutput, started: float) -> None:
        """Account for the step; wait or check the books where there is nothing else to do."""
        parts = self._parts
        self._steps += 1
        self._used = frozenset(plan.chunks)
        if not plan.chunks and not plan.ended and self.has_work():
            parts.models.shelf.wait(_IDLE_SECONDS)
        self._last_step_seconds = output.step_seconds = self._clock.monotonic() - started
        chunks = [chunk for group in plan.chunks.values() for chunk in group]
        self._prefilled = prompt_tokens = sum(chunk.count for chunk in chunks if chunk.count > 1)
        decodes = sum(chunk.count == 1 for chunk in chunks)
        self._pacer.observe(decodes=decodes, prompt_tokens=prompt_tokens, seconds=output.step_seconds)
        now = self._clock.monotonic()
        if now >= self._check_after and not parts.scheduler.has_work():
            parts.scheduler.check_integrity()
            self._check_after = now + _CHECK_SECONDS

    @property
    def _parts(self) -> _Parts:
        if self._loaded is None:
            raise EngineLoadError("the engine is not loaded")
        return self._loaded


def _assemble(models: Models, moving: Moving, settings: TorchSettings) -> _Parts:
    pool = models.pool()
    options = SchedulerOptions(
        block_size=settings.block_size,
        max_running=settings.max_running,
        max_step_tokens=settings.max_step_tokens,
        prefix_cache=settings.prefix_cache,
        swap=settings.preemption == "swap",
        owner_share=settings.tenant_share,
    )
    scheduler = Scheduler(models=models.limits(), names=models.names(), pool=pool, options=options)
    return _Parts(models, moving, pool, scheduler)


def _resident(models: Models) -> tuple[str, ...] | None:
    """What may run now; None when that is everything."""
    shelf = models.shelf
    return None if shelf.runnable == shelf.configs.keys() else tuple(sorted(shelf.runnable))


def _order(chunk: Chunk) -> tuple[bool, str]:
    return chunk.count > 1, chunk.sequence.request.model
