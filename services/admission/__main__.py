"""`python -m services.admission --config FILE`."""

from libs.service import main
from services.admission.app import build
from services.admission.config import Settings

if __name__ == "__main__":
    main(Settings, build)
