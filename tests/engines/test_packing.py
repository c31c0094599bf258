from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qmaps.algebra.packing import fill, pack, packed_bytes, unpack


@pytest.mark.parametrize("bits", range(1, 17))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_codes_lie_in_the_bit_stream_without_gaps(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=70))
    tensor = torch.tensor(codes, dtype=torch.int32)
    packed = pack(tensor, bits)
    stream = sum(code << (i * bits) for i, code in enumerate(codes))
    assert packed.dtype == torch.uint8
    assert bytes(packed.tolist()) == stream.to_bytes(packed_bytes(len(codes), bits), "little")
    for count in {len(codes), len(codes) // 2}:
        assert unpack(packed, bits, count).tolist() == codes[:count]


def test_sizes_of_the_widths_that_users_have() -> None:
    sizes = [packed_bytes(1000, bits) for bits in (2, 3, 4, 5, 6, 8, 10, 12)]
    assert sizes == [250, 375, 500, 625, 750, 1000, 1250, 1500]
    assert packed_bytes(3, 3) == 2
    assert packed_bytes(0, 5) == 0


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 31, 1000])
def test_equal_codes_are_written_as_packed(count: int, bits: int) -> None:
    for code in (0, 1, 2**bits - 1):
        packed = torch.empty(packed_bytes(count, bits), dtype=torch.uint8)
        fill(packed, bits, code, count)
        assert torch.equal(packed, pack(torch.full((count,), code), bits))
