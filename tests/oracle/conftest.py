"""Shares the torch engine's test support with its unit tests, which run a part of the same cases."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "engine_torch"))
