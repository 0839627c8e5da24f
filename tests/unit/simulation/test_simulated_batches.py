"""The batcher beside a plain queue, in simulated time."""

from simulation.batches import measure


def test_goodput_holds_where_a_plain_queue_breaks_down() -> None:
    figures = measure(2.0)
    for times in (1, 2, 4):
        assert figures[f"goodput_{times}x"] >= 0.95
        assert figures[f"expired_executed_{times}x"] == 0
    assert figures["goodput_4x_plain"] < 0.1


def test_a_flood_lengthens_nobody_elses_latency() -> None:
    assert measure(2.0)["victim_p99_ratio"] <= 1.25
