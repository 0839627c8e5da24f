"""`python -m services.predictor --config FILE`."""

from libs.service import main
from services.predictor import rest
from services.predictor.app import build
from services.predictor.config import Settings

if __name__ == "__main__":
    main(Settings, build, deadline_optional=("/inference.", f"/{rest.SERVICE}/"))
