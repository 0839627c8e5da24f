"""The Llama architecture as a trainable torch module, with Hugging Face's parameter names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model. `heads` divides `width`; `kv_heads` divides `heads`."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    context: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_width(self) -> int:
        """Numbers per attention head."""
        return self.width // self.heads

    def hugging_face_config(self, bos: int, eos: list[int]) -> dict[str, object]:
        """The content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "torch_dtype": "bfloat16",
        }


class Attention(nn.Module):
    """Causal self-attention with grouped keys and values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape
        self.q_proj = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, time, width) → the same shape."""
        batch, time, _ = hidden.shape
        shape = self._shape
        query = self.q_proj(hidden).view(batch, time, shape.heads, shape.head_width).transpose(1, 2)
        key = self.k_proj(hidden).view(batch, time, shape.kv_heads, shape.head_width).transpose(1, 2)
        value = self.v_proj(hidden).view(batch, time, shape.kv_heads, shape.head_width).transpose(1, 2)
        groups = shape.heads // shape.kv_heads
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cos, sin),
            rotate(key, cos, sin).repeat_interleave(groups, dim=1),
            value.repeat_interleave(groups, dim=1),
            is_causal=True,
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, time, -1))


class Mlp(nn.Module):
    """The gated feed-forward part (SwiGLU)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, width) → the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, time, width) → the same shape."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """The stack without its output projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)


class Llama(nn.Module):
    """A causal language model whose output projection is the transposed embedding."""

    _cos: Tensor
    _sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        cos, sin = rotation(shape)
        self.register_buffer("_cos", cos, persistent=False)
        self.register_buffer("_sin", sin, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the residual stream starts smaller, so that depth does not blow it up.
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / shape.layers**0.5 if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) token ids → (batch, time, vocabulary) logits."""
        time = tokens.shape[1]
        cos, sin = self._cos[:time], self._sin[:time]
        hidden = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            hidden = layer(hidden, cos, sin)
        return functional.linear(self.model.norm(hidden), self.model.embed_tokens.weight)


def rotation(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each (context, head_width), halves repeated."""
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), shape.rope_theta**-exponents)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to (batch, heads, time, head_width), in Hugging Face's half-split layout."""
    first, second = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat((-second, first), dim=-1) * sin).to(heads.dtype)
