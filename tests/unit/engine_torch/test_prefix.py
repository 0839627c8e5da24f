"""Names of blocks: equal exactly where keys and values are, and where tenants may share them."""

from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.torch_engine.prefix import PrefixNames

SIZE = 4
TOKENS = st.lists(st.integers(0, 2), min_size=SIZE, max_size=24)
SALTS = st.sampled_from([b"", b"a", b"b", b"ab"])


def chain(names, tokens, salt=b"", *, public=None):
    digests = []
    public = names.public_blocks(tokens) if public is None else public
    names.extend(digests, tokens, blocks=len(tokens) // SIZE, public=public, salt=salt)
    return digests


@given(TOKENS, TOKENS, SALTS, SALTS, st.sampled_from(["m@1", "m@2"]), st.lists(TOKENS, max_size=2))
def test_digests_are_equal_exactly_where_everything_before_them_is(one, other, ours, theirs, model, public):
    first, second = PrefixNames("m@1", SIZE, public), PrefixNames(model, SIZE, public)
    left, right = chain(first, one, ours), chain(second, other, theirs)
    for index, (mine, his) in enumerate(zip(left, right, strict=False)):
        end = (index + 1) * SIZE
        declared = any(prefix[:end] == one[:end] and len(prefix) >= end for prefix in public)
        same = model == "m@1" and one[:end] == other[:end] and (ours == theirs or declared)
        assert (mine == his) is same


@given(TOKENS, SALTS, st.integers(0, 6))
def test_a_chain_may_be_extended_step_by_step(tokens, salt, first):
    names = PrefixNames("m@1", SIZE, [tokens[:5]])
    whole = chain(names, tokens, salt)
    stepwise = []
    public = names.public_blocks(tokens)
    for blocks in (min(first, len(whole)), len(whole)):
        names.extend(stepwise, tokens, blocks=blocks, public=public, salt=salt)
    assert stepwise == whole
    names.extend(stepwise, tokens, blocks=1, public=public, salt=salt)
    assert stepwise == whole


def test_a_digest_tells_where_a_block_stands_and_what_it_holds():
    names = PrefixNames("m@1", SIZE)
    digests = chain(names, [7] * 12)
    assert len(set(digests)) == 3
    assert {len(digest) for digest in digests} == {24}
    assert {digest[:8] for digest in digests} == {names.tag}
    # One token more or less shifts every block: no run of tokens can stand for another.
    assert not set(digests) & set(chain(names, [8, *[7] * 12]))
    # Token ids are counted in whole words: 256 is not a 1 and a 0.
    assert chain(names, [1, 0, 0, 0]) != chain(names, [256, 0, 0, 0])


def test_only_whole_blocks_of_the_longest_matching_prefix_are_public():
    names = PrefixNames("m@1", SIZE, [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 0], [9] * 3])
    assert names.public_blocks([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]) == 2
    assert names.public_blocks([1, 2, 3, 4, 5, 6, 7, 0]) == 1
    assert names.public_blocks([1, 2, 3]) == 0
    assert names.public_blocks([9] * 8) == 0
    assert names.public_blocks([]) == 0


def test_what_computes_a_block_is_part_of_its_name():
    names = [PrefixNames(content, SIZE, [[1] * 8]) for content in ("weights-1", "weights-2")]
    names.append(PrefixNames("weights-1", 2 * SIZE, [[1] * 8]))
    assert len({chain(each, [1] * 8)[0] for each in names}) == 3
    assert len({each.tag for each in names}) == 3
    assert chain(names[0], [1] * 8, b"x") == chain(PrefixNames("weights-1", SIZE, [[1] * 8]), [1] * 8, b"y")
