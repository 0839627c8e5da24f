"""Linear layers with weights packed once, in float32, bfloat16 or int8, and a table look-up on the same weights.

On a CPU every product runs in oneDNN on weights that were reordered once into its own block layout. Beside
`functional.linear` that is 1.3 to 4 times as quick (AVX-512, 2 threads, 1 to 512 rows), and the sum behind one output
element does not depend on how many rows are computed together: a sequence gets the same bits alone and in a batch.
The one exception known is a lone row, for which oneDNN has another kernel where there are many inputs (2,304) or the
weights lie plain; it is looked for when the weights are packed and avoided by computing a second row.

int8 is for the weights alone: one scale per output, activations not rounded to 8 bits. Each activation is written as
a number of two digits with one step per row; the integer product of the two digits and the weights is exact, so the
only error is that of the steps. Where the processor multiplies 8-bit numbers exactly (VNNI) the digits have 8 bits and
a step is 3e-5 of the largest value of a row. Without it (AVX2 alone: most laptops) oneDNN adds pairs of products in 16
bits, which digits of 7 bits cannot overflow: a step is 1.2e-4.

bfloat16 weights without bfloat16 instructions, and int8 ones without either product, are widened to float32 a block at
a time and multiplied as float32 weights are: slower, with the same promise about bits.

Elsewhere (CUDA, a CPU without oneDNN) the layers are plain torch and merely right: `runner.self_test` finds out what a
machine keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Kind = Literal["float32", "bfloat16", "int8"]

_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PACKED_FOR_ROWS = 256  # the layout oneDNN picks for many rows is also the best one for few, but for one row
_LONE_ROWS = (1, 2, 4, 8)
_MANY_ROWS = (16, 33)
_BLOCK_ELEMENTS = 1 << 22  # weights widened at a time where int8 has no kernel of its own
_SMALLEST = 1e-30  # keeps a row of zeros from being divided by zero


class Linear(ABC):
    """x ↦ x · weightᵀ + bias, for weights that never change. Thread-compatible: any number of callers may use one."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Called by `pack`."""
        self.out_features, self.in_features = weight.shape
        self._bias = bias

    @staticmethod
    def pack(
        weight: Tensor,
        bias: Tensor | None = None,
        kind: Kind = "float32",
        device: torch.device | str = "cpu",
        *,
        lookup: bool = False,
    ) -> Linear:
        """The layer of `weight` (out, in) and `bias` (out,), which are not kept.

        `lookup` makes `rows` possible, for embeddings tied to the output layer. The float kinds then keep one plain
        copy for both uses, 1.1 to 1.8 times slower as a layer than a packed one; int8 keeps a second copy.
        Call it with torch's number of threads as it will be when the layer is used.

        :raises ValueError: the shapes do not fit together or `kind` is unknown.
        """
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise ValueError(f"weight {tuple(weight.shape)} and bias do not make a linear layer")
        weight = weight.detach().to(device)
        bias = None if bias is None else bias.detach().to(device)
        on_cpu = weight.device.type == "cpu"
        with torch.inference_mode():
            if kind == "int8":
                bits = digit_bits() if on_cpu else None
                return _Digits(weight, bias, lookup, bits) if bits else _WidenedInt8(weight, bias, lookup)
            if kind not in _DTYPES:
                raise ValueError(f"weights cannot be held as {kind}")
            dtype = _DTYPES[kind]
            if on_cpu and _has_onednn(dtype):
                return _Packed(weight, bias, dtype, lookup)
            if on_cpu and _has_onednn(torch.float32):
                return _Widened(weight, bias, lookup, dtype)
            return _Plain(weight, bias, dtype, lookup)

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """(n, in) → (n, out), in the dtype of `x` (float32 or bfloat16)."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held by the weights in all their copies, bias included."""

    def rows(self, ids: Tensor) -> Tensor:
        """The rows `ids` (n,) of the weight, as this layer holds it: (n, in) in float32.

        :raises ValueError: the layer was packed without `lookup`.
        """
        raise ValueError("this layer was packed without lookup")


def worthwhile_rows(count: int) -> int:
    """The row count to pad a step of `count` rows to.

    oneDNN builds a kernel for every row count it meets (0.4 to 0.8 ms for each shape of layer) and remembers 1024 of
    them; a step of every length would build kernels for ever. Up to 32 rows every count stands, beyond it counts grow
    by 8 or by an eighth of the power of two below: 60 counts up to 512, 13% of padding at most from 65 rows on.
    """
    if count <= 32:
        return count
    step = max(8, 1 << ((count - 1).bit_length() - 4))
    return -(-count // step) * step


class _Plain(Linear):
    """functional.linear on the weights as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, lookup: bool) -> None:
        super().__init__(weight, None if bias is None else bias.to(dtype))
        self._dtype = dtype
        self._weight = _own(weight, dtype)
        self._lookup = lookup

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self._dtype), self._weight, self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + _nbytes(self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._weight).float() if self._lookup else super().rows(ids)


class _Packed(Linear):
    """oneDNN on weights in its block layout, or in their plain one if they also serve look-ups."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, lookup: bool) -> None:
        super().__init__(weight, None if bias is None else bias.to(dtype))
        self._dtype = dtype
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._lookup = lookup
        if lookup:
            self._weight = _own(weight, dtype)
            self._held = self._weight.nbytes
        else:
            plain = weight.to(dtype).contiguous()
            self._weight = torch.ops.mkldnn._reorder_linear_weight(plain, _PACKED_FOR_ROWS)
            self._held = int(torch.ops.mkldnn._nbytes(self._weight))
        self._least = least_rows(self._multiplied, self.in_features, dtype) or 1

    def __call__(self, x: Tensor) -> Tensor:
        return padded(self._multiplied, x.to(self._dtype), self._least).to(x.dtype)

    def _multiplied(self, x: Tensor) -> Tensor:
        return self._product(x, self._weight, self._bias, "none", [], "")

    @property
    def nbytes(self) -> int:
        return self._held + _nbytes(self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._weight).float() if self._lookup else super().rows(ids)


class _Digits(Linear):
    """int8 weights times activations of two digits, as two exact products in oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None, lookup: bool, bits: int) -> None:
        """Digits of `bits`, 7 or 8 (see `digit_bits`)."""
        super().__init__(weight, None if bias is None else bias.float())
        quantized, self._scales = quantize(weight)
        self._packed = torch.ops.onednn.qlinear_prepack(quantized, [2 * _PACKED_FOR_ROWS, self.in_features])
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        # q + zero·base + zero has two digits of which each less `zero` is a digit of q; of 8 bits they are its bytes.
        self._bits, self._base, self._zero = bits, 1 << bits, 1 << (bits - 1)
        self._largest = self._zero * self._base - self._zero - 1
        self._middle = torch.tensor(self._zero * (self._base + 1) + 0.5)  # the half turns truncation into rounding
        self._quantized = quantized if lookup else None

    def __call__(self, x: Tensor) -> Tensor:
        count, dtype = x.shape[0], x.dtype
        if count == 0:
            return x.new_empty((0, self.out_features))
        if dtype is not torch.float32:
            x = x.float()
        steps = x.abs().amax(1, keepdim=True).clamp_(min=_SMALLEST).mul_(1 / self._largest)
        whole = torch.addcmul(self._middle, x, steps.reciprocal()).to(torch.int32)
        digits = torch.empty((2 * count, self.in_features), dtype=torch.uint8)
        torch.bitwise_right_shift(whole, self._bits, out=digits[:count])
        digits[count:].copy_(whole)
        if self._bits < 8:
            digits.bitwise_and_(self._base - 1)  # also of a row that is not finite: no digit may overflow
        sums = _integer_product(digits, self._zero, self._packed, self._scales, self._zeros)
        out = torch.add(sums[count:], sums[:count], alpha=self._base)
        # A row that is not finite has a step that is not, and so stays visible in the result.
        out = out.mul_(steps) if self._bias is None else torch.addcmul(self._bias, out, steps)
        return out if dtype is torch.float32 else out.to(dtype)

    @property
    def nbytes(self) -> int:
        packed = self.out_features * self.in_features
        return packed + _nbytes(self._scales, self._zeros, self._bias, self._quantized)

    def rows(self, ids: Tensor) -> Tensor:
        if self._quantized is None:
            return super().rows(ids)
        return _widen(self._quantized[ids], self._scales[ids])


class _Widened(Linear):
    """Narrow weights widened to float32 for every product, some outputs at a time so that the wide copy stays small."""

    def __init__(self, weight: Tensor, bias: Tensor | None, lookup: bool, dtype: torch.dtype) -> None:
        super().__init__(weight, None if bias is None else bias.to(dtype))
        self._narrow = self._narrowed(weight, dtype)
        self._lookup = lookup
        self._outputs = max(1, _BLOCK_ELEMENTS // self.in_features)
        onednn = weight.device.type == "cpu" and _has_onednn(torch.float32)
        self._product = torch.ops.mkldnn._linear_pointwise.default if onednn else None
        self._least = least_rows(self._multiplied, self.in_features, torch.float32, weight.device) or 1

    def __call__(self, x: Tensor) -> Tensor:
        out = self._scaled(padded(self._multiplied, x.float(), self._least))
        return (out if self._bias is None else out + self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return _nbytes(self._narrow, self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._narrow).float() if self._lookup else super().rows(ids)

    def _narrowed(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        return _own(weight, dtype)

    def _scaled(self, out: Tensor) -> Tensor:
        return out

    def _multiplied(self, x: Tensor) -> Tensor:
        parts = [self._times(x, part.float()) for part in self._narrow.split(self._outputs)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _times(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._product is None:
            return functional.linear(x, weight)
        return self._product(x, weight, None, "none", [], "")


class _WidenedInt8(_Widened):
    """The same of int8 weights, whose scales are applied to the products."""

    def __init__(self, weight: Tensor, bias: Tensor | None, lookup: bool) -> None:
        super().__init__(weight, bias, lookup, torch.float32)

    def _narrowed(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        quantized, self._scales = quantize(weight)
        return quantized

    def _scaled(self, out: Tensor) -> Tensor:
        return out * self._scales

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._scales.nbytes

    def rows(self, ids: Tensor) -> Tensor:
        return _widen(self._narrow[ids], self._scales[ids]) if self._lookup else Linear.rows(self, ids)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round (out, in) to int8 with one scale per output: the weight is near `quantized * scales[:, None]`, off by half
    a scale at most. Scales are float32; a row of zeros has scale 1."""
    scales = weight.abs().amax(dim=1).float() / 127
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    quantized = (weight.float() / scales[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    return quantized.contiguous(), scales


def padded(product: Callable[[Tensor], Tensor], x: Tensor, least: int) -> Tensor:
    """`product` of the rows `x` (n, in), computed for `least` of them at least."""
    count = x.shape[0]
    if count and count < least:
        return product(functional.pad(x, (0, 0, 0, least - count)))[:count]
    return product(x) if count else product(x.new_zeros((1, x.shape[1])))[:0]


def least_rows(
    product: Callable[[Tensor], Tensor], inner: int, dtype: torch.dtype, device: torch.device | None = None
) -> int | None:
    """The row count from which the bits of a row of `product`, (n, inner) → (n, outer), no longer depend on it; None
    where they go on to do so."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_MANY_ROWS[-1], inner, generator=generator).to(device, dtype)
    whole = product(x)
    least = None
    for count in reversed((*_LONE_ROWS, *_MANY_ROWS[:-1])):
        if not torch.equal(product(x[:count]), whole[:count]):
            break
        least = count
    return least if least in _LONE_ROWS else None


@lru_cache(maxsize=1)
def digit_bits() -> int | None:
    """Of how many bits the digits of activations may be so that this CPU multiplies them with int8 weights exactly: 8
    with the instructions made for it (VNNI), 7 where oneDNN adds pairs of products in 16 bits, None where it has no
    such product."""
    for bits in (8, 7):
        if _exact(1 << bits, 1 << (bits - 1)):
            return bits
    return None


def _exact(base: int, zero: int) -> bool:
    ones, zeros = torch.ones(16), torch.zeros(16, dtype=torch.int32)
    weights = torch.tensor([[127], [-127]], dtype=torch.int8).expand(2, 64).repeat(8, 1)
    digits = torch.tensor([[base - 1], [0]], dtype=torch.uint8).expand(2, 64).contiguous()
    try:
        packed = torch.ops.onednn.qlinear_prepack(weights, [2, 64])
        out = _integer_product(digits, zero, packed, ones, zeros)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.equal(out.double(), (digits.double() - zero) @ weights.double().T)


def _integer_product(digits: Tensor, zero: int, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """(digits - zero) · weightsᵀ · scales, (n, out) in float32: the sums are integers until they are scaled."""
    none: Any = None
    product = torch.ops.onednn.qlinear_pointwise.default
    return product(digits, 1.0, zero, packed, scales, zeros, none, 1.0, 0, torch.float32, "none", [], "")


def _has_onednn(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype is torch.float32 or _multiplies_bfloat16()


@lru_cache(maxsize=1)
def _multiplies_bfloat16() -> bool:
    """Whether oneDNN does so here: torch says what the processor has, which oneDNN may have been told not to use."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    weight = torch.eye(64, dtype=torch.bfloat16)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
        product = torch.ops.mkldnn._linear_pointwise.default(weight, packed, None, "none", [], "")
    except RuntimeError:
        return False
    return torch.equal(product, weight)


def _own(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy that shares no memory with `weight`, which may map a file."""
    return weight.to(dtype, copy=True).contiguous()


def _widen(quantized: Tensor, scales: Tensor) -> Tensor:
    return quantized.float() * scales[:, None]


def _nbytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
