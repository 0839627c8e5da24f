"""`python -m services.records --config FILE`."""

from libs.service import main
from services.records.app import build
from services.records.config import Settings

if __name__ == "__main__":
    main(Settings, build)
