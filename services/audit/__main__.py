"""`python -m services.audit --config FILE`."""

from libs.service import main
from services.audit.app import build
from services.audit.config import Settings

if __name__ == "__main__":
    main(Settings, build)
