"""Sixteen float32 lanes as one numba value, and the few operations attention needs on them.

Numba's loop vectoriser keeps running sums of short loops in memory; with lanes as values they stay in registers. LLVM
turns sixteen lanes into whatever the machine has (one AVX-512 register, two of AVX2, four of NEON). Addresses are
plain unsigned integers; nothing is checked. `half` says that memory holds bfloat16 instead of float32, `count` how
many groups of lanes are meant; both must be compile-time constants.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from services.worker.engines.torch_engine.attention_layout import LANES

# Untyped, so that what it decorates may be called with what compiled code has.
_intrinsic: Any = extending.intrinsic

_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
_SHORT = ir.IntType(16)
_FLOATS = ir.VectorType(_FLOAT, LANES)
_INTS = ir.VectorType(_INT, LANES)
_SHORTS = ir.VectorType(_SHORT, LANES)
_FAST = ("contract", "reassoc", "nsz")


class _Lanes(types.Type):  # type: ignore[misc]
    """The numba type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Float32x16")


_lanes = _Lanes()


@extending.register_model(_Lanes)
class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, described: Any) -> None:
        super().__init__(manager, described, _FLOATS)


def _indices(values: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INT, len(values)), values)


def _spread(builder: Any, value: Any, kind: Any) -> Any:
    """A vector with `value` in every lane."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, _INT(0))
    return builder.shuffle_vector(first, nothing, _indices([0] * LANES))


def _load(builder: Any, address: Any, index: int, half: bool) -> Any:
    """The `index`-th sixteen numbers from `address` on."""
    width = 2 if half else 4
    address = builder.add(address, address.type(index * LANES * width))
    kind = _SHORTS if half else _FLOATS
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()), align=width)
    if not half:
        return loaded
    wide = builder.zext(loaded, _INTS)
    return builder.bitcast(builder.shl(wide, _spread(builder, _INT(16), _INTS)), _FLOATS)


def _store(builder: Any, address: Any, index: int, value: Any, half: bool) -> None:
    width = 2 if half else 4
    address = builder.add(address, address.type(index * LANES * width))
    if half:
        value = _rounded(builder, value)
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=width)


def _rounded(builder: Any, value: Any) -> Any:
    """float32 → the bits of bfloat16, to nearest, ties to even; NaN stays NaN."""
    bits = builder.bitcast(value, _INTS)
    sixteen, one = _spread(builder, _INT(16), _INTS), _spread(builder, _INT(1), _INTS)
    odd = builder.and_(builder.lshr(bits, sixteen), one)
    raised = builder.add(builder.add(bits, _spread(builder, _INT(0x7FFF), _INTS)), odd)
    nan = builder.fcmp_unordered("uno", value, value)
    quiet = builder.or_(bits, _spread(builder, _INT(0x400000), _INTS))
    return builder.trunc(builder.lshr(builder.select(nan, quiet, raised), sixteen), _SHORTS)


def _multiply_add(builder: Any, left: Any, right: Any, base: Any) -> Any:
    return builder.fadd(builder.fmul(left, right, flags=_FAST), base, flags=_FAST)


def _sum(builder: Any, value: Any) -> Any:
    """The sum of all lanes, halves added to halves."""
    count = LANES
    while count > 1:
        count //= 2
        nothing = ir.Constant(value.type, ir.Undefined)
        low = builder.shuffle_vector(value, nothing, _indices(list(range(count))))
        high = builder.shuffle_vector(value, nothing, _indices(list(range(count, 2 * count))))
        value = builder.fadd(low, high, flags=_FAST)
    return builder.extract_element(value, _INT(0))


def _element(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _FLOAT.as_pointer()), align=4)


@_intrinsic(prefer_literal=True)
def load(typing: Any, address: Any, scale: Any, count: Any, step: Any, rows: Any, half: Any) -> Any:
    """`count` groups of lanes from each of `rows` rows `step` bytes apart, times `scale`: a tuple of rows·count."""
    size = count.literal_value * rows.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, by = arguments[0], _spread(builder, arguments[1], _FLOATS)
        loaded = []
        for row in range(rows.literal_value):
            address = builder.add(start, start.type(row * step.literal_value))
            loaded += [_load(builder, address, index, half.literal_value) for index in range(count.literal_value)]
        return cgutils.pack_array(builder, [builder.fmul(value, by) for value in loaded])

    return types.UniTuple(_lanes, size)(types.uint64, types.float32, count, step, rows, half), generate


@_intrinsic(prefer_literal=True)
def store(typing: Any, address: Any, values: Any, scale: Any, count: Any, step: Any, rows: Any, half: Any) -> Any:
    """The counterpart of `load`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        by = _spread(builder, arguments[2], _FLOATS)
        unpacked = iter(cgutils.unpack_tuple(builder, arguments[1]))
        for row in range(rows.literal_value):
            address = builder.add(arguments[0], arguments[0].type(row * step.literal_value))
            for index in range(count.literal_value):
                _store(builder, address, index, builder.fmul(next(unpacked), by), half.literal_value)
        return context.get_dummy_value()

    return types.void(types.uint64, values, types.float32, count, step, rows, half), generate


@_intrinsic(prefer_literal=True)
def score(typing: Any, queries: Any, key: Any, scores: Any, stride: Any, count: Any, half: Any) -> Any:
    """Write the products of one key at address `key` with every query (`count` groups of lanes each) to `scores`,
    `stride` bytes apart."""
    groups = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = cgutils.unpack_tuple(builder, arguments[0])
        keys = [_load(builder, arguments[1], index, half.literal_value) for index in range(groups)]
        address = arguments[2]
        for first in range(0, len(lanes), groups):
            total = builder.fmul(lanes[first], keys[0], flags=_FAST)
            for index in range(1, groups):
                total = _multiply_add(builder, lanes[first + index], keys[index], total)
            target = builder.inttoptr(address, _FLOAT.as_pointer())
            builder.store(_sum(builder, total), target, align=4)
            address = builder.add(address, arguments[3])
        return context.get_dummy_value()

    return types.void(queries, types.uint64, types.uint64, types.uint64, count, half), generate


@_intrinsic(prefer_literal=True)
def mix(typing: Any, sums: Any, value: Any, weights: Any, stride: Any, count: Any, half: Any) -> Any:
    """`sums` plus the value at address `value`, times each query's weight (`stride` bytes apart): a new tuple."""
    groups = count.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = cgutils.unpack_tuple(builder, arguments[0])
        values = [_load(builder, arguments[1], index, half.literal_value) for index in range(groups)]
        address = arguments[2]
        mixed = []
        for first in range(0, len(lanes), groups):
            weight = _spread(builder, _element(builder, address), _FLOATS)
            mixed += [_multiply_add(builder, weight, values[i], lanes[first + i]) for i in range(groups)]
            address = builder.add(address, arguments[3])
        return cgutils.pack_array(builder, mixed)

    return sums(sums, types.uint64, types.uint64, types.uint64, count, half), generate


@_intrinsic(prefer_literal=True)
def prefetch(typing: Any, address: Any, size: Any) -> Any:
    """Ask for the cache lines of `size` bytes from `address` on; any address is allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for offset in range(0, size.literal_value, 64):
            place = builder.inttoptr(builder.add(arguments[0], arguments[0].type(offset)), byte)
            builder.call(function, [place, _INT(0), _INT(3), _INT(1)])
        return context.get_dummy_value()

    return types.void(types.uint64, size), generate


@_intrinsic
def take_number(typing: Any, address: Any) -> Any:
    """Add one to the int64 at `address` and return what it was, as one indivisible step."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = ir.IntType(64)
        place = builder.inttoptr(arguments[0], whole.as_pointer())
        return builder.atomic_rmw("add", place, whole(1), "monotonic")

    return types.int64(types.uint64), generate


@_intrinsic
def floats_at(typing: Any, address: Any) -> Any:
    """The address as a pointer to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.uint64), generate


@_intrinsic
def integers_at(typing: Any, address: Any) -> Any:
    """The address as a pointer to int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(types.uint64), generate


@_intrinsic(prefer_literal=True)
def copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes; the two places must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        places = [builder.inttoptr(argument, byte) for argument in arguments[:2]]
        cgutils.raw_memcpy(builder, places[0], places[1], ir.IntType(64)(size.literal_value), 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, size), generate
