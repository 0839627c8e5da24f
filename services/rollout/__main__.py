"""`python -m services.rollout --config FILE`."""

from libs.service import main
from services.rollout.app import build
from services.rollout.config import Settings

if __name__ == "__main__":
    # A watch goes on until its caller has seen enough.
    main(Settings, build, deadline_optional=("/weir.rollout.v1.RolloutService/WatchRollout",))
