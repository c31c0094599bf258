"""Unexpected objects, to pass to any argument."""

from __future__ import annotations

import decimal
import fractions
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from qmaps.errors import LONGEST, QmapsError


class Hostile:
    """An object with a `repr` and a `str` that raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


NUMBERS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**400, -(10**400), 10**5000, 0.0, -0.0, 0.5,
    1.0, 1 - 2**-53, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), 1j,
    fractions.Fraction(1, 3), decimal.Decimal("0.3"), np.float32(0.25), np.float64(0.25),
    np.int64(3), np.bool_(True), np.array(0.5), np.array([0.9, 0.99]), np.nan,
]  # fmt: skip
TEXTS: list[Any] = [
    "", "a", "0.9", "1e-3", b"0.9", "x" * 5000, "B128/DE@4s", "8bit", "\n", "\ud800", "B8x8/DE@4s",
    "B8/DE@" + "9" * 4301, "B" + "9" * 4301 + "/DE@4s", "B8" + "x8" * 3000 + "/DE@4s",
    "&".join(["B8"] * 2000) + "/DE@4s", "B99999999999999999999/DE@4s", "B8/DE@4s + 32-bit",
    "logB9007199254740993/log2@4u", "B8/mantissa(offset=" + "9" * 4301 + ")@8s", "row/lloyd@2s",
]  # fmt: skip
CONTAINERS: list[Any] = [
    (), [], {}, set(), (0.9,), (0.9, 0.99), [0.9, 0.99], ("a", "b"), (0.9, 0.99, 0.999), {0.9},
    (None, 1e-3), (None, None), (10**400, 0.9), (float("nan"), 0.9), ((0.9,), (0.99,)), (1j, 0.9),
    {"exp_avg": 3}, {"exp_avg": "B8/DE@4s"}, {3: None}, {"*": "8bit"}, {"a" * 5000: None},
    range(2), iter([0.9, 0.99]), lambda step: 0.1, float, object(), Hostile(), (Hostile(), 0.9),
]  # fmt: skip


def tensors() -> list[torch.Tensor]:
    """Tensors of every kind in torch."""
    x = torch.rand(4, 6) + 0.5
    return [
        torch.tensor(0.5), torch.tensor([0.5]), torch.tensor(0.5, requires_grad=True), x,
        torch.tensor([0.9, 0.99]), torch.tensor(3), torch.tensor(True), torch.tensor(0.5j),
        torch.tensor(float("nan")), torch.zeros(0), torch.empty((), device="meta"),
        torch.empty(4, 6, device="meta"), x.to_sparse(), x.to_sparse_csr(), x.to_mkldnn(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), x.to(torch.complex64), x.double(),
        x.int(), x.bool(), x.half(), x.to(torch.float8_e4m3fn), x.t(), x.expand(2, 4, 6),
        torch._efficientzerotensor((4, 6)), torch.complex(x, x).conj().imag,
    ]  # fmt: skip


def objects() -> st.SearchStrategy[Any]:
    """Any object at all."""
    samples = st.sampled_from([*NUMBERS, *TEXTS, *CONTAINERS, *tensors()])
    drawn = st.one_of(
        samples, st.integers(), st.floats(), st.text(max_size=20), st.binary(max_size=5)
    )
    return st.one_of(
        drawn,
        st.lists(drawn, max_size=3),
        st.tuples(drawn, drawn),
        st.dictionaries(st.text(max_size=8), drawn, max_size=2),
    )


def refused(call: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """True if the call raises an error of qmaps with a short message on one line."""
    message = ""
    try:
        call(*args, **options)
    except QmapsError as error:
        message = str(error)
    assert len(message) <= LONGEST < 600
    assert "\n" not in message
    return message != ""
