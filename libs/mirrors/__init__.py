"""Mirrored requests: answered a second time by a rollout's candidate, where no user sees it, and compared."""

from libs.mirrors.metrics import Fate, MirrorMetrics, Verdict
from libs.mirrors.queue import Copy, Dropped, MirrorQueue
from libs.mirrors.settings import ShadowSettings

__all__ = ["Copy", "Dropped", "Fate", "MirrorMetrics", "MirrorQueue", "ShadowSettings", "Verdict"]
