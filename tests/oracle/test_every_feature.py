"""The torch engine against transformers over 200 prompts per architecture and 80 per other family, with every feature
on and off.

`make test-engine` runs this; the cases and how answers are compared are described in
tests/unit/engine_torch/support_oracle.py.
"""

import pytest
import support_oracle as oracle

PROMPTS, ADAPTED = 200, 200
FAMILY_PROMPTS, FAMILY_ADAPTED = 80, 40


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return oracle.World(tmp_path_factory.mktemp("oracle"), prompts=PROMPTS, adapted=ADAPTED)


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    return oracle.World(tmp_path_factory.mktemp("families"), prompts=FAMILY_PROMPTS, adapted=FAMILY_ADAPTED)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("case", "models"), oracle.runs(tuple(oracle.CASES)), ids=oracle.label)
def test_every_answer_is_that_of_transformers(world, case, models):
    differing = oracle.check(world, case, models)
    assert differing <= oracle.NEAR_TIES * PROMPTS * len(models)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", oracle.FAMILIES, ids=oracle.label)
@pytest.mark.parametrize("case", [name for name, each in oracle.CASES.items() if not each.together])
def test_every_answer_of_a_family_is_that_of_transformers(families, case, model):
    assert oracle.check(families, case, [model]) <= 1
