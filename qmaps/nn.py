"""Layers for models with quantized optimizer states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim.choice import keep_in_32_bits

__all__ = ["StableEmbedding"]


class _In32Bits(nn.Module):
    """Marks its parameters, and their later replacements, to keep 32-bit states."""

    def _mark(self) -> None:
        for param in self._parameters.values():
            if param is not None:
                keep_in_32_bits(param, "module StableEmbedding")

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        # Assignments call this: tying weights, load_state_dict(assign=True), distribute_module.
        super().register_parameter(name, param)
        self._mark()

    def __setattr__(self, name: str, value: Any) -> None:
        # fully_shard bypasses `register_parameter` unless a module has this method itself.
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Self:
        # to_empty() and, under an option of torch.__future__, to() make new parameters.
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        self._mark()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # Under another option of torch.__future__ parameters swap their attributes, too.
        super()._load_from_state_dict(*args, **kwargs)
        self._mark()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # deepcopy and pickle: copies of parameters have no attributes.
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._mark()


class _Norm(_In32Bits, nn.LayerNorm):
    """Layer normalization computed in float32 or a wider dtype, for inputs of any dtype."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        work = torch.promote_types(input.dtype, torch.float32)
        weight, bias = self.weight.to(work), self.bias.to(work)
        normed = F.layer_norm(input.to(work), self.normalized_shape, weight, bias, self.eps)
        # Under autocast a layer norm gives float32; an embedding gives the dtype of its weight.
        return normed.to(input.dtype)


class StableEmbedding(_In32Bits, nn.Embedding):
    """`torch.nn.Embedding` for word embeddings trained with optimizers of few bits.

    It differs from `torch.nn.Embedding` in three things. The weight is drawn from Xavier's uniform
    distribution. Looked-up embeddings go through a layer normalization, `norm`,
    before the caller adds position embeddings; `norm` computes in float32 or a wider dtype and
    returns the weight's dtype. All parameters keep 32-bit optimizer states in every optimizer of
    `qmaps.optim`, whatever its quantizers. This also holds for copies of the module, after it was
    moved, loaded or sharded by ``fully_shard``, and for a weight tied to another layer,
    which then shares its states.

    The output has a variance of about one, so no further scaling by the square root of
    `embedding_dim` is needed. Since rows are normalized, the row of `padding_idx`, which is zero,
    becomes `norm.bias`. A pretrained embedding needs some further training, as the normalization
    changes its output.

    Args:
        num_embeddings: size of the vocabulary.
        embedding_dim: size of each embedding.
        padding_idx: index of a row without gradient, zero at first unless `_weight` is given;
            counted from the end if negative. At least -`num_embeddings` and below
            `num_embeddings`.
        max_norm: largest norm of a row. Looked-up rows with a larger norm are scaled
            down to it, in the weight itself.
        norm_type: the p of the p-norm limited by `max_norm`.
        scale_grad_by_freq: divide gradients by how often a row occurs in the batch.
        sparse: must be False; the optimizers take dense gradients only.
        _weight: a weight to use in place of a new one, of shape
            (`num_embeddings`, `embedding_dim`); its values are left as they are.
        _freeze: if True, the weight is not trained.
        device: device of the weight and of `norm`, unless `_weight` is given.
        dtype: dtype of the weight and of `norm`, a floating-point one, unless `_weight` is given.

    Attributes:
        norm: the layer normalization.

    Raises:
        BadValueError: `sparse` is True, or `padding_idx` is out of range.
        BadTypeError: `dtype` is not a floating-point dtype.

    Source: 8-bit optimizers, section 2.3 and appendix B; initialization after Glorot and Bengio
    (2010).

    >>> import torch
    >>> from qmaps.optim import AdamW4bit
    >>> embedding = StableEmbedding(1000, 64)
    >>> embedding(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 64])
    >>> [row.why for row in AdamW4bit(embedding.parameters()).memory()][:2]
    ['module StableEmbedding', 'module StableEmbedding']
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if sparse:
            raise BadValueError(
                f"sparse={sparse!r} must be False; the optimizers of qmaps accept dense gradients "
                "only"
            )
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise BadValueError(
                f"padding_idx={padding_idx} must be between {-num_embeddings} and "
                f"{num_embeddings - 1}"
            )
        if dtype is not None and not dtype.is_floating_point:
            raise BadTypeError(f"dtype={dtype} must be a floating-point dtype")
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            _weight,
            _freeze,
            device,
            dtype,
        )
        # Sharding requires one dtype and one device in a module.
        self.norm = _Norm(embedding_dim, device=self.weight.device, dtype=self.weight.dtype)

    def reset_parameters(self) -> None:
        """Draw a new weight. `norm` is left alone; it has a `reset_parameters` of its own."""
        nn.init.xavier_uniform_(self.weight)
        self._fill_padding_idx_with_zero()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        """Look up rows and normalize them.

        Args:
            input: indices of rows, int32 or int64 of any shape, from 0 to `num_embeddings` - 1.

        Returns:
            Tensor of the input's shape with a last dimension of size `embedding_dim` added, in
            the weight's dtype.
        """
        embedded: Tensor = self.norm(super().forward(input))
        return embedded
