"""A low-rank part of a matrix beside the codes of the rest.

``lowrank4(B128/DE@8s)+B128/DE@4s`` keeps a matrix X of m rows and n columns as

- ``P`` of shape (m, 4), an orthonormal basis of ``X S``, and ``R = X^T P`` of shape (n, 4), both
  quantized under ``B128/DE@8s``;
- codes of the rest ``X - P R^T`` under ``B128/DE@4s``, with P and R as they decode.

It decodes to ``P R^T`` plus the rest. One product with S and one with P is a power iteration. S is
the R of the tensor encoded before (`after`), so over the steps of an optimizer P
follows the largest singular vectors; without one, S is drawn at random, the same each time, and the
iteration is repeated `FIRST` times. Quantization then errs in the rest, small if few
singular values are large, as in a momentum, and only little in the directions of the large ones.

Tensors that are no matrices, or have as many rows or columns as the rank or fewer, are quantized as
the rest is, alone. The bits of P and R depend on torch's products of matrices and decomposition.

Source: Wu et al. (2026), "Achieving low-bit Muon through subspace preservation and grid
quantization" (GRASP): the momentum of Muon with its top singular subspace in 8 bits and the rest in
4, by one power iteration for each step. Su et al. (2026), "MuonQ: enhancing low-bit Muon
quantization via directional fidelity optimization", with all of it in 4 bits under mu-law.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qmaps.algebra.coder import Coder
from qmaps.algebra.philox import RoundingKey, normal
from qmaps.algebra.quantizer import LowRank, QuantizedTensor

FIRST = 4
"""Power iterations of a matrix that has nothing before it."""

TINY = torch.finfo(torch.float32).tiny


def split(
    low_rank: LowRank,
    x: Tensor,
    coder: Coder,
    after: QuantizedTensor | None,
    out: tuple[QuantizedTensor, ...] | None = None,
) -> tuple[Tensor, tuple[QuantizedTensor, ...]]:
    """The rest of a float32 matrix, and its quantized factors P and R.

    Args:
        low_rank: the part of the quantizer.
        x: the matrix; an element that is not finite makes the result NaN.
        coder: encodes and decodes the factors.
        after: the tensor encoded before, with a low-rank part of this rank or without.
        out: the factors are written into these, if it is not None.
    """
    p, r = (x.new_full(shape, torch.nan) for shape in low_rank.shapes(x.shape))
    finite = bool(x.isfinite().all())
    if finite:
        p, r = _power_iterations(low_rank, x, _previous(low_rank, x, coder, after))
    targets = (None, None) if out is None else out
    factors = _quantized(low_rank, (p, r), targets, coder)
    residual = x - product([coder.decode(factor) for factor in factors])
    if finite and not bool(residual.isfinite().all()):
        # Sums over rows of the largest numbers overflow: then the codes hold all of x.
        factors = _quantized(low_rank, (p.zero_(), r.zero_()), targets, coder)
        residual = x
    return residual, factors


def _power_iterations(low_rank: LowRank, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """P and R by power iterations on finite x from an R, without over- or underflow of products."""
    size = x.abs().max()
    size = torch.where(size > 0, size, 1)
    unit = x / size
    r = before
    if r is None:
        columns, rank = x.shape[1], low_rank.rank
        r = normal(columns * rank, RoundingKey(), x.device).view(columns, rank)
    with torch.autocast(x.device.type, enabled=False):
        for _ in range(FIRST if before is None else 1):
            p = torch.linalg.qr(unit @ (r / r.abs().max().clamp(min=TINY))).Q
            r = unit.T @ p
    return p, r * size


def _quantized(
    low_rank: LowRank,
    factors: tuple[Tensor, Tensor],
    out: Sequence[QuantizedTensor | None],
    coder: Coder,
) -> tuple[QuantizedTensor, ...]:
    return tuple(
        coder.encode(low_rank.factors, factor, out=target)
        for factor, target in zip(factors, out, strict=True)
    )


def _previous(
    low_rank: LowRank, x: Tensor, coder: Coder, after: QuantizedTensor | None
) -> Tensor | None:
    """The R before this one; None if there is none, or nothing in it."""
    if after is None or len(factors := low_rank_of(after)) != 2:
        return None
    before = coder.decode(factors[1])
    fits = tuple(before.shape) == low_rank.shapes(x.shape)[1]
    return before if fits and bool(before.isfinite().all() and before.any()) else None


def low_rank_of(t: QuantizedTensor) -> tuple[QuantizedTensor, ...]:
    """P and R of a quantized tensor; empty if it has none."""
    low_rank = t.quantizer.low_rank
    return t.beside[: len(low_rank.shapes(t.shape))] if low_rank is not None else ()


def product(factors: Sequence[Tensor]) -> Tensor:
    """P R^T of the decoded factors, float32."""
    p, r = factors
    with torch.autocast(p.device.type, enabled=False):
        return p @ r.T
