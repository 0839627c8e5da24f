"""`python -m services.safety --config FILE`."""

from libs.service import main
from services.safety.app import build
from services.safety.config import Settings

if __name__ == "__main__":
    main(Settings, build)
