"""`python -m services.controlplane --config FILE`."""

from libs.service import main
from services.controlplane.app import build
from services.controlplane.config import Settings

if __name__ == "__main__":
    # Envoy's status protocol (CSDS) has clients that bring no deadline; its access log goes on for as long as it runs.
    main(Settings, build, deadline_optional=("/envoy.service.status.", "/envoy.service.accesslog."))
