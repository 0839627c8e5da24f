"""The torch engine against transformers over 200 prompts per architecture, with every feature on and off.

`make test-engine` runs this; the cases and how answers are compared are described in
tests/unit/engine_torch/support_oracle.py.
"""

import pytest
import support_oracle as oracle

PROMPTS, ADAPTED = 200, 200
RUNS = oracle.runs(tuple(oracle.CASES), oracle.ARCHITECTURES | oracle.FAMILIES)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return oracle.World(tmp_path_factory.mktemp("oracle"), prompts=PROMPTS, adapted=ADAPTED)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("case", "models"), RUNS, ids=oracle.label)
def test_every_answer_is_that_of_transformers(world, case, models):
    differing = oracle.check(world, case, models)
    assert differing <= oracle.NEAR_TIES * PROMPTS * len(models)
