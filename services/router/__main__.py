"""`python -m services.router --config FILE`."""

from libs.service import main
from services.router.app import build
from services.router.config import Settings

if __name__ == "__main__":
    main(Settings, build)
