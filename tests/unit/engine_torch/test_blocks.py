"""The block manager under any order of commands: no block is lost, shared by mistake or written under somebody's
hands, and what comes back from a cache or a lower tier is what went in."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.worker.engines.torch_engine.blocks import BlockManager, IntegrityError, Tier
from services.worker.engines.torch_engine.spill import Spill

TEXTS = ("abcd", "abxy", "q")
"""What sequences may hold: a letter is a block, named by the text up to it."""


class Machine(RuleBasedStateMachine):
    """Sequences over symbolic memory. `users` hold [(block, content)], `swapped` [(place, content)]."""

    @initialize(total=st.integers(2, 8), host=st.integers(0, 4), disk=st.integers(0, 4), cap=st.integers(1, 8))
    def start(self, total, host, disk, cap):
        self.sizes = {Tier.DEVICE: total, Tier.HOST: host, Tier.DISK: disk}
        self.memory, self.damaged = {}, set()
        self.pool = BlockManager(total, host=host, disk=disk, owner_cap=cap, intact=self.intact)
        self.users, self.swapped, self.cap = [], [], cap
        self.fresh = 0

    def intact(self, slot):
        return slot not in self.damaged and (Tier.DISK, slot) in self.memory

    def carry_out(self):
        for move in self.pool.take_moves():
            for tier, number in (move.source, move.target):
                assert 0 <= number < self.sizes[tier]
            self.memory[move.target] = self.memory.get(move.source)
            if move.target[0] is Tier.DISK:
                self.damaged.discard(move.target[1])
            elif move.source[0] is Tier.DISK:
                assert move.source[1] not in self.damaged, "a damaged block is brought up"

    @rule(tag=st.sampled_from([b"a", b"q"]))
    def purge(self, tag):
        """What begins so is found no more, in any tier; its users keep it."""
        kept = sum(self.sizes.values()) - self.pool.free - self.pool.spilled
        self.pool.purge(tag)
        self.carry_out()
        assert self.pool.probe([tag]) == (0, 0)
        assert sum(self.sizes.values()) - self.pool.free - self.pool.spilled >= kept

    @rule(text=st.sampled_from(TEXTS), owner=st.sampled_from([b"", b"x"]), length=st.integers(1, 4))
    def begin(self, text, owner, length):
        """A sequence takes what the cache has of its text and computes the rest."""
        text = text[:length]
        names = [text[: end + 1].encode() for end in range(len(text))]
        found, cost = self.pool.probe(names)
        assert cost <= found <= len(names)
        free = self.pool.free
        blocks = self.pool.acquire(names, owner)
        assert len(blocks) <= found
        assert free - self.pool.free <= cost
        if len(names) - len(blocks) > self.pool.free:
            with pytest.raises(MemoryError):
                self.pool.allocate(len(names) - len(blocks))
            self.pool.release(blocks)
            self.carry_out()
            return
        self.carry_out()
        own = [(block, name) for block, name in zip(blocks, names, strict=False)]
        for block, content in own:
            assert self.memory[Tier.DEVICE, block] == content
        new = self.pool.allocate(len(names) - len(blocks))
        self.carry_out()
        for block, name in zip(new, names[len(blocks) :], strict=True):
            self.memory[Tier.DEVICE, block] = name
            self.pool.seal(block, name, owner)
            own.append((block, name))
        self.users.append(own)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def fork(self, data):
        own = data.draw(st.sampled_from(self.users))
        assert self.pool.share([block for block, _ in own]) == [block for block, _ in own]
        self.users.append(list(own))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def write_the_last(self, data):
        """As a sequence does that goes on in a block it may share: a copy first, and the name is lost."""
        own = data.draw(st.sampled_from(self.users))
        block, content = own[-1]
        if self.pool.users(block) > 1 and not self.pool.free:
            with pytest.raises(MemoryError):
                self.pool.writable(block)
            return
        mine = self.pool.writable(block)
        self.carry_out()
        assert self.pool.users(mine) == 1
        assert self.memory[Tier.DEVICE, mine] == content
        self.fresh += 1
        self.memory[Tier.DEVICE, mine] = f"own {self.fresh}".encode()
        own[-1] = (mine, self.memory[Tier.DEVICE, mine])

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end(self, data):
        own = data.draw(st.sampled_from(self.users))
        self.users = [each for each in self.users if each is not own]
        self.pool.release([block for block, _ in own])

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def swap_out(self, data):
        own = data.draw(st.sampled_from(self.users))
        places = self.pool.swap_out([block for block, _ in own])
        if places is None:
            assert len(own) > self.sizes[Tier.HOST] + self.sizes[Tier.DISK] - sum(map(len, self.swapped))
            return
        self.carry_out()
        self.users = [each for each in self.users if each is not own]
        self.swapped.append([(place, content) for place, (_, content) in zip(places, own, strict=True)])

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), give_up=st.booleans())
    def swap_in(self, data, give_up):
        away = data.draw(st.sampled_from(self.swapped))
        places = [place for place, _ in away]
        harmed = any(tier is Tier.DISK and slot in self.damaged for tier, slot in places)
        if give_up:
            self.pool.drop(places)
        elif len(away) > self.pool.free and not harmed:
            with pytest.raises(MemoryError):
                self.pool.swap_in(places)
            return
        else:
            blocks = self.pool.swap_in(places)
            assert (blocks is None) == harmed
            self.carry_out()
            if blocks is not None:
                self.users.append([(block, content) for block, (_, content) in zip(blocks, away, strict=True)])
        self.swapped = [each for each in self.swapped if each is not away]

    @rule(slot=st.integers(0, 3))
    def damage(self, slot):
        if slot < self.sizes[Tier.DISK]:
            self.damaged.add(slot)

    @invariant()
    def the_books_are_right(self):
        self.pool.check_integrity(
            [[block for block, _ in own] for own in self.users], [[place for place, _ in away] for away in self.swapped]
        )
        used = {block for own in self.users for block, _ in own}
        assert self.pool.free == self.sizes[Tier.DEVICE] - len(used)
        assert 0 <= self.pool.cached <= self.pool.free
        assert self.pool.spilled <= self.sizes[Tier.HOST] + self.sizes[Tier.DISK]

    @invariant()
    def everybody_still_holds_what_is_theirs(self):
        for own in self.users:
            for block, content in own:
                assert self.memory[Tier.DEVICE, block] == content
        for away in self.swapped:
            for place, content in away:
                assert self.memory[place] == content

    @invariant()
    def nobody_caches_more_than_a_share(self):
        assert all(len(mine) <= self.cap for mine in self.pool._cached_by_owner.values())


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBlocks = Machine.TestCase


def filled(pool, text, owner=b""):
    """Let a sequence of this text come and go."""
    names = [text[: end + 1].encode() for end in range(len(text))]
    blocks = pool.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.seal(block, name, owner)
    pool.release(blocks)
    return names


def test_the_end_of_the_prefix_used_least_recently_goes_first():
    pool = BlockManager(4)
    old, new = filled(pool, "ab"), filled(pool, "cd")
    pool.allocate(1)
    assert [pool.probe(names)[0] for names in (old, new)] == [1, 2]
    pool.release(pool.acquire(old))
    pool.allocate(1)
    assert [pool.probe(names)[0] for names in (old, new)] == [1, 1]


def test_a_tenant_at_its_cap_pushes_out_its_own_blocks():
    pool = BlockManager(10, owner_cap=2)
    others = filled(pool, "yz", b"other")
    first = filled(pool, "ab", b"x")
    second = filled(pool, "cd", b"x")
    assert [pool.probe(names)[0] for names in (others, first, second)] == [2, 0, 2]


def test_public_blocks_that_come_back_up_count_for_no_tenant():
    pool = BlockManager(3, host=3, owner_cap=1)
    names = [b"p", b"pq", b"pqx"]
    blocks = pool.allocate(3)
    for block, name, owner in zip(blocks, names, (b"", b"", b"x"), strict=True):
        pool.seal(block, name, owner)
    pool.release(blocks)
    pool.release(pool.allocate(3))  # pushes all of them down
    pool.take_moves()
    pool.release(pool.acquire(names, b"x", public=2))
    assert pool.probe(names[:1])[0] == 1
    assert {owner: len(mine) for owner, mine in pool._cached_by_owner.items()} == {b"": 1, b"x": 1}


def test_what_is_pushed_out_goes_down_one_tier_at_a_time_and_comes_back():
    pool = BlockManager(1, host=1, disk=1)
    for text in ("a", "b", "c", "d"):
        filled(pool, text)
    assert [pool.probe([name])[0] for name in (b"a", b"b", b"c", b"d")] == [0, 1, 1, 1]
    tiers = [(move.source[0], move.target[0]) for move in pool.take_moves()]
    assert tiers.count((Tier.DEVICE, Tier.HOST)) == 3
    assert tiers.count((Tier.HOST, Tier.DISK)) == 2
    assert pool.acquire([b"b"]) == []  # not yet written where it is said to be
    assert pool.probe([b"b"])[0] == 0


def test_what_is_wanted_is_not_pushed_out_to_make_room_for_itself():
    pool = BlockManager(2, host=2)
    for text in ("a", "b", "c", "d"):
        filled(pool, text)
    pool.take_moves()
    [block] = pool.acquire([b"a"])
    assert [pool.probe([name])[0] for name in (b"a", b"b", b"c", b"d")] == [1, 0, 1, 1]
    down, up = pool.take_moves()
    assert (down.source, down.target[0]) == ((Tier.DEVICE, block), Tier.HOST)
    assert (up.source[0], up.target) == (Tier.HOST, (Tier.DEVICE, block))
    assert up.source != down.target


@pytest.mark.parametrize("fault", ["released twice", "leaked", "in two tiers", "pinned by nobody", "lost"])
def test_the_check_finds(fault):
    pool = BlockManager(4, host=2, disk=2)
    blocks = pool.allocate(2)
    users, swapped = [blocks], []
    if fault == "released twice":
        pool._free.append(pool._free[-1])
    elif fault == "leaked":
        users = []
    elif fault == "in two tiers":
        for tier in (pool._spill._host, pool._spill._disk):
            tier.cached[b"a"] = tier.free.pop()
    elif fault == "pinned by nobody":
        pool.swap_out(pool.allocate(1))
    else:
        pool._free.pop()
    with pytest.raises(IntegrityError):
        pool.check_integrity(users, swapped)


def test_a_damaged_slot_is_given_up_and_free_again():
    spill = Spill(host=0, disk=1, intact=lambda slot: False)
    assert spill.put(b"a", None) == (2, 0)
    assert b"a" in spill
    assert spill.take(b"a") is None
    assert b"a" not in spill
    spill.check([])
    assert spill.pin(1, None) == [(2, 0)]
    assert spill.pin(1, None) is None
    assert spill.put(b"b", None) is None
    spill.check([(2, 0)])
    spill.unpin([(2, 0)])
    assert spill.used == 0


def test_e1_a_purge_reaches_every_tier_and_leaves_users_their_blocks():
    pool = BlockManager(1, host=1, disk=1)
    for name in (b"old", b"older", b"in use"):  # each moves the one before down
        blocks = pool.allocate(1)
        pool.seal(blocks[0], name)
        if name != b"in use":
            pool.release(blocks)
    assert pool.spilled == 2
    pool.purge(b"old")
    assert (pool.spilled, pool.probe([b"old"]), pool.probe([b"older"])) == (0, (0, 0), (0, 0))
    assert pool.probe([b"in use"]) == (1, 0)
    pool.purge(b"in use")
    assert pool.probe([b"in use"]) == (0, 0)
    pool.check_integrity([blocks])
    pool.release(blocks)
    assert (pool.free, pool.cached) == (1, 0)
