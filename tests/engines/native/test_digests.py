"""Every instruction set writes the bits of digests.json, on any machine.

``python tests/engines/native/test_digests.py`` writes the file with the reference.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps import optim
from qmaps.ops.backends import use_backend

FILE = Path(__file__).with_name("digests.json")
SIZES = (1, 37, 1000, 4133)
SPECS = (
    "B256/DE-sym@8s", "B256/DE@8s", "B256/DE-0@8u", "B256/linear@8s", "B64/geometric@8u",
    "B64/quantile@8s", "B128/DE@4s", "B100/DE@5s", "B64xbf16/mu-law10:linear0@4s",
    "B64xbf16/geometric@4u", "B32/linear@3u", "B48/DE@7s", "tensor/DE@8s", "tensor/geometric@8u",
    "rank1/linear@4u", "row/DE@6s", "logB64/log2@4u", "B256x8/DE@4s", "B64/linear0@10s",
)  # fmt: skip
RULES = (
    "AdamW8bit", "AdamW4bit", "AdamW4bitFactor", "AdEMAMix8bit", "Adan8bit", "LAMB8bit",
    "LARS8bit", "Adafactor8bit", "SGD8bit", "RMSprop8bit", "Adagrad8bit", "Lion8bit",
)  # fmt: skip
OPTIONS = {"LARS8bit": {"momentum": 0.9}, "SGD8bit": {"momentum": 0.9}}


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    """Numbers of both signs from integers alone, so versions of torch do not change them."""
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.int64) + 7919 * seed
    mixed = (i * 2654435761 + (i * 40503 >> 3)) % 2**32
    return (((mixed >> 8) - 2**23) / 2**23 * 0.5 ** (mixed % 13)).float().reshape(shape)


def digest(*tensors: Tensor) -> str:
    """Digest of the tensors' bytes."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()[:16]


def of_spec(spec: str) -> str:
    """Digest of codes and values of all sizes."""
    q = qmaps.quantizer(spec)
    tensors = []
    for size in SIZES:
        x = numbers((1, size), size)
        x[0, ::11] = 0.0
        x[0, 5::11] = -0.0
        if size > 100:
            x[0, 40:90] *= 1e-30
        quantized = q.quantize(
            x if q.map.signed else x.abs(), key=qmaps.RoundingKey(seed=3, step=5)
        )
        tensors += [quantized.packed, quantized.dequantize()]
        x[0, size // 2] = float("nan")  # takes the last code
        tensors.append(q.quantize_unchecked(x, key=qmaps.RoundingKey(seed=3)).packed)
    return digest(*tensors)


def of_rule(name: str) -> str:
    """Digest of parameters and states after three steps."""
    params = [torch.nn.Parameter(numbers(shape, 1)) for shape in ((37, 131), (64, 256), (513,))]
    optimizer = getattr(optim, name)(params, lr=2**-10, **OPTIONS.get(name, {}))
    for step in range(3):
        for p in params:
            p.grad = numbers(tuple(p.shape), 2 + step) / 2**6
        optimizer.step()
    return digest(*params)


CASES = {
    **{spec + way: of_spec for spec in SPECS for way in ("", "+sr", "+qsr")},
    **dict.fromkeys(RULES, of_rule),
}


@pytest.mark.parametrize("case", CASES)
def test_bits_are_the_ones_of_the_file(case: str, isa: str) -> None:
    assert CASES[case](case) == json.loads(FILE.read_text())[case]


if __name__ == "__main__":
    with use_backend("reference"):
        digests = {case: make(case) for case, make in CASES.items()}
    FILE.write_text(json.dumps(digests, indent=1) + "\n")
