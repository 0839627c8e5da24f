"""What is remembered of prefixes, for whom, how much, and for how long."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.admission.policy.affinity import Affinity
from services.admission.policy.model import Request, WorkerSpec

SPEC = WorkerSpec("w0", "", "a", frozenset({"m@1"}), 16, 1000, 32, 4096)


def asked(*hashes: int, prompt: int = 10_000, block: int = 32, model: str = "m@1") -> Request:
    return Request("r", "acme", model, prompt, 1, 1, 9.0, prefix_hashes=hashes, prefix_block=block)


def test_the_longest_match_counts_and_the_last_token_never() -> None:
    affinity = Affinity(100)
    assert affinity.granted(asked(1, 2, 3), SPEC) == 0
    assert affinity.granted(asked(1, 2, 4), SPEC) == 64
    assert affinity.matches(asked(1, 2, 3, 5)) == {"w0": 96}
    assert affinity.matches(asked(1, 2, 3, prompt=96)) == {"w0": 95}
    assert affinity.matches(asked(2, 3)) != {"w0": 96}
    assert affinity.matches(asked()) == {}


def test_models_and_block_sizes_share_nothing() -> None:
    affinity = Affinity(100)
    affinity.granted(asked(1, 2), SPEC)
    assert affinity.matches(asked(1, 2, model="n@1")) == {}
    assert affinity.matches(asked(1, 2, block=64)) == {}


def test_memory_is_bounded_by_the_workers_own_and_ends_of_prefixes_go_first() -> None:
    small = replace(SPEC, total_blocks=8)  # 128 tokens: four hashes
    affinity = Affinity(100)
    affinity.granted(asked(1, 2, 3, 4), small)
    affinity.granted(asked(9), small)
    assert len(affinity) == 4
    assert affinity.matches(asked(1, 2, 3, 4)) == {"w0": 96}
    assert Affinity(0).granted(asked(1), small) == 0


def test_a_worker_that_is_gone_is_forgotten() -> None:
    affinity = Affinity(100)
    affinity.granted(asked(1, 2), SPEC)
    affinity.granted(asked(1), replace(SPEC, worker="w1"))
    affinity.forget("w0")
    affinity.forget("unknown")
    assert affinity.matches(asked(1, 2)) == {"w1": 32}
    assert len(affinity) == 1
    affinity.granted(asked(7), replace(SPEC, worker="w2"))
    assert affinity.matches(asked(7)) == {"w2": 32}


def test_hopes_count_by_how_far_they_came_true() -> None:
    affinity = Affinity(100)
    affinity.granted(asked(1, 2), SPEC)
    affinity.observed("w0", 64, 32)
    assert affinity.trust("w0") == 0.9
    assert affinity.matches(asked(1, 2)) == {"w0": 64 * 0.9}
    affinity.observed("w0", 0, 0)
    affinity.observed("unknown", 1, 0)
    assert (affinity.trust("w0"), affinity.trust("unknown")) == (0.9, 1.0)


PROMPTS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(0, 4), PROMPTS, st.booleans()), max_size=40), PROMPTS)
def test_the_index_agrees_with_a_list_of_all_that_was_granted(
    steps: list[tuple[int, list[int], bool]], probe: list[int]
) -> None:
    def chained(tokens: list[int]) -> tuple[int, ...]:
        return tuple(int("1" + "".join(map(str, tokens[: end + 1]))) for end in range(len(tokens)))

    affinity = Affinity(10_000)
    plain: dict[str, set[int]] = {}
    for worker, tokens, leaves in steps:
        name = f"w{worker}"
        if leaves:
            affinity.forget(name)
            plain.pop(name, None)
        else:
            affinity.granted(asked(*chained(tokens)), replace(SPEC, worker=name))
            plain.setdefault(name, set()).update(chained(tokens))
    expected = {}
    for name, known in plain.items():
        depth = next((at for at, value in enumerate(chained(probe)) if value not in known), len(probe))
        if depth:
            expected[name] = depth * 32
    assert affinity.matches(asked(*chained(probe))) == expected
    assert len(affinity) == sum(len(known) for known in plain.values())
