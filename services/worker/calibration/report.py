"""The calibration file: where the costs come from, the costs, and how wrong they are. TOML, written and read here."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from services.worker.engines.step_costs import StepCosts


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured, and where."""

    engine: str
    """The engine's name; "simulated" when the measurement was itself of a simulation."""
    model: str
    """Version, "weir-fast@1"."""
    parameters: int
    """Of the model, in all."""
    weights: str
    """As computed with: "float32", "bfloat16" or "int8"."""
    machine: str
    """Processor and number of cores, or the accelerator."""
    software: str
    """Library and version that computes."""
    threads: int
    """Threads of one operation."""
    clock: Literal["wall", "cpu"]
    """What steps were timed by: the clock on the wall, or the time that the process computed."""
    measured: str
    """Day, "2026-01-31"."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that the costs were measured under and that a simulation should share."""

    block_size: int
    total_blocks: int
    max_running: int
    max_step_tokens: int
    max_context: int


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`StepCosts` in seconds, 0 where something costs nothing: also as the rate, which TOML could write as inf but
    the settings of a worker cannot."""

    step_base: float
    step_per_sequence: float
    step_per_context_token: float
    step_per_padded_token: float
    step_per_prompt: float
    prefill_tokens_per_second: float
    prefill_per_attended_token: float

    @classmethod
    def of(cls, costs: StepCosts) -> Costs:
        """To write, with six digits: more were never measured."""
        values = {name: float(f"{getattr(costs, name):.6g}") for name in cls.__struct_fields__}
        if values["prefill_tokens_per_second"] == math.inf:
            values["prefill_tokens_per_second"] = 0.0
        return cls(**values)

    def step_costs(self) -> StepCosts:
        """To compute with."""
        values = msgspec.structs.asdict(self)
        return StepCosts(**(values | {"prefill_tokens_per_second": self.prefill_tokens_per_second or math.inf}))


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the simulation is off, relative to what was measured: 0.1 is ten per cent. Signed ones are above 0 where
    the simulation takes longer."""

    fit_median: float
    """Of the step times that were fitted."""
    fit_p90: float
    step_median: float
    """Of the step times of a mixed workload that was not."""
    step_p90: float
    ttft_p50: float
    """Signed, of that workload's median time to the first token."""
    ttft_p90: float
    """Signed, of its 90th percentile."""
    total: float
    """Signed, of its whole duration."""
    repeat_total: float
    """Spread (largest - smallest, over the median) of the measured durations: what the machine itself varies by."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    source: Source
    sizes: Sizes
    costs: Costs
    errors: Errors


class CalibrationFileError(ValueError):
    """The file cannot be read or says something else; the message names it."""


def read(path: Path) -> Calibration:
    """The calibration in a file.

    :raises CalibrationFileError: there is none.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Calibration)
    except OSError as error:
        raise CalibrationFileError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # neither TOML nor, for msgspec, the right shape
        raise CalibrationFileError(f"{path}: {error}") from error
    if not all(0 <= cost < math.inf for cost in msgspec.structs.astuple(found.costs)):
        raise CalibrationFileError(f"{path}: a cost is negative or no number")
    return found


def text(calibration: Calibration) -> str:
    """The file's content."""
    lines = [
        "# What one step of a real engine takes, measured by `weir calibrate`. The simulated engine spends it:",
        "# worker.simulated.calibration = the path of this file. Seconds, tokens per second, relative errors.",
    ]
    for name, table in msgspec.structs.asdict(calibration).items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in msgspec.structs.asdict(table).items()]
    return "\n".join(lines) + "\n"


def settings(calibration: Calibration, path: str) -> list[str]:
    """`weir up` options that simulate what was measured, sizes included."""
    sizes = msgspec.structs.asdict(calibration.sizes)
    return [f"worker.simulated.calibration={path}", *(f"worker.simulated.{key}={sizes[key]}" for key in sizes)]


def _value(value: Any) -> str:
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()  # a TOML basic string escapes as JSON does
    return repr(value)
