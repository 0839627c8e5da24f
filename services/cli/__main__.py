"""`weir`: operators' commands against a running mesh, and the mesh on this machine (services/cli/mesh)."""

from __future__ import annotations

import gc
import os
import sys

from services.cli.app import Groups, UsageError, as_operator, json_last, run, warn

GROUPS: Groups = {
    "Resources: what the mesh serves, to whom, on what terms": {
        "get": "commands.show:get",
        "describe": "commands.show:describe",
        "apply": "commands.change:apply",
        "diff": "commands.change:diff",
        "edit": "commands.change:edit",
        "set": "commands.change:set_",
        "delete": "commands.change:delete",
        "watch": "commands.show:watch",
        "history": "commands.show:history",
        "rollback": "commands.change:rollback",
        "export": "commands.transfer:export",
        "import": "commands.transfer:import_",
        "api-resources": "commands.schema:api_resources",
        "explain": "commands.schema:explain",
        "schema": "commands.schema:schema",
    },
    "Ask a model": {
        "complete": "commands.complete:complete",
        "predict": "commands.predict:predict",
    },
    "Models, rollouts, objectives": {
        "models": {
            "check": "commands.models_check:check",
            "push": "commands.models_push:push",
            "sign": "commands.models_push:sign_version",
            "verify": "commands.models_push:verify_version",
            "gc": "commands.models_gc:gc",
            "grant": "commands.models_grants:grant",
            "revoke": "commands.models_grants:revoke",
            "explain": "commands.models_grants:explain",
            "keys": "commands.models_keys:COMMANDS",
        },
        "rollout": "commands.rollout:COMMANDS",
        "slo": "commands.slo:COMMANDS",
        "safety": "commands.safety:COMMANDS",
    },
    "What happens and why": {
        "diagnose": "commands.diagnose:diagnose",
        "top": "commands.top:top",
        "tenants": {"explain": "commands.tenants:explain"},
        "workers": "commands.workers:workers",
        "predictors": "commands.predictors:predictors",
        "trace": "mesh.commands:trace",
        "xds": "commands.xds:COMMANDS",
    },
    "Who may do what, and what was done": {
        "whoami": "commands.operators:whoami",
        "operators": "commands.operators:COMMANDS",
        "keys": "commands.keys:COMMANDS",
        "certs": "commands.certs:COMMANDS",
        "authority": "commands.authority:COMMANDS",
        "audit": "commands.audit:COMMANDS",
        "requests": "commands.requests:requests",
        "usage": "commands.usage:COMMANDS",
        "records": "commands.records:COMMANDS",
    },
    "The mesh on this machine": {
        "up": "mesh.commands:up",
        "down": "mesh.commands:down",
        "status": "mesh.commands:status",
        "logs": "mesh.commands:logs",
        "restart": "mesh.commands:restart",
        "kill": "mesh.commands:kill",
    },
    "Deploying, saving, trying out": {
        "init": "mesh.rendering:INIT",
        "render": "mesh.rendering:render",
        "backup": "commands.backup:backup",
        "restore": "commands.backup:restore",
        "simulate": "commands.apart:simulate",
        "calibrate": "commands.apart:calibrate",
    },
    "This command": {
        "completion": "commands.completion:completion",
        "version": "commands.version:version",
    },
}
"""Every command by heading, in the order of the help."""
COMMANDS = {name: node for group in GROUPS.values() for name, node in group.items()}


def call(argv: list[str]) -> int:
    """Runs one command. Its exit code: 1 when it failed or says no, 2 when it was called wrongly, 130 when it was
    interrupted. `--json` may stand anywhere, and so may `--as NAME`, which calls as another person."""
    try:
        words = as_operator(json_last(argv))
        if words[:1] == ["__complete"]:
            from services.cli.commands.completion import complete

            complete(COMMANDS, words[1:])
        else:
            run(COMMANDS, words, groups=GROUPS)
        sys.stdout.flush()
        return 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read has enough; nothing more can be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        warn(f"error: {error}")
        return 2
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Prints an expected failure.

    :raises Exception: itself when it is none.
    """
    from libs.errors import WeirError
    from services.cli.config import NoMeshError
    from services.cli.output import print_error

    if isinstance(error, WeirError):
        print_error(error, getattr(error, "places", None))
    elif isinstance(error, NoMeshError):
        warn(f"error: {error}")
    else:
        raise error
    return int(getattr(error, "exit_code", 1))


def main() -> None:
    """The console script."""
    # A command lives for a moment: collecting what its imports leave costs 8 ms, taking the interpreter apart 12.
    gc.set_threshold(200_000)
    code = call(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
