"""The memory of keys and values: bytes arrive in every tier, damage is seen, and no byte is taken beyond the bound."""

import errno
import itertools
import os

import pytest
import torch

from libs.families import ModelConfig, RopeConfig
from services.worker.engines.torch_engine import kv
from services.worker.engines.torch_engine.blocks import Move, Tier
from services.worker.engines.torch_engine.kv import BlockShape, KvMemory, bytes_per_block

SIZE = 128
PLACES = [(tier, number) for tier in Tier for number in range(3)]


@pytest.fixture
def memory(tmp_path):
    memory = KvMemory(bytes_per_block=SIZE, total_blocks=3, host_blocks=3, disk_blocks=3, disk_folder=tmp_path)
    yield memory
    memory.close()


def write(memory, place, value):
    """Fill a block of any tier, by way of the arena's last block."""
    memory.arena(torch.uint8)[2] = value
    memory.carry_out([Move((Tier.DEVICE, 2), place)])


def read(memory, place):
    """A block's bytes, by way of the arena's last block."""
    memory.carry_out([Move(place, (Tier.DEVICE, 2))])
    return memory.arena(torch.uint8)[2].tolist()


MOVES = [
    (source, target)
    for source, target in itertools.permutations([(Tier.DEVICE, 0), (Tier.HOST, 0), (Tier.DISK, 0)], 2)
    if (source[0], target[0]) != (Tier.DISK, Tier.HOST)
] + [((Tier.DEVICE, 0), (Tier.DEVICE, 1)), ((Tier.HOST, 0), (Tier.HOST, 1)), ((Tier.DISK, 1), (Tier.HOST, 2))]


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_a_block_arrives_whole_and_alone(memory, source, target):
    for number, place in enumerate(PLACES):
        if place != (Tier.DEVICE, 2):
            write(memory, place, number + 1)
    before = {place: number + 1 for number, place in enumerate(PLACES) if place != (Tier.DEVICE, 2)}
    memory.carry_out([Move(source, target)])
    for place, value in before.items():
        assert read(memory, place) == [before[source] if place == target else value] * SIZE


def test_moves_happen_in_order(memory):
    write(memory, (Tier.DEVICE, 0), 7)
    memory.carry_out(
        [
            Move((Tier.DEVICE, 0), (Tier.HOST, 0)),
            Move((Tier.HOST, 0), (Tier.DISK, 0)),
            Move((Tier.DEVICE, 1), (Tier.DEVICE, 0)),
            Move((Tier.DISK, 0), (Tier.DEVICE, 1)),
        ]
    )
    assert memory.arena(torch.uint8)[0].tolist() == [0] * SIZE
    assert memory.arena(torch.uint8)[1].tolist() == [7] * SIZE


def test_damage_on_disk_is_noticed_until_the_slot_is_written_again(memory):
    assert not memory.intact(0)  # never written
    write(memory, (Tier.DISK, 0), 5)
    write(memory, (Tier.DISK, 1), 6)
    assert memory.intact(0)
    os.pwrite(memory._disk._file.fileno(), b"\x04", SIZE - 1)
    assert not memory.intact(0)
    assert memory.intact(1)
    write(memory, (Tier.DISK, 0), 5)
    assert memory.intact(0)


def test_a_block_from_another_slot_is_damage_too(memory):
    write(memory, (Tier.DISK, 0), 5)
    write(memory, (Tier.DISK, 1), 6)
    descriptor = memory._disk._file.fileno()
    os.pwrite(descriptor, os.pread(descriptor, SIZE, SIZE), 0)
    assert not memory.intact(0)


@pytest.mark.parametrize("written", [OSError(errno.ENOSPC, "full"), SIZE // 2])
def test_a_full_disk_loses_the_block_and_nothing_else(memory, monkeypatch, written):
    write(memory, (Tier.DISK, 0), 5)
    write(memory, (Tier.DISK, 1), 6)

    def full(*arguments):
        if isinstance(written, OSError):
            raise written
        return written

    monkeypatch.setattr(kv.os, "pwrite", full)
    write(memory, (Tier.DISK, 0), 9)
    assert not memory.intact(0)
    assert memory.intact(1)
    monkeypatch.undo()
    write(memory, (Tier.DISK, 0), 9)
    assert read(memory, (Tier.DISK, 0)) == [9] * SIZE


def test_a_disk_that_does_not_give_back_is_never_taken_for_the_block(memory):
    write(memory, (Tier.DISK, 0), 5)
    os.ftruncate(memory._disk._file.fileno(), 0)
    assert not memory.intact(0)
    with pytest.raises(OSError, match="block 0 of the disk tier"):
        memory.carry_out([Move((Tier.DISK, 0), (Tier.DEVICE, 0))])


def test_the_file_of_the_disk_tier_has_no_name_and_its_full_size_from_the_start(tmp_path):
    memory = KvMemory(bytes_per_block=SIZE, total_blocks=1, disk_blocks=4, disk_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(memory._disk._file.fileno()).st_size == 4 * SIZE
    memory.close()
    with pytest.raises(OSError, match="No such file"):
        KvMemory(bytes_per_block=SIZE, total_blocks=1, disk_blocks=1, disk_folder=tmp_path / "away")


def shape(heads, width, *, layers=2, dtype=torch.float32):
    config = ModelConfig(
        architecture="LlamaForCausalLM", vocabulary=8, width=8, hidden=8, layers=layers, heads=heads, kv_heads=heads,
        head_width=width, norm_eps=1e-5, rope=RopeConfig(theta=1e4), context=16, tied=False,
        qkv_bias=False, output_bias=False, mlp_bias=False, eos_token_ids=(), bos_token_id=None,
    )  # fmt: skip
    return BlockShape(config, 4, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_serves_the_largest_model_and_begins_where_every_model_can_read(dtype):
    shapes = [shape(2, 12, dtype=dtype), shape(1, 20, layers=3, dtype=dtype), shape(3, 16, layers=1, dtype=dtype)]
    size = bytes_per_block(shapes)
    assert size >= max(each.nbytes for each in shapes)
    assert all(size % each.row_bytes == 0 for each in shapes)
    assert size % 64 == 0
    assert shape(2, 12, dtype=dtype).nbytes == 2 * 2 * 4 * 2 * 12 * dtype.itemsize


def test_memory_is_what_was_asked_for_and_no_more():
    memory = KvMemory(bytes_per_block=SIZE, total_blocks=5, host_blocks=2)
    assert memory.nbytes == 7 * SIZE
    assert memory.arena(torch.float32).shape == (5, SIZE // 4)
    assert memory.arena(torch.float32).untyped_storage().nbytes() == 5 * SIZE


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pages_cost_nothing_until_they_are_touched():
    before = resident()
    memory = KvMemory(bytes_per_block=1 << 16, total_blocks=4096, host_blocks=4096)
    untouched = resident() - before
    memory.arena(torch.uint8)[:2048] = 1
    touched = resident() - before
    assert untouched < 32 << 20  # of 512 MiB
    assert 128 << 20 <= touched < 160 << 20
    assert int(memory.arena(torch.uint8)[2048:].max()) == 0
    memory.close()
