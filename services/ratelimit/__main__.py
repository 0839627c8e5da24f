"""`python -m services.ratelimit --config FILE`."""

from libs.service import main
from services.ratelimit.app import build
from services.ratelimit.config import Settings

if __name__ == "__main__":
    main(Settings, build)
