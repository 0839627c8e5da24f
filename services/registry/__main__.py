"""Runs the registry service."""

from libs.service import main
from services.registry.app import build
from services.registry.config import Settings

if __name__ == "__main__":
    # Calls through Envoy's transcoder come without a deadline; changes bound their own time.
    main(Settings, build, deadline_optional=("/weir.registry.v1.",))
