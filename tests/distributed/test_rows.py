"""Quantized tensors by rows: cut anywhere, put together again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qmaps
from qmaps.distributed.rows import Rows, read, write
from qmaps.engines.sharding.shards import Shard
from qmaps.errors import BadValueError
from tests.helpers import sample

pytestmark = pytest.mark.slow

SPECS = (
    "B64/DE@4s", "B64x8/DE@3s", "logB16/log2@8u", "rank1/linear@4u", "row/DE@8s", "col/DE@8s",
    "tensor/linear@5u", "B16&col/DE@6s", "rank1x8/DE@4s", "B7/linear@12s",
    "rms4B16/DE@8s", "rms2B24xf16/linear@4s", "powB16r1000/e4m3@8s", "logB16q0.25/log2-0@4u",
    "B32xf16/DE@8s", "B32xe8m0/e2m1@4s", "B16xe4m3/e2m1@4s", "rowxbf16/DE@4s",
    "B64/linear@4s+qsr", "B7x8/linear0@3s+sr",
)  # fmt: skip


def piece(shape: tuple[int, ...], first: int, count: int) -> Shard:
    return Shard(shape, (count, *shape[1:]), (first,) + (0,) * (len(shape) - 1), (0,), None)


@pytest.mark.parametrize("shape", [(12, 32), (10, 33), (40,), (6, 5, 7), (3, 1), (0, 4), (5, 0)])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_cut_and_joined(spec: str, shape: tuple[int, ...]) -> None:
    q = qmaps.quantizer(spec)
    t = q.quantize(sample(shape, q.map.signed), key=qmaps.RoundingKey(seed=2, step=3, offset=40))
    rows = read(write(t, None), None)
    assert rows.aligned
    joined = rows.joined()
    assert joined.quantizer == q
    assert torch.equal(joined.packed, t.packed)
    assert all(map(torch.equal, joined.scales, t.scales))
    values = t.dequantize()
    assert torch.equal(rows.decoded(), values)
    for first, count in ((0, shape[0] // 2), (shape[0] // 3, shape[0] - shape[0] // 3)):
        part = rows.cut(piece(shape, first, count))
        expected = values[first : first + count]
        assert torch.equal(part.decoded(), expected)
        if part.aligned:
            assert torch.equal(part.joined().dequantize(), expected)
        # Blocks of full rows, and rows of full blocks, stay.
        width = expected[:1].numel()
        blocks = [e.block for e in q.normalizer.extents(len(shape)) if e.block]
        if count:
            assert part.aligned == all(first * width % block == 0 for block in blocks)


def test_tiles_belong_to_no_row() -> None:
    t = qmaps.quantizer("rank1B8x8/DE@4s").quantize(sample((12, 32), True))
    with pytest.raises(BadValueError) as caught:
        write(t, None)
    assert str(caught.value) == (
        "rank1B8x8 does not tell which elements share a scale (Normalizer.extents)"
    )


def test_a_users_codebook_is_brought_along() -> None:
    codebook = qmaps.Codebook([-1, -0.25, 0, 0.25, 1], label="mine")
    t = qmaps.quantizer("B64/mine@3s", codebooks=[codebook]).quantize(sample((12, 32), True))
    plain = write(t, None)
    assert torch.equal(read(plain, None).joined().dequantize(), t.dequantize())
    plain["codes"][0, 0] = 255
    with pytest.raises(BadValueError) as caught:
        read(plain, None)
    assert str(caught.value) == (
        "codes of the rows of a quantized tensor hold the code 7; B64/mine@3s has 5 codes"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2},
         "format=2 of the rows of a quantized tensor is not supported; supported are 1, and 2 in a "
         "state_dict"),
        ({"codes": torch.zeros(12, 15, dtype=torch.uint8)},
         "codes of the rows of a quantized tensor has shape (12, 15) and dtype torch.uint8; "
         "B24/DE@4s of shape (12, 32) needs shape (12, 16) and dtype torch.uint8"),
        ({"scale0": torch.zeros(12, 3, dtype=torch.float64)},
         "scale0 of the rows of a quantized tensor has shape (12, 3) and dtype "
         "torch.float64; B24/DE@4s of shape (12, 32) needs shape (12, 3) and dtype "
         "torch.float32"),
        ({"phase0": torch.full((12,), 24, dtype=torch.int32)},
         "phase0 of the rows of a quantized tensor must be between 0 and 23"),
        ({"phase0": torch.full((12,), -1, dtype=torch.int32)},
         "phase0 of the rows of a quantized tensor must be between 0 and 23"),
        ({"spec": 3}, "the rows of a quantized tensor are damaged (AttributeError: 'int' object "
         "has no attribute 'strip')"),
        ({"spec": "B24/linear@4s+dither"}, "spec='B24/linear@4s+dither': the rounding +dither was "
         "removed in version 0.4; use +qsr"),
        ({"codes": None}, "the rows of a quantized tensor are damaged (AttributeError: 'NoneType' "
         "object has no attribute 'layout')"),
    ],
)  # fmt: skip
def test_damaged_rows_are_refused(change: dict[str, Any], message: str) -> None:
    t = qmaps.quantizer("B24/DE@4s").quantize(sample((12, 32), True))
    with pytest.raises(BadValueError) as caught:
        read({**write(t, None), **change}, None)
    assert str(caught.value) == message


def test_phases_that_reach_beyond_a_rows_scales_decode_to_nothing_else() -> None:
    t = qmaps.quantizer("B24/DE@4s").quantize(sample((12, 32), True))
    rows = Rows.of(t)
    assert rows.scales[0].shape == (12, 3)
    worst = read({**write(t, None), "phase0": torch.full((12,), 23, dtype=torch.int32)}, None)
    assert worst.decoded().shape == (12, 32)
