"""`python -m services.door --config FILE`."""

from libs.service import main
from services.door.app import build
from services.door.config import Settings

if __name__ == "__main__":
    # Clients of etcd bound their calls by themselves and tell no deadline.
    main(Settings, build, deadline_optional=("/etcdserverpb.",))
