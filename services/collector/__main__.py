"""`python -m services.collector --config FILE`."""

from libs.service import main
from services.collector.app import build
from services.collector.config import Settings

if __name__ == "__main__":
    # OTLP exporters may send without a deadline (Envoy's does).
    main(Settings, build, deadline_optional=("/opentelemetry.proto.collector.",))
