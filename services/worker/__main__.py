"""`python -m services.worker --config FILE`."""

from libs.service import main
from services.worker.app import build
from services.worker.config import Settings

if __name__ == "__main__":
    main(Settings, build)
