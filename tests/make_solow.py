"""Make tests/solow.py: codes of a second moment by the package solow 0.2.0.

Unpack the wheel (``pip download --no-deps solow==0.2.0``), then ``python tests/make_solow.py
FOLDER/solo/quantizer/utils.py > tests/solow.py``. Only this module of the package runs; it needs
torch alone. 1/2 replaces its random numbers, so logarithms round to the nearest code; other cases
use `draws`.
"""

from __future__ import annotations

import runpy
import sys
import textwrap
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

BLOCK = 32
CASES = ((2, 0.1), (4, 0.05))
"""Widths in bits and quantiles."""


def moment() -> Tensor:
    """A second moment of 96 elements, none of them 0."""
    x = [((i * 7919 % 2003 - 1001) / 1001 * 2.0 ** (i * 31 % 9 - 6)) ** 2 for i in range(96)]
    return torch.tensor(x)


def draws() -> Tensor:
    """A random number for each element."""
    return torch.tensor([(i * 577 % 1009) / 1009 for i in range(96)])


def _made(package: dict[str, Any], bits: int, quantile: float) -> dict[str, list[float]]:
    def codes(of: str, noise: Callable[..., Tensor]) -> Tensor:
        with mock.patch("torch.rand", noise):
            actual = package[of](scaled, alpha, bits)
        return 2**bits - 1 - actual.view(-1).int()  # their code 0 is the largest value

    x = moment()
    package["quantize_with_alpha"].__globals__["adaq_generator"] = None
    scaled, scale, low = package["scale_tensor"](x, BLOCK, quantile)
    alpha = low ** (1 / (2**bits - 1))
    levels = torch.arange(2**bits).flip(0).repeat(len(scale), 1)
    return {
        "nearest": codes("quantize_with_alpha", lambda size, **_: torch.full(size, 0.5)).tolist(),
        "in_log": codes("quantize_with_alpha", lambda size, **_: draws().view(size)).tolist(),
        "in_value": codes(
            "unbiased_quantize_with_alpha", lambda size, **_: draws().view(size)
        ).tolist(),
        "levels": package["dequant_with_alpha"](levels, alpha, scale).view(-1).tolist(),
    }


def main() -> None:
    """Write the module."""
    package = runpy.run_path(sys.argv[1])
    print('"""Codes of a second moment by the package solow 0.2.0; see make_solow.py."""\n')
    print("SOLOW = {")
    for case in CASES:
        print(f"    {case}: {{")
        for name, values in _made(package, *case).items():
            numbers = ", ".join(f"{value:.9g}" for value in values)
            print(f'        "{name}": [')
            print(textwrap.fill(numbers, 96, initial_indent=12 * " ", subsequent_indent=12 * " "))
            print("        ],")
        print("    },")
    print("}  # fmt: skip")


if __name__ == "__main__":
    main()
