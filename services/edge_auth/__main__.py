"""`python -m services.edge_auth --config FILE`."""

from libs.service import main
from services.edge_auth.app import build
from services.edge_auth.config import Settings

if __name__ == "__main__":
    main(Settings, build)
