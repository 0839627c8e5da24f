"""A stand-in for the model that computes with symbols: what a block holds can be checked exactly.

Each token's "keys and values" are a hash of everything before it and itself. The next token is a function of the
hashes read back through the block table, so one wrong block, copy or cache hit changes the output or is seen at once.
"""

from __future__ import annotations

import random

from services.worker.engines.port import SamplingParams, SequenceRequest
from services.worker.engines.torch_engine.blocks import BlockManager, Tier
from services.worker.engines.torch_engine.prefix import names_for
from services.worker.engines.torch_engine.scheduler import Scheduler, SchedulerOptions
from services.worker.engines.torch_engine.sequences import ModelLimits

VOCABULARY, EOS, CONTEXT, BLOCK = 50, 0, 48, 4
MODELS = ("a@1", "b@1")


def make(
    total=32, *, host=0, disk=0, max_running=4, max_step_tokens=10, context=CONTEXT, public=None, intact=None,
    owner_cap=None, **options,
):  # fmt: skip
    """(scheduler, pool) over two models."""
    pool = BlockManager(total, host=host, disk=disk, owner_cap=owner_cap, intact=intact or (lambda slot: True))
    limits = ModelLimits(context=context, vocabulary=VOCABULARY, eos_token_ids=frozenset({EOS}))
    scheduler = Scheduler(
        models=dict.fromkeys(MODELS, limits),
        names=names_for(MODELS, BLOCK, public or {}),
        pool=pool,
        options=SchedulerOptions(block_size=BLOCK, max_running=max_running, max_step_tokens=max_step_tokens, **options),
    )
    return scheduler, pool


def req(handle, prompt=(1, 2, 3), *, model="a@1", deadline=None, priority=0, max_tokens=5, salt=b"", group=0, **params):
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
    )


def state(model, tokens):
    """The symbolic keys and values of the last of `tokens`."""
    value = hash(model)
    for token in tokens:
        value = hash((value, token))
    return value


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
    """Blocks of symbols in all tiers; carries out moves and computes chunks."""

    def __init__(self):
        self.blocks = {}

    def carry_out(self, moves):
        """Copy blocks in order."""
        for move in moves:
            self.blocks[move.target] = dict(self.blocks.get(move.source, {}))

    def compute(self, chunk):
        """Write a chunk's symbols after checking those before it; returns the next token."""
        sequence = chunk.sequence
        value = hash(sequence.request.model)
        for position, token in enumerate(sequence.tokens[: chunk.start + chunk.count]):
            value = hash((value, token))
            block = (Tier.DEVICE, sequence.blocks[position // BLOCK])
            cells = self.blocks.setdefault(block, {})
            if position >= chunk.start:
                cells[position % BLOCK] = value
            assert cells.get(position % BLOCK) == value, f"{sequence.request.handle}: wrong content at {position}"
        return next_token(value)


class Machine:
    """Drives a scheduler with the symbolic model and collects what each sequence got."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.memory = SymbolicMemory()
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


def random_request(rng: random.Random, handle, prompts):
    """A request whose prompt often shares its beginning with others'."""
    prompt = list(rng.choice(prompts))[: rng.randint(1, 40)] + [rng.randrange(1, VOCABULARY)] * rng.randint(0, 3)
    return req(
        handle,
        prompt or [1],
        model=rng.choice(MODELS),
        priority=rng.choice((0, 0, 1, 2)),
        max_tokens=rng.randint(1, 30),
        salt=rng.choice((b"", b"x", b"yy")),
    )
