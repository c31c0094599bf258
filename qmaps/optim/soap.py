"""SOAP, in 32 bits or with quantized moments, averages and bases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.step import Context
from qmaps.engines.step_scalars import Decoupled, StepScalar
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import (
    MatrixRule,
    ascent,
    bounded_,
    check_at_least_0,
    check_betas,
    check_decay,
    check_int,
    directed,
)

DIMENSIONS = 8
"""Parameters of more dimensions are refused."""

LARGEST = 2.0**56
"""Largest magnitude of a finite gradient in products: their sums are finite, and so are bases."""

_GRAMS = tuple(f"gram_{dim}" for dim in range(DIMENSIONS))
_BASES = tuple(f"basis_{dim}" for dim in range(DIMENSIONS))


class SOAP(MatrixRule, QuantizedOptimizer):
    r"""SOAP: Adam in the eigenbases of Shampoo; its states accept any quantizer spec.

    A matrix with m rows and n columns has two averages, L of shape (m, m) and R of shape (n, n),
    and their eigenvectors, Q and P. With gradient g (negated to maximize), in float32:

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (Q.T g P)^2
        u = Q ((Q.T m P) / (sqrt(v) + eps)) P.T
        p = p - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * u
        p = p * (1 - lr * weight_decay)
        L = shampoo_beta * L + (1 - shampoo_beta) * g g.T         R likewise with g.T g

    where t is the number of the step minus 1: the first step only computes L, R, Q and P, and
    leaves the parameter as it is. Every `precondition_frequency` steps Q and P take a step of power
    iteration, are made orthogonal by QR, and v is sorted as they are.

    A parameter of more dimensions has an average and a basis for each, and one of a single
    dimension has none: for it this is Adam. A dimension of more than `max_precond_dim` elements has
    no basis either.

    The states are named `exp_avg` (m), `exp_avg_sq` (v), `gram_0` (L), `gram_1` (R), `basis_0` (Q),
    `basis_1` (P), and so on; `step` counts the steps. In 32 bits they take 8 bytes for each element
    of the parameter and 8 n^2 bytes for each dimension of n elements. Products and decompositions
    are torch's: bits depend on torch and the device. Of a sharded parameter one process has the
    states whole: the gradient is sent to it, and the update back.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decays of the two moments, each in [0, 1).
        shampoo_beta: decay of the averages L and R, in [0, 1); None takes the second of `betas`.
        eps: added to the denominator, at least 0.
        weight_decay: decoupled, at least 0.
        precondition_frequency: steps between updates of the bases, at least 1.
        max_precond_dim: largest size of a dimension with a basis, at least 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Vyas et al. (2024), "SOAP: improving and stabilizing Shampoo using Adam", algorithm 3.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64, bias=False)
    >>> optimizer = SOAP(layer.parameters(), state_quantizers="8bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["basis_1"]
    QuantizedTensor('B256/DE-sym@8s', shape=(128, 128), 16640 bytes)
    """

    _counts_steps: ClassVar[bool] = True
    states: ClassVar[Mapping[str, State]] = {
        "exp_avg": State(signed=True, dims=None),
        "exp_avg_sq": State(dims=None),
        **{name: State(signed=True, dims=None) for name in (*_GRAMS, *_BASES)},
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10000,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay")
        check_betas(group)
        if group["shampoo_beta"] is not None:
            check_decay("shampoo_beta", group["shampoo_beta"])
        check_int("precondition_frequency", group["precondition_frequency"], 1)
        check_int("max_precond_dim", group["max_precond_dim"], 0)

    @classmethod
    def unsupported_reason(cls, param: Tensor) -> str:
        """Reason why the rule cannot step a parameter; empty if it can."""
        if param.ndim <= DIMENSIONS:
            return ""
        return f"has {param.ndim} dimensions, and SOAP supports at most {DIMENSIONS}"

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        shapes = dict.fromkeys(("exp_avg", "exp_avg_sq"), tuple(param.shape))
        sizes = param.shape if param.ndim > 1 else ()
        for gram, basis, size in zip(_GRAMS, _BASES, sizes, strict=False):
            if size <= group["max_precond_dim"]:
                shapes[gram] = shapes[basis] = (size, size)
        return shapes

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        lr, (beta1, beta2) = group["lr"], map(float, group["betas"])
        shampoo_beta = group["shampoo_beta"]
        beta = beta2 if shampoo_beta is None else float(shampoo_beta)
        return {
            "decay": Decoupled(lr, float(group["weight_decay"])),
            "step_size": StepScalar(lr),
            "beta1": beta1,
            "rest1": 1 - beta1,
            "beta2": beta2,
            "rest2": 1 - beta2,
            "gram_beta": beta,
            "gram_rest": 1 - beta,
            "eps": float(group["eps"]),
            "sign": ascent(group),
        }

    def prepare(self, context: Context, grad: Tensor, states: States, scalars: Values) -> Tensor:
        return directed(grad, scalars)

    def transform(self, context: Context, x: Tensor, states: States, scalars: Values) -> Tensor:
        s, group, updates = scalars, context.group, context.step - 1
        grad, m, v = x, states["exp_avg"], states["exp_avg_sq"]
        bases = [states.get(name) for name in _BASES[: grad.ndim]]
        update = grad
        # Infinity stays, for `nonfinite` says what comes of it.
        bounded = torch.where(grad.isinf(), grad, grad.clamp(-LARGEST, LARGEST))
        if updates > 0:
            m.mul_(s["beta1"]).add_(grad * s["rest1"])
            bounded_(v.mul_(s["beta2"]).add_(to_bases(grad, bases).square() * s["rest2"]))
            update = from_bases(to_bases(m, bases) / (v.sqrt() + s["eps"]), bases)
        for dim, basis in enumerate(bases):
            if basis is None:
                continue
            average = states[_GRAMS[dim]]
            average.mul_(s["gram_beta"]).add_(slice_products(bounded, dim) * s["gram_rest"])
            if updates == 0:
                basis.copy_(eigenbasis(average))
            elif updates % group["precondition_frequency"] == 0:
                new_basis, order = refined(average, basis)
                basis.copy_(new_basis)
                v.copy_(v.index_select(dim, order))
        return update

    def finish(self, context: Context, param: Tensor, update: Tensor, scalars: Values) -> None:
        if (updates := context.step - 1) > 0:
            beta1, beta2 = map(float, context.group["betas"])
            corrected = math.sqrt(1 - beta2**updates) / (1 - beta1**updates)
            param.sub_(update * (scalars["step_size"] * corrected))
            param.mul_(scalars["decay"])


class SOAP8bit(EightBit, SOAP):
    """`SOAP` in 8 bits: the preset ``8bit``. See `FixedWidth`."""


class SOAP4bit(FourBit, SOAP):
    """`SOAP` in 4 bits: the preset ``4bit``.

    See `FixedWidth`.
    """


def eigenbasis(gram: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix as columns, largest eigenvalue first.

    NaN if `gram` holds NaN or infinity.
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

    Returns:
        The new basis, sorted by eigenvalues estimated with the old one, and the old numbers of its
        columns. The basis is NaN if an argument holds NaN or infinity.
    """
    product = gram @ basis
    order = (basis * product).sum(0).argsort(descending=True)
    if not product.isfinite().all():
        return torch.full_like(basis, torch.nan), order
    return torch.linalg.qr(product[:, order]).Q, order


def slice_products(x: Tensor, dim: int) -> Tensor:
    """The products of the slices of `x` along a dimension with each other, of shape (n, n)."""
    dims = [other_dim for other_dim in range(x.ndim) if other_dim != dim]
    products: Tensor = torch.tensordot(x, x, (dims, dims))
    return products


def to_bases(x: Tensor, bases: Sequence[Tensor | None]) -> Tensor:
    """The coordinates of `x` in a basis for each dimension; None leaves a dimension as it is."""
    return from_bases(x, [None if basis is None else basis.t() for basis in bases])


def from_bases(x: Tensor, bases: Sequence[Tensor | None]) -> Tensor:
    """The inverse of `to_bases` for orthogonal bases."""
    for dim, basis in enumerate(bases):
        if basis is not None:
            x = torch.tensordot(basis, x, ([1], [dim])).movedim(0, dim)
    return x
