"""`python -m libs.supervisor SPEC.json [--echo] [--detach] [--ready-fd N]`: runs a specification.

It ends by SIGTERM, SIGINT or a `stop` command. With --detach this process only starts another one and ends, so that the
supervisor belongs to nobody's process tree. With --ready-fd one byte is written to that descriptor once the control
socket takes commands. Exit code 0 after a stop, 1 when the start-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType

from libs.clock import SystemClock
from libs.supervisor.child import Begun
from libs.supervisor.control import ControlServer
from libs.supervisor.forks import Fork, fork_all
from libs.supervisor.logs import LogSink, terminal
from libs.supervisor.policy import levels
from libs.supervisor.spec import SupervisorSpec, load
from libs.supervisor.supervisor import Supervisor


async def serve(
    spec: SupervisorSpec,
    *,
    echo: bool = False,
    early: Mapping[str, Begun | Fork] = MappingProxyType({}),
    on_listening: Callable[[], None] = lambda: None,
) -> bool:
    """Runs a specification with its control socket. True after a clean stop, False when the start-up failed.

    `early` is as for `Supervisor`; `on_listening` is called once the socket takes commands.
    """
    state_dir = Path(spec.state_dir)
    sink = LogSink(state_dir, spec.logs, echo=terminal() if echo else None)
    supervisor = Supervisor(spec, sink=sink, clock=SystemClock(), rng=SystemRandom(), early=early)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    control = ControlServer(supervisor, state_dir)
    await control.start()
    on_listening()
    try:
        return await supervisor.run()
    finally:
        await control.close()
        sink.close()


def main() -> int:
    """Reads the arguments and runs."""
    parser = argparse.ArgumentParser(prog="python -m libs.supervisor")
    parser.add_argument("spec", type=Path)
    parser.add_argument("--echo", action="store_true", help="also print the log stream, coloured")
    parser.add_argument("--ready-fd", type=int, help="told once the control socket takes commands")
    parser.add_argument("--detach", action="store_true", help="go on in a process of its own")
    options = parser.parse_args()
    if options.detach and os.fork():  # nothing has started a thread yet
        return 0

    def tell() -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"1")
            os.close(options.ready_fd)

    spec = load(options.spec)
    levels({each.name: each.after for each in spec.processes})  # what cannot be ordered is refused before anything runs
    early: dict[str, Begun | Fork] = {**_begin(spec), **fork_all(spec)}
    return 0 if asyncio.run(serve(spec, echo=options.echo, early=early, on_listening=tell)) else 1


def _begin(spec: SupervisorSpec) -> dict[str, Begun]:
    """What waits for nobody comes up while the forks are made. What cannot be begun is the supervisor's to tell."""
    begun = {}
    if any(process.fork for process in spec.processes):
        for process in spec.processes:
            if not process.fork and not process.after:
                with suppress(OSError):
                    begun[process.name] = Begun(process)
    return begun


if __name__ == "__main__":
    sys.exit(main())
