"""A version's steps, one after the other."""

from __future__ import annotations

import numpy as np

from services.predictor.formats.step import LoadError, Step
from services.predictor.port import Signature, Tensors


class Chain:
    """The `Model` of a linear chain: each step reads of the version's inputs and of what the steps before it gave.

    :raises LoadError: no step gives an output that is declared.
    """

    def __init__(self, signature: Signature, steps: tuple[Step, ...]) -> None:
        self.signature = signature
        self.native = all(step.native for step in steps)
        self._steps = steps
        given = {tensor.name for step in steps for tensor in step.outputs}
        for tensor in signature.outputs:
            if tensor.name not in given:
                raise LoadError(f"no step gives the output {tensor.name!r}")
        self._default = frozenset(tensor.name for tensor in signature.outputs if not tensor.on_request)
        self._plans: dict[frozenset[str], tuple[frozenset[str], ...]] = {self._default: self._plan(self._default)}

    def run(self, inputs: Tensors, outputs: frozenset[str] | None = None) -> dict[str, np.ndarray]:
        """See `port.Model`."""
        wanted = self._default if outputs is None else outputs
        plan = self._plans.get(wanted) or self._plan(wanted)
        if len(self._steps) == 1:
            return self._steps[0].run(inputs, wanted)
        tensors = dict(inputs)
        for step, needed in zip(self._steps, plan, strict=True):
            if needed:
                tensors |= step.run(tensors, needed)
        return {name: tensors[name] for name in wanted}

    def close(self) -> None:
        """See `port.Model`."""
        for step in self._steps:
            step.close()

    def _plan(self, wanted: frozenset[str]) -> tuple[frozenset[str], ...]:
        """Which outputs each step must give: those wanted in the end, and those that later steps read. Nobody reads of
        a step: it does not run."""
        plan: list[frozenset[str]] = []
        needed = wanted
        for step in reversed(self._steps):
            own = needed & {tensor.name for tensor in step.outputs}
            plan.append(own)
            needed = needed - own | (frozenset(step.inputs) if own else frozenset())
        return tuple(reversed(plan))
