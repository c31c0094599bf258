"""Codes under codebooks that belong to no map."""

import torch

from qmaps.algebra.quantizer import quantizer
from qmaps.capture.conversion.formats.coded import FLOAT8_DTYPE, from_codes, from_floats, same_codes


def test_a_codebook_may_be_unsorted_and_repeat_values() -> None:
    book = torch.tensor([0.5, -1.0, 0.0, 1.0, 0.0, 0.25])
    codes = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.uint8)
    scales = torch.tensor([2.0, 3.0])
    t = from_codes(codes, book, scales, (2, 3), bits=8, block=3, label="theirs")
    assert t.dequantize().tolist() == [[1, -2, 0], [3, 0, 0.75]]
    assert t.quantizer.spec == "B3/theirs@8s"


def test_codes_stay_where_blocks_do_not_reach_the_largest_value() -> None:
    codes = torch.tensor([3.0, -100.0, 0.5, 7.0]).to(FLOAT8_DTYPE)
    t = from_floats(codes, torch.tensor([0.25]))
    carried = same_codes(t, quantizer("B4/e4m3@8s"))
    assert carried is not None
    assert carried.packed.equal(t.packed)
    assert torch.allclose(carried.dequantize(), t.dequantize(), rtol=3e-7, atol=0)
    assert same_codes(t, quantizer("B2/e4m3@8s")) is None
    assert same_codes(t, quantizer("B4/DE@8s")) is None
