"""Settings of all tests.

Hypothesis: the gate draws the same examples every time, so that a red run can be repeated and a slow machine is no
failure. `HYPOTHESIS_PROFILE=explore make test` draws new ones; do that before trusting a change to a decision core.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
