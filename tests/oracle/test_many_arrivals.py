"""The scheduler through ten thousand arrivals in every configuration; `make test` runs the same with fewer."""

import pytest
from support_symbolic import FUZZED, Fuzz


@pytest.mark.timeout(600)
def test_ten_thousand_arrivals_leave_every_block_free():
    done = Fuzz("ten thousand", 10_000, total=20, host=8, disk=8, max_running=6).run()
    assert done.scheduler.preemptions > 100
    assert done.scheduler.swaps > 100
    assert done.scheduler.prefix_counters.hit > 1_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("damage", [0.0, 0.3])
@pytest.mark.parametrize("name", FUZZED)
def test_every_configuration_stays_exact(name, damage):
    done = Fuzz(f"{name} {damage}", 1_500, damage=damage, **FUZZED[name]).run()
    assert done.scheduler.preemptions > 5
