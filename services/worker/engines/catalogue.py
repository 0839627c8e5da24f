"""Engines by name: the explicit registry. Heavy libraries are imported by the engine that needs them, at its start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from libs import shipped
from libs.clock import Clock
from services.worker.config import Settings, SimulatedFaults, SimulatedOptions
from services.worker.engines.port import Engine, EngineLoadError
from services.worker.engines.step_costs import StepCosts

OnFailure = Callable[[BaseException], None]


def create(settings: Settings, *, clock: Clock, on_failure: OnFailure | None = None) -> Engine:
    """The engine that the settings name, not yet started. `on_failure` is called once, on the loop, if it breaks.

    :raises EngineLoadError: no engine has this name, or its settings make no sense.
    """
    builder = _BUILDERS.get(settings.engine)
    if builder is None:
        raise EngineLoadError(f"no engine is called {settings.engine!r}; there are {', '.join(sorted(_BUILDERS))}")
    if settings.engine != "simulated":  # which needs no folder
        served = {model: folder for model, folder in settings.models.items() if folder}
        settings = msgspec.structs.replace(settings, models=served)
    return builder(settings, clock, on_failure)


def _torch(settings: Settings, clock: Clock, on_failure: OnFailure | None) -> Engine:
    from services.worker.engines.torch_engine import AdapterSource, TorchSettings
    from services.worker.engines.torch_engine.hosting import build

    options = msgspec.structs.asdict(settings.torch)
    folders = {name: Path(options[name]) if options[name] else None for name in ("spill_folder", "weight_cache")}
    adapters = {
        model: AdapterSource(base=adapter.base, folder=Path(adapter.folder))
        for model, adapter in settings.torch.adapters.items()
    }
    models = {model: Path(folder) for model, folder in settings.models.items()}
    return build(
        TorchSettings(models=models, **options | folders | {"adapters": adapters}),
        clock=clock,
        on_failure=on_failure,
        isolation=settings.engine_isolation,
    )


def _simulated(settings: Settings, clock: Clock, on_failure: OnFailure | None) -> Engine:
    from services.worker.engines.simulated import SimulatedEngine
    from services.worker.engines.simulated_model import SimulatedModel
    from services.worker.engines.simulated_versions import faults_of, read_files

    options = settings.simulated
    files = {model: read_files(folder) for model, folder in settings.models.items()}
    first = next((files[model] for model, folder in settings.models.items() if folder), read_files(""))
    set_here = {model: _set_fields(faults) for model, faults in options.versions.items()}
    faults = {
        model: faults_of(model, folder, files[model].faults, set_here.get(model, {}))
        for model, folder in settings.models.items()
    }
    try:
        model = SimulatedModel(
            models=tuple(settings.models),
            vocabulary=options.vocabulary or first.vocabulary or 4096,
            first_token=options.first_token,
            eos_token_ids=first.eos_token_ids if options.end_of_sequence else frozenset(),
            block_size=options.block_size,
            total_blocks=options.total_blocks,
            max_running=options.max_running,
            max_context=options.max_context or first.max_context or 4096,
            max_step_tokens=options.max_step_tokens,
            seed=options.seed,
            preemptive=options.preemptive,
            faults=faults,
            **asdict(_step_costs(options)),
        )
        return SimulatedEngine(
            model,
            clock=clock,
            step_interval=options.step_interval,
            faults=set_here,
            fixed_vocabulary=options.vocabulary > 0,
            fixed_context=options.max_context > 0,
            end_of_sequence=options.end_of_sequence,
        )
    except (TypeError, ValueError) as error:
        raise EngineLoadError(f"simulated engine: {error}") from error


def _set_fields(faults: SimulatedFaults) -> dict[str, Any]:
    """Those that the settings name."""
    return {name: value for name, value in msgspec.structs.asdict(faults).items() if value is not None}


def _step_costs(options: SimulatedOptions) -> StepCosts:
    """Those of the calibration file if one is named.

    :raises ValueError: the file cannot be used, or a cost is negative.
    """
    from services.worker.calibration import report

    if options.calibration:
        return report.read(shipped.find(options.calibration)).costs.step_costs()
    names = (field.name for field in fields(StepCosts))
    costs = {name: float(getattr(options, name)) for name in names}
    if min(costs.values()) < 0:
        raise ValueError("costs must not be negative")
    return StepCosts(**(costs | {"prefill_tokens_per_second": options.prefill_tokens_per_second or math.inf}))


def _tensorrt_llm(settings: Settings, clock: Clock, on_failure: OnFailure | None) -> Engine:
    from services.worker.checkpoint_files import ends_in
    from services.worker.engines.tensorrt_llm import TensorrtSettings, build

    if len(settings.models) != 1:  # it cannot load others while it runs
        raise EngineLoadError("the TensorRT-LLM engine serves exactly one model")
    options = settings.tensorrt_llm
    [(model, folder)] = settings.models.items()
    return build(
        TensorrtSettings(
            model=model,
            folder=folder,
            block_size=options.block_size,
            total_blocks=options.total_blocks,
            max_running=options.max_running,
            max_context=options.max_context,
            tensor_parallel=options.tensor_parallel,
            require_manifest=options.require_manifest,
            eos_token_ids=ends_in(Path(folder)),
        ),
        clock=clock,
        on_failure=on_failure,
    )


def _vllm(settings: Settings, clock: Clock, on_failure: OnFailure | None) -> Engine:
    from services.worker.engines.vllm import VllmSettings, build

    if len(settings.models) != 1:
        raise EngineLoadError("the vLLM engine serves exactly one model, and adapters of it")
    [(model, folder)] = settings.models.items()
    options = {name: getattr(settings.vllm, name) for name in settings.vllm.__struct_fields__}
    return build(VllmSettings(model=model, folder=folder, **options), clock=clock, on_failure=on_failure)


_BUILDERS: dict[str, Callable[[Settings, Clock, OnFailure | None], Engine]] = {
    "torch": _torch,
    "simulated": _simulated,
    "tensorrt_llm": _tensorrt_llm,
    "vllm": _vllm,
}
