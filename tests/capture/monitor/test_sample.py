"""Samples of quantized tensors decode to the same bits as the full tensor."""

from __future__ import annotations

import pytest
import torch

import qmaps
from qmaps.capture.monitor import sample

SPECS = ["B128/DE@4s", "B2048/DE-0@8u", "B100/DE@8s", "rank1/linear@4u", "row/DE@5s", "col/DE-0@3u",
         "tensor/DE@8s", "B32x8/DE@4s", "rank1x8/linear@6u", "B64x8&row/DE@8s", "logB64/log2@4u",
         "B128/linear0@12s", "B128/quantile@8s", "rms4B128/DE@4s", "rms2B64xf16/DE@8s",
         "powB100r1000/e4m3@8s", "rank1B16x32/DE@4s", "logB64q0.2/log2-0@4u",
         "B64/sqrt:DE@4s"]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_values_codes_and_no_shared_memory(spec: str) -> None:
    q = qmaps.quantizer(spec)
    x = torch.randn(131, 97, generator=torch.Generator().manual_seed(0)) ** 3
    t = q.quantize(x if q.map.signed else x.abs())
    values, codes = t.dequantize().reshape(-1), t.codes().reshape(-1)
    for size in (10**6, 6000, 60):
        at, sixteen = sample.Places(x.numel(), size), sample.Places(x.numel(), 16)
        pair = sample.joined([(t, at), (t, sixteen)])
        index = torch.cat([at.index, sixteen.index])
        assert torch.equal(pair.dequantize(), values[index])
        assert torch.equal(pair.codes(), codes[index])
    copied = sample.joined([(t, sample.Places(x.numel(), 10**6))])
    before = copied.dequantize()
    t.packed.zero_()
    for part in t.scales:
        part.zero_()
    assert torch.equal(copied.dequantize(), before)


def test_runs_are_spread_over_the_tensor() -> None:
    assert sample.Places(5003, 6000).index.tolist() == list(range(5000))
    index = sample.Places(50_000, 3 * 256 + 100).index
    assert index.numel() == 3 * 256
    starts = index[::256]
    assert (starts % 256 == 0).all()
    assert (index.view(3, -1) - starts[:, None] == torch.arange(256)).all()
    assert starts[0] < 50_000 / 3 < starts[1] < 2 * 50_000 / 3 < starts[2]
    assert len(sample.Places(1000, 20)) == 16
