"""A small GPT: token and position embeddings, pre-norm blocks, no dropout."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.capture.parameters import integer
from qmaps.lab.workloads.base import require
from qmaps.nn import StableEmbedding


@dataclass(frozen=True)
class GPTShape:
    """Sizes of a `GPT`.

    Attributes:
        vocabulary: number of tokens.
        context: longest sequence.
        width: size of the residual stream.
        layers: number of blocks.
        heads: number of attention heads; divides `width`.
    """

    vocabulary: int = 256
    context: int = 128
    width: int = 192
    layers: int = 4
    heads: int = 6

    def __post_init__(self) -> None:
        for parameter, value in asdict(self).items():
            integer(parameter, value, 1)
        divides = self.width % self.heads == 0
        require(divides, "heads", self.heads, f"a divisor of width={self.width}")


class Block(nn.Module):
    """Causal self-attention and a GELU network, each after a layer norm and added back."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.norm2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to a tensor of shape (batch, length, width); the shape stays."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        updated: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return updated


class GPT(nn.Module):
    """Decoder-only language model.

    The head's weights are not tied to the embedding: tied weights share optimizer states, and the
    sparse ones of the embedding could not be examined alone.

    Args:
        shape: sizes of the model.
        stable_embedding: take a `qmaps.nn.StableEmbedding` for the tokens.
    """

    def __init__(self, shape: GPTShape, *, stable_embedding: bool = False) -> None:
        super().__init__()
        self.shape = shape
        embedding = StableEmbedding if stable_embedding else nn.Embedding
        self.tokens = embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if stable_embedding and name.startswith("tokens."):
                continue  # it has its own initialization
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                # What adds to the residual stream is scaled so that its variance stays put.
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(
                    parameter, std=0.02 / (2 * shape.layers) ** 0.5 if residual else 0.02
                )

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape (batch, length, vocabulary) for int64 tokens (batch, length).

        Raises:
            BadValueError: the sequence is longer than the context.
        """
        length, context = tokens.shape[1], self.shape.context
        require(length <= context, "length", length, f"at most context={context}")
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
