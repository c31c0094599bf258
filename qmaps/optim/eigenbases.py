"""Bases in which SOAP runs Adam: eigenvectors of averages of ``g @ g.T`` and the like."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def eigenbasis(gram: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix as columns, largest eigenvalue first.

    Args:
        gram: float32 of shape (n, n).

    Returns:
        float32 of shape (n, n); NaN if `gram` holds NaN or infinity.
    """
    if not gram.isfinite().all():
        return torch.full_like(gram, torch.nan)
    try:
        vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
    except RuntimeError:  # LinAlgError, as it does not converge; float64 mends that
        vectors = torch.linalg.eigh(gram.double()).eigenvectors.float()
    return vectors.flip(1)


def refined(gram: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One step of power iteration towards the eigenvectors, made orthogonal by QR.

    Args:
        gram: float32 of shape (n, n).
        basis: float32 of shape (n, n), a basis as columns.

    Returns:
        The new basis, sorted by the eigenvalues that the old one estimates, and the old numbers of
        its columns, int64 of shape (n,). The basis is NaN if an argument holds NaN or infinity.
    """
    product = gram @ basis
    order = (basis * product).sum(0).argsort(descending=True)
    if not product.isfinite().all():
        return torch.full_like(basis, torch.nan), order
    return torch.linalg.qr(product[:, order]).Q, order


def slice_products(x: Tensor, dim: int) -> Tensor:
    """The products of the slices of `x` along a dimension with each other, of shape (n, n)."""
    others = [other for other in range(x.ndim) if other != dim]
    products: Tensor = torch.tensordot(x, x, (others, others))
    return products


def to_bases(x: Tensor, bases: Sequence[Tensor | None]) -> Tensor:
    """The coordinates of `x` in a basis for each dimension; None leaves a dimension as it is."""
    return _along(x, [None if basis is None else basis.t() for basis in bases])


def from_bases(x: Tensor, bases: Sequence[Tensor | None]) -> Tensor:
    """The inverse of `to_bases` for orthogonal bases."""
    return _along(x, bases)


def _along(x: Tensor, matrices: Sequence[Tensor | None]) -> Tensor:
    for dim, matrix in enumerate(matrices):
        if matrix is not None:
            x = torch.tensordot(matrix, x, ([1], [dim])).movedim(0, dim)
    return x
