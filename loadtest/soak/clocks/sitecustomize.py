"""Makes the wall clock of a Python process wrong while a file named by its pid says so: `make soak` puts this folder
first into PYTHONPATH of the mesh that it starts. Durations (`time.monotonic`) stay what they are, as on a machine whose
clock is set; so does gRPC's own clock, half of which is not Python: it would disagree with itself.

While a file named by its pid and ".disk" says so, its fsyncs return later, as on a disk that has much else to do."""

import os
import sys
import time
import types

_FOLDER = os.environ.get("WEIR_SOAK_CLOCKS", "")
_LOOK_SECONDS = 0.2
_GRPC = "grpc._cython.cygrpc"
_real = time.time
_syncs = os.fsync, os.fdatasync
_true = types.ModuleType("time")
_true.__dict__.update(time.__dict__)
_state = [0.0, 0.0]  # when it was looked last, and by how much the clock is ahead


def _told() -> float:
    now = time.monotonic()
    if now - _state[0] >= _LOOK_SECONDS:
        _state[0] = now
        if _GRPC in sys.modules:
            sys.modules[_GRPC].time = _true
        try:
            with open(f"{_FOLDER}/{os.getpid()}", encoding="ascii") as file:
                _state[1] = float(file.read())
        except (OSError, ValueError):
            _state[1] = 0.0
    return _real() + _state[1]


def _later(sync):
    def synced(descriptor):
        try:
            with open(f"{_FOLDER}/{os.getpid()}.disk", encoding="ascii") as file:
                time.sleep(float(file.read()))
        except (OSError, ValueError):
            pass
        sync(descriptor)

    return synced


if _FOLDER:
    time.time = _told
    os.fsync, os.fdatasync = map(_later, _syncs)
