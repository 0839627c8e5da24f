"""Linear layers with weights packed once, in float32, bfloat16 or int8, and a table look-up on the same weights.

On a CPU every product runs in oneDNN on weights that were reordered once into its own block layout. Beside
`functional.linear` that is 1.3 to 4 times as quick (AVX-512, 2 threads, 1 to 512 rows), and the sum behind one output
element does not depend on how many rows are computed together: a sequence gets the same bits alone and in a batch.
The one exception known is a lone row, for which oneDNN has another kernel where there are many inputs (2,304) or the
weights lie plain; it is looked for when the weights are packed and avoided by computing a second row.

int8 is for the weights alone: one scale per output, activations not rounded to 8 bits. Each activation is written as
a 16-bit number of two base-256 digits with one step per row; the integer product of the two digits and the weights is
exact, so the only error is that of the steps, near 1e-5 of the largest value of a row.

Elsewhere (CUDA, a CPU without oneDNN or without 8-bit multiply-add) the layers are plain torch and merely right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Kind = Literal["float32", "bfloat16", "int8"]

_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PACKED_FOR_ROWS = 256  # the layout oneDNN picks for many rows is also the best one for few, but for one row
_LONE_ROWS = (1, 2, 4, 8)
_BLOCK_ELEMENTS = 1 << 22  # weights widened at a time where int8 has no kernel of its own
# 16-bit activations: q + 128·256 + 128 lies in 0 … 65535, and its two bytes less 128 are the digits of q.
_LARGEST_STEP = 32639
_ZERO_DIGIT = 128
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
                return _Digits(weight, bias, lookup) if on_cpu and exact_int8() else _Widened(weight, bias, lookup)
            if kind not in _DTYPES:
                raise ValueError(f"weights cannot be held as {kind}")
            packed = on_cpu and _has_onednn(_DTYPES[kind])
            return (_Packed if packed else _Plain)(weight, bias, _DTYPES[kind], lookup)

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
        self._least = 1
        self._least = self._least_rows()

    def __call__(self, x: Tensor) -> Tensor:
        count, dtype = x.shape[0], x.dtype
        if count < self._least:
            if count == 0:
                return x.new_empty((0, self.out_features))
            return self(functional.pad(x, (0, 0, 0, self._least - count)))[:count]
        if dtype is self._dtype:
            return self._product(x, self._weight, self._bias, "none", [], "")
        return self._product(x.to(self._dtype), self._weight, self._bias, "none", [], "").to(dtype)

    @property
    def nbytes(self) -> int:
        return self._held + _nbytes(self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._weight).float() if self._lookup else super().rows(ids)

    def _least_rows(self) -> int:
        """The row count from which the bits of a row no longer depend on it."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(2 * _LONE_ROWS[-1], self.in_features, generator=generator).to(self._dtype)
        whole = self(x)
        least = 2 * _LONE_ROWS[-1]
        for count in reversed(_LONE_ROWS):
            if not torch.equal(self(x[:count]), whole[:count]):
                break
            least = count
        return least if least <= _LONE_ROWS[-1] else 1


class _Digits(Linear):
    """int8 weights times 16-bit activations, as two exact 8-bit products in oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None, lookup: bool) -> None:
        super().__init__(weight, None if bias is None else bias.float())
        quantized, self._scales = quantize(weight)
        self._packed = torch.ops.onednn.qlinear_prepack(quantized, [2 * _PACKED_FOR_ROWS, self.in_features])
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self._middle = torch.tensor(_ZERO_DIGIT * 257 + 0.5)  # the half turns truncation into rounding
        self._product = torch.ops.onednn.qlinear_pointwise.default
        self._quantized = quantized if lookup else None

    def __call__(self, x: Tensor) -> Tensor:
        count, dtype = x.shape[0], x.dtype
        if count == 0:
            return x.new_empty((0, self.out_features))
        if dtype is not torch.float32:
            x = x.float()
        steps = x.abs().amax(1, keepdim=True).clamp_(min=_SMALLEST).mul_(1 / _LARGEST_STEP)
        whole = torch.addcmul(self._middle, x, steps.reciprocal()).to(torch.int32)
        digits = torch.empty((2 * count, self.in_features), dtype=torch.uint8)
        torch.bitwise_right_shift(whole, 8, out=digits[:count])
        digits[count:].copy_(whole)
        sums = self._integer_product(digits)
        out = torch.add(sums[count:], sums[:count], alpha=256)
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

    def _integer_product(self, digits: Tensor) -> Tensor:
        none: Any = None
        return self._product(
            digits,
            1.0,
            _ZERO_DIGIT,
            self._packed,
            self._scales,
            self._zeros,
            none,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )


class _Widened(Linear):
    """int8 weights widened for every product, some rows at a time so that the wide copy stays small."""

    def __init__(self, weight: Tensor, bias: Tensor | None, lookup: bool) -> None:
        super().__init__(weight, bias)
        self._quantized, self._scales = quantize(weight)
        self._lookup = lookup

    def __call__(self, x: Tensor) -> Tensor:
        block = max(1, _BLOCK_ELEMENTS // self.in_features)
        parts = [functional.linear(x, part.to(x.dtype)) for part in self._quantized.split(block)]
        out = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)) * self._scales
        return (out if self._bias is None else out + self._bias).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._quantized.nbytes + _nbytes(self._scales, self._bias)

    def rows(self, ids: Tensor) -> Tensor:
        return _widen(self._quantized[ids], self._scales[ids]) if self._lookup else super().rows(ids)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round (out, in) to int8 with one scale per output: the weight is near `quantized * scales[:, None]`, off by half
    a scale at most. Scales are float32; a row of zeros has scale 1."""
    scales = weight.abs().amax(dim=1).float() / 127
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    quantized = (weight.float() / scales[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    return quantized.contiguous(), scales


@lru_cache(maxsize=1)
def exact_int8() -> bool:
    """Whether this CPU multiplies 8-bit numbers exactly. Without the instructions made for it (VNNI) oneDNN adds pairs
    of products in 16 bits, which overflow for large values."""
    try:
        packed = torch.ops.onednn.qlinear_prepack(torch.full((16, 64), 127, dtype=torch.int8), [2, 64])
        ones, zeros = torch.ones(16), torch.zeros(16, dtype=torch.int32)
        digits = torch.tensor([[255], [0]], dtype=torch.uint8).expand(2, 64).contiguous()
        product = torch.ops.onednn.qlinear_pointwise.default
        out = product(digits, 1.0, _ZERO_DIGIT, packed, ones, zeros, None, 1.0, 0, torch.float32, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    wanted = torch.tensor([[127.0 * 127 * 64], [-128.0 * 127 * 64]]).expand(2, 16)
    return torch.equal(out, wanted)


def _has_onednn(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _own(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A contiguous copy that shares no memory with `weight`, which may map a file."""
    return weight.to(dtype, copy=True).contiguous()


def _widen(quantized: Tensor, scales: Tensor) -> Tensor:
    return quantized.float() * scales[:, None]


def _nbytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
