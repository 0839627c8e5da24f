"""A model's process: `python -m services.predictor.executors.child SOCKET PARENT INPUTS OUTPUTS`, by `process.py`.

One thread: it waits for a batch, runs it, says so. It ends with its predictor.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from weir.registry.v1 import registry_pb2

from libs.children.child import be_a_child
from services.predictor.executors.lanes import STALL_SECONDS
from services.predictor.executors.loading import Prepared, resident
from services.predictor.executors.shared import Arena
from services.predictor.executors.wire import PACKET, Given, Load, Loaded, Refused, Run, decode_asked, encode
from services.predictor.files import Files
from services.predictor.port import LoadError, Model, ModelError

_BEAT_SECONDS = 0.0005
_MESSAGE = 2000
_TRIES = 2


def main() -> None:
    """Load a model, then run what comes until the predictor hangs up."""
    be_a_child(int(sys.argv[2]))
    link = socket.socket(fileno=int(sys.argv[1]))
    inputs, outputs = Arena(int(sys.argv[3])), Arena(int(sys.argv[4]))
    model: Model | None = None
    while packet := _receive(link):
        asked = decode_asked(packet)
        answer: Loaded | Given | Refused
        try:
            if isinstance(asked, Load):
                model, answer = _load(asked)
            else:
                answer = _run(model, asked, inputs, outputs)
        except Exception as error:  # whatever a library raises is said, and the next batch may be a better one
            answer = Refused(type(error).__name__)
            if isinstance(error, (LoadError, ModelError)):
                answer = Refused(type(error).__name__, str(error)[:_MESSAGE], getattr(error, "tensor", "")[:_MESSAGE])
        link.send(encode(answer))
        del asked, answer
    os._exit(0)  # tearing down libraries would only take time


def _receive(link: socket.socket) -> bytes:
    try:
        return link.recv(PACKET)
    except OSError:
        return b""


def _load(asked: Load) -> tuple[Model, Loaded]:
    # What comes over this socket is the predictor's own; nobody else holds its other end.
    prepare: Callable[[Files, registry_pb2.PredictionSpec], Prepared] = pickle.loads(asked.prepare)  # noqa: S301
    spec = registry_pb2.PredictionSpec.FromString(asked.spec)
    files = Files(Path(asked.folder), asked.listed)
    prepared, stall = _watched(lambda: prepare(files, spec))
    for _ in range(_TRIES):  # the first may have been its libraries, which a predictor has; others keep a machine busy
        if not prepared.model.native or stall <= STALL_SECONDS:
            break
        again, once_more = _watched(lambda: prepare(files, spec))
        again.model.close()
        stall = min(stall, once_more)
    model = prepared.model
    return model, Loaded(model.signature, model.native, prepared.samples, stall, resident())


def _run(model: Model | None, asked: Run, inputs: Arena, outputs: Arena) -> Given:
    if model is None:
        raise RuntimeError("nothing is loaded")
    outputs.trim()  # the predictor has read what was in it
    began = time.monotonic()
    given = inputs.read(asked.inputs, copy=False)
    found = model.run(given, None if asked.outputs is None else frozenset(asked.outputs))
    seconds = time.monotonic() - began
    return Given(outputs.write({name: [array] for name, array in found.items()}), seconds, resident())


def _watched(load: Callable[[], Prepared]) -> tuple[Prepared, float]:
    """What it gives, and the longest time for which it let no other thread run meanwhile, in seconds. Only time in
    which this process ran counts: others may keep the machine busy.
    """
    done = threading.Event()
    worst = 0.0

    def beat() -> None:
        nonlocal worst
        last, used = time.monotonic(), time.process_time()
        while not done.wait(_BEAT_SECONDS):
            now, now_used = time.monotonic(), time.process_time()
            worst = max(worst, min(now - last, now_used - used))
            last, used = now, now_used

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        found = load()
    finally:
        done.set()
        thread.join()
    return found, worst


if __name__ == "__main__":
    main()
