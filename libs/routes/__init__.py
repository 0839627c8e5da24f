"""Routes without asking: by what the router told, on the process's own snapshot of the registry."""

from libs.routes.client import RouterClient

__all__ = ["RouterClient"]
