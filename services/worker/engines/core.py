"""What is said to a `SyncEngine` and by it, and the one loop that drives it.

`run_core` drives it from one place, a thread (`threaded.py`) or a process of its own (`process.py`), over a `CoreLink`:
commands come in, reports go out. The other end of the link is `driven.py`, on the worker's event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from libs.telemetry import get_logger
from services.worker.engines.port import Capacity, EngineInfo, EngineLoadError, SequenceRequest, StepOutput
from services.worker.engines.sync import SyncEngine

log = get_logger(__name__)


# ---- commands: from the event loop to the core ---------------------------------------------------------------------


class Add(msgspec.Struct, array_like=True, tag="add"):
    """Take these sequences in."""

    requests: Sequence[SequenceRequest]


class Cancel(msgspec.Struct, array_like=True, tag="cancel"):
    """End these sequences."""

    handles: Sequence[int]


class Embed(msgspec.Struct, array_like=True, tag="embed"):
    """Compute embeddings between steps; answered by `Embedded` of the same number."""

    number: int
    model: str
    prompts: Sequence[Sequence[int]]


class Abandon(msgspec.Struct, array_like=True, tag="abandon"):
    """Nobody waits for this `Embed` any more; it is not answered, unless it was."""

    number: int


class Bring(msgspec.Struct, array_like=True, tag="bring"):
    """Load a model; answered by `Changed`."""

    model: str
    folder: str


class TakeOut(msgspec.Struct, array_like=True, tag="take_out"):
    """Unload a model; answered by `Changed`."""

    model: str


class Stop(msgspec.Struct, array_like=True, tag="stop"):
    """Leave the loop and close the core."""


Command = Add | Cancel | Embed | Abandon | Bring | TakeOut | Stop


# ---- reports: from the core to the event loop ----------------------------------------------------------------------


class Loaded(msgspec.Struct, array_like=True, tag="loaded"):
    """The core is ready."""

    info: EngineInfo
    capacity: Capacity


class Stepped(msgspec.Struct, array_like=True, tag="stepped"):
    """One step, with the load after it. `taken` counts the `Add` commands that the core has taken since its start."""

    output: StepOutput
    capacity: Capacity
    taken: int


class Idle(msgspec.Struct, array_like=True, tag="idle"):
    """Commands were taken and left nothing to step."""

    capacity: Capacity
    taken: int


class Embedded(msgspec.Struct, array_like=True, tag="embedded"):
    """The answer to `Embed`: vectors, or the error that the core raised."""

    number: int
    vectors: list[list[float]]
    error: Exception | None = None


class Changed(msgspec.Struct, array_like=True, tag="changed"):
    """The answer to `Bring` or `TakeOut`: what the core is now, and the error that kept it from changing."""

    model: str
    loaded: bool
    info: EngineInfo
    seconds: dict[str, float]
    error: Exception | None = None


class Failed(msgspec.Struct, array_like=True, tag="failed"):
    """The core raised, in `load` if there was no `Loaded` before; it runs no more."""

    error: Exception


Report = Loaded | Stepped | Idle | Embedded | Changed | Failed


class CoreLink(Protocol):
    """The core's end of the way to the event loop."""

    def receive(self, *, idle: bool) -> Sequence[Command] | None:
        """Commands that have come, possibly none; None once the core is to stop. With `idle` it waits for a command or
        for `wake`. It also waits while the event loop is too far behind in taking reports."""

    def wake(self) -> None:
        """Let `receive` return; called from any thread."""

    def report(self, report: Report) -> None:
        """Send a report; does not wait for anybody."""


def run_core(make_core: Callable[[], SyncEngine], link: CoreLink) -> None:
    """Make a core, load it, step it until `link` says stop or it fails, close it. Returns in every case: failures
    are reported."""
    try:
        core = make_core()
    except Exception as error:  # such as a library that the core needs and that is not there
        log.error("engine_core_not_made", exc_info=error)
        link.report(Failed(error))
        return
    try:
        core.load()
        link.report(Loaded(core.info, core.capacity()))
        _serve(core, link)
    except Exception as error:  # any fault of a core must end its sequences, whatever its type
        if not isinstance(error, EngineLoadError):  # its message says all, and whoever starts the engine gets it
            log.error("engine_core_failed", exc_info=error)
        link.report(Failed(error))
    try:
        core.close()
    except Exception as error:
        log.error("engine_core_not_closed", exc_info=error)


def _serve(core: SyncEngine, link: CoreLink) -> None:
    """Step while there is work, wait while there is none. Between two steps there is a piece of one embedding, so that
    none holds anybody's tokens up for long. One at a time: what is under way holds memory."""
    taken = 0
    embeddings: deque[_Embedding] = deque()
    while (commands := link.receive(idle=not (core.has_work() or embeddings))) is not None:
        for command in commands:
            match command:
                case Add(requests):
                    core.add(requests)
                    taken += 1
                case Cancel(handles):
                    core.cancel(handles)
                case Embed(number):
                    embeddings.append(_Embedding(number, _vectors(core, command)))
                case Abandon(number):
                    for each in [each for each in embeddings if each.number == number]:
                        each.work.close()
                        embeddings.remove(each)
                case Bring(model, folder):
                    core.bring(model, folder, link.wake)
                case TakeOut(model):
                    core.take_out(model)
        for change in core.changes():
            link.report(Changed(change.model, change.loaded, core.info, change.seconds, change.error))
        if embeddings:
            _advance(embeddings, link)
        if core.has_work():
            output = core.step()
            link.report(Stepped(output, core.capacity(), taken))
        else:
            link.report(Idle(core.capacity(), taken))


class _Embedding(NamedTuple):
    """An `Embed` under way."""

    number: int
    work: Generator[bool, None, list[list[float]]]


def _vectors(core: SyncEngine, command: Embed) -> Generator[bool, None, list[list[float]]]:
    """See `SyncEngine.embed`, of several prompts."""
    found: list[list[float]] = []
    for prompt in command.prompts:
        if found:
            yield True
        found.append((yield from core.embed(command.model, prompt)))
    return found


def _advance(embeddings: deque[_Embedding], link: CoreLink) -> None:
    """Compute a piece of the first one. One that waits for its model lets the others go first."""
    number, work = embeddings[0]
    try:
        if not next(work):
            embeddings.rotate(-1)
        return
    except StopIteration as done:
        answer = Embedded(number, done.value)
    except Exception as error:  # the caller gets whatever the core raised; other callers go on
        answer = Embedded(number, [], error)
    embeddings.popleft()
    link.report(answer)
