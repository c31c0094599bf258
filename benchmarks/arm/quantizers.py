"""Codebooks of quantizers as a file that steps.cpp reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import qmaps
from qmaps.algebra.quantizer import Quantizer
from qmaps.maps.base import limits, table
from qmaps.normalize.base import geometry_of

ROUNDINGS = {"": 0, "sr": 1, "qsr": 2}


def _bits(values: Tensor) -> list[int]:
    return [int(bits) for bits in values.float().numpy().view(np.uint32)]


def _line(q: Quantizer) -> str:
    values = table(q.map)
    below = torch.nextafter(values[1:], values.new_tensor(-torch.inf))
    scales = geometry_of(q.normalizer, (1 << 20,))
    assert scales is not None
    rounding = str(q).partition("+")[2]
    return " ".join(
        map(
            str,
            [
                q,
                q.map.bits,
                scales.parts[0].divisor,
                int(scales.parts[0].stored),
                ROUNDINGS[rounding],
                *_bits(torch.tensor([q.map.bend])),
                values.numel(),
                *_bits(values),
                *_bits(limits(q.map)),
                *_bits(below),
            ],
        )
    )


def write(path: Path, specs: tuple[str, ...]) -> None:
    """Write the codebooks of quantizers with one scale for each block."""
    path.write_text("".join(_line(qmaps.quantizer(spec)) + "\n" for spec in specs), "utf-8")
