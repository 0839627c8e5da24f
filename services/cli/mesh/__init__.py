"""The mesh on this machine: planned from deploy/, started under libs.supervisor, shown, stopped.

`app` is a typer application that the operator CLI mounts without a name, so that its commands become `weir up` and so
on.
"""

from services.cli.mesh.commands import app

__all__ = ["app"]
