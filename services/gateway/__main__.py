"""`python -m services.gateway --config FILE`."""

from libs.service import main
from services.gateway.app import build
from services.gateway.config import Settings

if __name__ == "__main__":
    main(Settings, build, deadline_optional=("/weir.inference.v1.", "/weir.openai.v1."))
