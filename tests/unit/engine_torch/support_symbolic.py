"""A stand-in for the model that computes with symbols: what a block holds can be checked exactly.

Each token's "keys and values" are a hash of everything before it and itself. The next token is a function of the
hashes read back through the block table, so one wrong block, copy or cache hit changes the output or is seen at once.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

from services.worker.engines.port import FinishReason, SamplingParams, SequenceRequest
from services.worker.engines.torch_engine.blocks import BlockManager, Tier
from services.worker.engines.torch_engine.prefix import PrefixNames
from services.worker.engines.torch_engine.scheduler import Scheduler, SchedulerOptions
from services.worker.engines.torch_engine.sequences import ModelLimits, State

VOCABULARY, EOS, CONTEXT, BLOCK = 50, 0, 48, 4
MODELS = ("a@1", "b@1")
NOTHING = [None] * BLOCK


def make(
    total=32, *, host=0, disk=0, max_running=4, max_step_tokens=10, context=CONTEXT, public=None, intact=None,
    owner_cap=None, window=0, **options,
):  # fmt: skip
    """(scheduler, pool) over two models."""
    pool = BlockManager(total, host=host, disk=disk, owner_cap=owner_cap, intact=intact or (lambda slot: True))
    limits = ModelLimits(context=context, vocabulary=VOCABULARY, eos_token_ids=frozenset({EOS}), window=window)
    scheduler = Scheduler(
        models=dict.fromkeys(MODELS, limits),
        names={model: PrefixNames(model, BLOCK, (public or {}).get(model, ())) for model in MODELS},
        pool=pool,
        options=SchedulerOptions(block_size=BLOCK, max_running=max_running, max_step_tokens=max_step_tokens, **options),
    )
    return scheduler, pool


def req(
    handle, prompt=(1, 2, 3), *, model="a@1", deadline=None, priority=0, max_tokens=5, salt=b"", group=0, kv_share=0.0,
    **params,
):  # fmt: skip
    """A request; ignores the end of sequence unless told otherwise."""
    return SequenceRequest(
        handle=handle,
        model=model,
        prompt=prompt,
        params=SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True} | params),
        deadline=deadline,
        priority=priority,
        cache_salt=salt,
        group=group,
        kv_share=kv_share,
    )


def state(model, tokens):
    """The symbolic keys and values of the last of `tokens`."""
    value = root(model)
    for token in tokens:
        value = hash((value, token))
    return value


def root(model):
    """What a model's states begin with; the same in every process, as `hash` of a text is not."""
    return zlib.crc32(model.encode())


def next_token(value):
    """What the symbolic model says after a token with this state."""
    return 1 + value % (VOCABULARY - 1)


def expected(request, count):
    """The output of a request that nothing disturbs."""
    tokens = list(request.prompt)
    for _ in range(count):
        tokens.append(next_token(state(request.model, tokens)))
    return tokens[len(request.prompt) :]


class SymbolicMemory:
    """Blocks of symbols in all tiers; carries out moves and computes chunks.

    What a sequence must find at each position follows from its tokens alone and is worked out once per token; every
    chunk compares all of it with what the sequence's blocks hold, block by block. A share `damage` of what is written
    to disk comes back as something else.
    """

    def __init__(self, damage=0.0, seed=0):
        self.blocks = {}
        self._states = {}
        self._damage, self._rng = damage, random.Random(seed)
        self._intact = set()

    def carry_out(self, moves):
        """Copy blocks in order."""
        for move in moves:
            content = list(self.blocks.get(move.source, NOTHING))
            tier, slot = move.target
            if tier is Tier.DISK:
                self._intact.add(slot)
                if self._damage and self._rng.random() < self._damage:
                    self._intact.discard(slot)
                    content = ["damaged"] * BLOCK
            self.blocks[move.target] = content

    def intact(self, slot):
        """Whether a disk slot holds what was last written to it."""
        return slot in self._intact

    def compute(self, chunk):
        """Write a chunk's symbols after checking those before it; returns the next token."""
        sequence, end = chunk.sequence, chunk.start + chunk.count
        states = self._follow(sequence, end)
        cells = [None] * sequence.slid + [self.blocks.get((Tier.DEVICE, each), NOTHING) for each in sequence.blocks]
        seen = max(0, chunk.start + 1 - sequence.window) if sequence.window else 0
        assert sequence.slid * BLOCK <= seen, f"{sequence.request.handle}: what it sees is gone"
        for first in range(sequence.slid * BLOCK, chunk.start, BLOCK):
            last = min(first + BLOCK, chunk.start)
            found = cells[first // BLOCK][: last - first]
            assert found == states[first:last], f"{sequence.request.handle}: wrong content at {first} to {last}"
        for position in range(chunk.start, end):
            # As a block of its own: what was copied or shared before must not change with it.
            block = (Tier.DEVICE, sequence.blocks[position // BLOCK - sequence.slid])
            self.blocks.setdefault(block, list(NOTHING))[position % BLOCK] = states[position]
        return next_token(states[end - 1])

    def forget(self, handle):
        """The sequence has ended."""
        self._states.pop(handle, None)

    def _follow(self, sequence, end):
        states = self._states.setdefault(sequence.request.handle, [])
        value = states[-1] if states else root(sequence.request.model)
        for token in sequence.tokens[len(states) : end]:
            value = hash((value, token))
            states.append(value)
        return states


class Machine:
    """Drives a scheduler with the symbolic model and collects what each sequence got."""

    def __init__(self, scheduler, memory=None):
        self.scheduler = scheduler
        self.memory = memory or SymbolicMemory()
        self.tokens = {}
        self.finish = {}
        self.plans = []

    def turn(self, now=0.0, prompt_tokens=None):
        """One schedule → execute → apply."""
        plan = self.scheduler.schedule(now, prompt_tokens)
        self.plans.append(plan)
        self.memory.carry_out(plan.moves)
        for ended in plan.ended:
            self._finished(ended.handle, ended.reason)
        for chunks in plan.chunks.values():
            # Everything that is written in a step is written before anything is read in the next.
            sampled = [self.memory.compute(chunk) for chunk in chunks]
            wanted = [token if chunk.samples else None for chunk, token in zip(chunks, sampled, strict=True)]
            for each in self.scheduler.apply(chunks, wanted):
                handle = each.sequence.request.handle
                if each.token is not None:
                    self.tokens.setdefault(handle, []).append(each.token)
                if each.finish:
                    self._finished(handle, each.finish)
        return plan

    def run(self, turns=10_000):
        """Turn until nothing is left to do."""
        for _ in range(turns):
            if not self.scheduler.has_work():
                return
            self.turn()
        raise AssertionError("the scheduler does not come to an end")

    def _finished(self, handle, reason):
        assert handle not in self.finish, f"{handle} ended twice"
        self.finish[handle] = int(reason)
        self.memory.forget(handle)


def random_request(rng: random.Random, handle, prompts, now=0.0):
    """A request whose prompt often shares its beginning with others'; a few have too little time."""
    prompt = list(rng.choice(prompts))[: rng.randint(1, 40)] + [rng.randrange(1, VOCABULARY)] * rng.randint(0, 3)
    return req(
        handle,
        prompt or [1],
        model=rng.choice(MODELS),
        deadline=now + rng.randint(1, 40) if rng.random() < 0.05 else None,
        priority=rng.choice((0, 0, 1, 2)),
        max_tokens=rng.randint(1, 30),
        salt=rng.choice((b"", b"x", b"yy")),
    )


class Fuzz:
    """Random arrivals, choices of one prompt, cancels, deadlines and models that go away, until all have ended."""

    def __init__(self, seed, arrivals, *, away=0.0, damage=0.0, kv_share=0.0, **configuration):
        memory = SymbolicMemory(damage, seed)
        self.scheduler, self.pool = make(**configuration, intact=memory.intact)
        self.machine = Machine(self.scheduler, memory)
        self.requests, self.cancelled = {}, set()
        self._rng = random.Random(seed)
        self._prompts = [[self._rng.randrange(1, VOCABULARY) for _ in range(40)] for _ in range(4)]
        self._arrivals, self._away_chance, self._kv_share = arrivals, away, kv_share
        self._most_tokens = configuration.get("max_step_tokens", 10)
        self._away = set()

    def run(self):
        """Carry it through and check every promise; returns itself."""
        rng, scheduler, now = self._rng, self.scheduler, 0.0
        while len(self.requests) < self._arrivals or scheduler.has_work():
            if len(self.requests) < self._arrivals and rng.random() < 0.5:
                self._arrive(now)
            if self.requests and rng.random() < 0.1:
                victim = rng.randint(1, len(self.requests))
                scheduler.cancel([victim])
                self.cancelled.add(victim)
            self._move_models()
            plan = self.machine.turn(now, prompt_tokens=rng.choice((None, None, 1, 4)))
            computed = sum(chunk.count for chunks in plan.chunks.values() for chunk in chunks)
            assert computed <= self._most_tokens
            idle = not plan.chunks and not plan.ended
            assert not idle or not scheduler.has_work() or self._away, "a turn without progress"
            if rng.random() < 0.05:
                scheduler.check_integrity()
                self._check_load()
            now += 1.0
        self._check()
        return self

    def _arrive(self, now):
        rng, first = self._rng, len(self.requests) + 1
        count = rng.choice((1, 1, 2, 4))
        batch = [random_request(rng, first + index, self._prompts, now) for index in range(count)]
        if rng.random() < 0.3:
            one = batch[0]
            batch = [
                req(each.handle, one.prompt, model=one.model, salt=one.cache_salt, group=9,
                    max_tokens=each.params.max_tokens, priority=one.priority)
                for each in batch
            ]  # fmt: skip
        batch = [replace(each, kv_share=self._kv_share) for each in batch]
        self.requests |= {each.handle: each for each in batch}
        self.scheduler.add(batch)

    def _move_models(self):
        for model in MODELS:
            if model in self._away:
                if self._rng.random() < 0.2:
                    self._away.discard(model)
                    self.scheduler.set_present(model)
            elif self._rng.random() < self._away_chance:
                self._away.add(model)
                self.scheduler.set_away(model)

    def _check_load(self):
        live = self.scheduler._by_handle.values()
        holding = [each for each in live if each.state in (State.RUNNING, State.SWAPPED)]
        computed = sum(min(each.computed, len(each.request.prompt)) for each in holding)
        assert self.scheduler._pending_prompt_tokens == sum(len(each.request.prompt) for each in live) - computed
        assert 0 <= self.scheduler.queued_prefill_tokens <= self.scheduler._pending_prompt_tokens
        assert self.scheduler.swapped == sum(each.state is State.SWAPPED for each in live)
        assert 0.0 <= self.scheduler.fragmentation < 1.0

    def _check(self):
        machine, scheduler = self.machine, self.scheduler
        assert machine.finish.keys() == self.requests.keys()
        for handle, request in self.requests.items():
            got, finish = machine.tokens.get(handle, []), machine.finish[handle]
            assert got == expected(request, len(got))
            if finish == FinishReason.CANCELLED:
                assert handle in self.cancelled
            elif finish == FinishReason.DEADLINE:
                assert request.deadline is not None
            else:
                assert finish == FinishReason.LENGTH
                assert len(got) == min(request.params.max_tokens, CONTEXT - len(request.prompt))
        scheduler.check_integrity()
        assert self.pool.free == self.pool.total
        assert scheduler.queued_prefill_tokens == scheduler.waiting == scheduler.running == scheduler.swapped == 0


FUZZED = {
    "plain": {"total": 24, "prefix_cache": False, "swap": False},
    "cached": {"total": 24, "swap": False},
    "swapped": {"total": 16, "host": 12, "disk": 10},
    "spilled": {"total": 16, "host": 6, "disk": 20, "swap": False},
    "disk-only": {"total": 16, "disk": 16},
    "shared-out": {"total": 24, "host": 8, "owner_cap": 6, "owner_share": 0.5},
    "tight": {"total": 12, "host": 4, "disk": 4, "max_running": 8, "growth_blocks": 0},
    "models come and go": {"total": 24, "host": 6, "disk": 6, "away": 0.05},
    "sliding": {"total": 16, "host": 12, "disk": 10, "window": 9},
    "sliding, recomputed": {"total": 14, "swap": False, "window": 6},
    "public": {"total": 16, "host": 6, "public": {model: [[7] * 10] for model in MODELS}},
}
"""Configurations that between them reach every way a block can take."""
