"""What locust loads: kinds of users, options, and what happens at the beginning and the end of a run. See README.md."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

import locust.stats
from locust import User, events, task
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from loadtest.figures import number, verdict
from loadtest.locust import rows, settings
from loadtest.locust.link import Link, SenderLost
from loadtest.locust.messages import CHAT, INTERNAL, OPERATOR, Told
from loadtest.machine import machine
from services.cli.config import locate
from simulation.lengths import Lengths, load

_PEOPLE = 2_000
"""For so many users chats are asked; a rollout gives each of them one version."""
_log = logging.getLogger(__name__)

locust.stats.bucket_response_time = rows.bucket


@dataclass(frozen=True, slots=True)
class Session:
    """What users share from the start of a test to its end."""

    link: Link
    lengths: Lengths
    think: float
    started: float
    cpu: float
    """This process's own, at the start."""


class MeshUser(User):
    """A user for whom the other process sends."""

    abstract = True
    kind = ""
    _numbers = count()

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.session: Session = environment.session
        self.number = next(self._numbers)
        self.rng = random.Random(f"{self.kind} {self.number}")
        self.no_earlier = 0.0
        """Seconds that a refusal asked for."""

    def wait_time(self) -> float:
        """Thinking: exponentially distributed, as in `simulation.workload`; traces do not tell it."""
        think = self.session.think
        return max(self.rng.expovariate(1.0 / think) if think else 0.0, self.no_earlier)

    def send(self, **wish: Any) -> Told:
        """Have a request sent and put its answer into the tables."""
        try:
            told = self.session.link.call(do=self.kind, **wish)
        except SenderLost as error:
            raise StopUser(str(error)) from error
        show(self.environment, self.kind, told)
        return told

    def ask(self, **wish: Any) -> None:
        """Send a request of drawn lengths; refused, come back no earlier than told."""
        prompt, output = self.session.lengths.draw(self.rng)
        told = self.send(prompt_tokens=prompt, output_tokens=output, **wish)
        self.no_earlier = told.retry_after or 0.0


class ChatUser(MeshUser):
    """Somebody who chats, streamed, over the edge."""

    kind = CHAT
    weight = 3

    @task
    def chat(self) -> None:
        """One question and its answer."""
        self.ask(key=self.number, user=f"user-{self.rng.randrange(_PEOPLE)}")


class InternalUser(MeshUser):
    """A service that calls the gateway natively, past the edge, with a workload's certificate."""

    kind = INTERNAL

    @task
    def generate(self) -> None:
        """One generation."""
        self.ask()


class OperatorUser(MeshUser):
    """An operator who rolls a version out, then the former one, and so on."""

    kind = OPERATOR
    fixed_count = 1

    @task
    def roll_out(self) -> None:
        """One rollout to its end."""
        self.send()


def show(environment: Any, user: str, told: Told) -> None:
    """Put an answer into locust's tables."""
    for row in rows.rows(user, told):
        if row.aside:
            entry = environment.stats.get(row.name, row.type)
            entry.log(row.ms, row.tokens)
            if row.failure:
                entry.log_error(row.failure)
                _log.warning("%s: %s", row.name, row.failure)
        else:
            environment.events.request.fire(
                request_type=row.type,
                name=row.name,
                response_time=row.ms,
                response_length=row.tokens,
                exception=row.failure or None,
                context={},
            )


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    def add(name: str, help: str, default: Any = "", *, shown: bool = False, **more: Any) -> None:
        variable = f"WEIR_LOAD_{name.upper().replace('-', '_')}"
        parser.add_argument(f"--{name}", env_var=variable, default=default, help=help, include_in_web_ui=shown, **more)

    add("model", "The alias that is asked for and rolled out.", "weir-fast", shown=True)
    add("lengths", "Whose prompts and answers: a table of simulation/lengths.toml.", "azure-conversation", shown=True)
    add("context", "Tokens of prompt and answer together: lengths are scaled to it.", 512, shown=True, type=int)
    add("think", "Mean seconds between an answer and the next request.", 2.0, shown=True, type=float)
    add("keys", 'File of API keys by tenant: {"acme": "wk_…"}.')
    add("ca", "File of the CA of the edge's certificate; else the system's.")
    add("mesh-ca", "File of the mesh's own CA; else --ca.")
    add("internal-cert", "Certificate of the workload that internal users are; without one there are none.")
    add("internal-key", "Its key.")
    add("xds-bootstrap", "gRPC's xDS bootstrap, for --gateway over xds.")
    add("gateway", "Where internal users call.", "xds:///gateway.weir.internal")
    add("registry", "Address of the registry, host:port; without one nothing is rolled out.")
    add("operator-cert", "Certificate of the operator.")
    add("operator-key", "Its key.")
    add("candidate", "The version to roll out, name@version; else a twin of the present one is registered.")
    add("signing-key", "Key that signs the twin.")
    add("rollout-steps", "The canary's shares in percent.", "25,50", shown=True)
    add("rollout-step-seconds", "Each at least so long.", 5.0, shown=True, type=float)
    add("rollout-samples", "Each at least so many requests of the canary.", 10, shown=True, type=int)
    add("target", "FIGURE<=NUMBER, over the defaults; may be given several times.", None, action="append")


@events.init.add_listener
def _init(environment: Any, **_: Any) -> None:
    environment.session = environment.generator = None
    options = environment.parsed_options
    try:
        known = _settings(options)
        dict(map(rows.parse_target, options.target or ()))
        if options.lengths not in load():
            raise settings.SettingsError(f"--lengths: there are {', '.join(load())}, not {options.lengths!r}")
    except ValueError as error:
        sys.stderr.write(f"locust: {error}\n")
        sys.exit(2)
    absent = {INTERNAL: known.internal, OPERATOR: known.operator}
    for each in list(environment.user_classes):
        if absent.get(each.kind, known) is None:
            _log.info("no %s: nothing is said of whom they are", each.__name__)
            environment.user_classes.remove(each)


def _settings(options: Any) -> settings.Settings:
    return settings.settings(options, locate)


@events.test_start.add_listener
def _start(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, MasterRunner):
        return
    options = environment.parsed_options
    environment.session = environment.generator = None
    environment.session = Session(
        link=Link(_settings(options), on_lost=environment.runner.quit),
        lengths=load()[options.lengths].for_context(options.context),
        think=options.think,
        started=time.monotonic(),
        cpu=time.process_time(),
    )


@events.test_stopping.add_listener
def _stopping(environment: Any, **_: Any) -> None:
    # Requests may end, for as long as --stop-timeout says; a rollout would take longer, and is aborted.
    users = [user for greenlet in environment.runner.user_greenlets for user in greenlet.args]
    for user in users:
        if user.kind == OPERATOR:
            user.stop(force=True)


@events.test_stop.add_listener
def _stop(environment: Any, **_: Any) -> None:
    session = environment.session
    if session is None:
        return
    seconds, cpu = time.monotonic() - session.started, time.process_time() - session.cpu
    try:
        effort = session.link.close()
    except SenderLost as error:
        _log.error("%s", error)
        return
    environment.generator = {
        "generator_cores": (cpu + effort.cpu_seconds) / seconds,
        "generator_cores_sending": effort.cpu_seconds / seconds,
        "generator_machine_share": (cpu + effort.cpu_seconds) / seconds / len(os.sched_getaffinity(0)),
    }


@events.quitting.add_listener
def _quitting(environment: Any, **_: Any) -> None:
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        return
    runner.stop()
    result = _result(environment)
    missed = [name for name, target in result["targets"].items() if _verdict(result, name, target) != "met"]
    for name in missed:
        _log.error("%s = %s, target %s", name, result["figures"].get(name), result["targets"][name])
    lost = not isinstance(runner, MasterRunner) and not environment.generator
    environment.process_exit_code = int(bool(missed or lost or runner.exceptions))
    environment.result = result


def _verdict(result: dict[str, Any], name: str, target: str) -> str:
    value = result["figures"].get(name)
    return verdict(float("nan") if value is None else value, target)


def _result(environment: Any) -> dict[str, Any]:
    options, total = environment.parsed_options, environment.stats.total
    seconds = max(1e-9, (total.last_request_timestamp or total.start_time) - total.start_time)
    found = rows.figures(environment.stats.entries.values(), seconds=seconds)
    found |= environment.generator or {}
    targets = rows.default_targets(each.kind for each in environment.user_classes)
    targets |= dict(map(rows.parse_target, options.target or ()))
    return {
        "bench": "locust",
        "figures": {name: number(value) for name, value in found.items()},
        "targets": targets,
        "conditions": {"users": options.num_users, "seconds": round(seconds, 1), **settings.public(options)},
        "machine": machine(),
    }


@events.init.add_listener
def _last_line(environment: Any, **_: Any) -> None:
    # Of this event: by then locust has printed its tables.
    @events.quit.add_listener
    def print_result(**_: Any) -> None:
        if hasattr(environment, "result"):
            sys.stdout.write(json.dumps(environment.result) + "\n")
            sys.stdout.flush()
