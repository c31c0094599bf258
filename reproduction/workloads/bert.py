"""A BERT encoder of sentences: post-norm blocks, no dropout, means over tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.capture.parameters import integer
from qmaps.lab.workloads.base import require


@dataclass(frozen=True)
class BertShape:
    """Sizes of an `Encoder`; the defaults are those of all-MiniLM-L6-v2.

    Attributes:
        vocabulary: number of tokens; token 0 is padding.
        context: longest sequence.
        width: size of the hidden states.
        layers: number of blocks.
        heads: number of attention heads; divides `width`.
        inner: size within the feed-forward networks.
    """

    vocabulary: int = 30522
    context: int = 512
    width: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1536

    def __post_init__(self) -> None:
        for parameter, value in asdict(self).items():
            integer(parameter, value, 1)
        divides = self.width % self.heads == 0
        require(divides, "heads", self.heads, f"a divisor of width={self.width}")


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=1e-12)


class Block(nn.Module):
    """Self-attention and a GELU network, each added back before a layer norm."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.proj = nn.Linear(shape.width, shape.width)
        self.norm1 = _norm(shape.width)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)
        self.norm2 = _norm(shape.width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Apply the block.

        Args:
            x: hidden states of shape (batch, length, width).
            seen: bool tensor, broadcast to the attention scores, of shape (batch, heads, length,
                length); True where a token may be attended to.

        Returns:
            Hidden states of the same shape.
        """
        batch, length, width = x.shape

        def split(part: Tensor) -> Tensor:
            return part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = self.norm1(x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width)))
        updated: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return updated


class Encoder(nn.Module):
    """Encoder of sentences into vectors of length 1.

    Source: Devlin et al. (2019), "BERT"; means over tokens after Reimers and Gurevych (2019),
    "Sentence-BERT".
    """

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.types = nn.Embedding(2, shape.width)
        self.norm = _norm(shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Hidden states (batch, length, width) of int64 tokens (batch, length), 0 for padding.

        Raises:
            BadValueError: the sequences are longer than the context.
        """
        length, context = tokens.shape[1], self.shape.context
        require(length <= context, "length", length, f"at most context={context}")
        places = torch.arange(length, device=tokens.device)
        x: Tensor = self.norm(self.words(tokens) + self.positions(places) + self.types.weight[0])
        seen = (tokens != 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, seen)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors (batch, width) of length 1: means over tokens other than padding."""
        x = self.hidden(tokens)
        mask = (tokens != 0)[:, :, None].to(x.dtype)
        vectors: Tensor = F.normalize((x * mask).sum(dim=1) / mask.sum(dim=1), dim=1)
        return vectors


NAMES = {
    "embeddings.word_embeddings.": "words.",
    "embeddings.position_embeddings.": "positions.",
    "embeddings.token_type_embeddings.": "types.",
    "embeddings.LayerNorm.": "norm.",
    "encoder.layer.": "blocks.",
    "attention.self.": "",
    "attention.output.dense.": "proj.",
    "attention.output.LayerNorm.": "norm1.",
    "intermediate.dense.": "up.",
    "output.dense.": "down.",
    "output.LayerNorm.": "norm2.",
}
"""Parts of the published names of BERT's weights, and our names."""


def from_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A published BERT's weights as an `Encoder` names them, without the unused pooler."""
    renamed = {}
    for name, value in weights.items():
        if name.startswith("pooler.") or name.endswith("position_ids"):
            continue
        for published, ours in NAMES.items():
            name = name.replace(published, ours)
        renamed[name] = value
    return renamed
