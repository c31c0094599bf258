"""The table of published formats: every spec parses, with the bytes of the table."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

import qmaps
from qmaps.algebra.pair import Pair
from qmaps.optim.presets import preset
from tests.helpers import sample

pytestmark = pytest.mark.slow

PAGE = Path(qmaps.__file__).parent.parent / "docs" / "formats.md"
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`|]+)` \| ([\d.]+) \|", PAGE.read_text(), re.M)


def test_the_table_was_read() -> None:
    lines = PAGE.read_text().split("| method |")[1].split("\n\n")[0].splitlines()
    assert len(ROWS) == len(lines) - 2 > 10


@pytest.mark.parametrize(("method", "spec", "printed"), ROWS, ids=[row[0] for row in ROWS])
def test_specs_and_bytes(method: str, spec: str, printed: str) -> None:
    quantizers = [qmaps.quantizer(part) for part in spec.split(" + ")]
    assert f"{sum(q.nbytes((1024, 1024)) for q in quantizers) / 2**20:.3f}" == printed
    assert [q.map.signed for q in quantizers[:1]] == [True]
    if len(quantizers) == 2:
        pair = Pair.parse(spec)
        assert (pair.first, pair.second) == tuple(quantizers)
        assert preset(spec).specs(["m", "v"], {"m"}) == dict(
            zip("mv", map(str, quantizers), strict=True)
        )


def test_states_of_torchao() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", minversion="0.18")
        from torchao.optim.subclass_4bit import OptimState4bit
        from torchao.optim.subclass_8bit import OptimState8bit
        from torchao.optim.subclass_fp8 import OptimStateFp8
    x = sample((256 * 64,), signed=True)
    shape = x.shape
    for theirs, spec in (
        (OptimState8bit.zeros(shape, True, 256), "B256/DE@8s"),
        (OptimState8bit.zeros(shape, False, 256), "B256/DE@8u"),
        (OptimState4bit.zeros(shape, True, 128), "B128/DE@4s"),
        (OptimState4bit.zeros(shape, False, 128), "B128/linear@4u"),
        (OptimStateFp8.zeros(shape, 256), "B256/e4m3@8s"),
    ):
        q = qmaps.quantizer(spec)
        values = x if q.map.signed else x.square()
        theirs.copy_(values)
        ours = q.quantize(values).dequantize()
        assert torch.allclose(theirs.dequantize(), ours, rtol=2e-6, atol=0.0), spec


def test_states_of_torchao_differ_at_ties_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao", minversion="0.18")
        from torchao.optim.subclass_8bit import OptimState8bit
    q, draw = qmaps.quantizer("B256/DE@8s"), torch.Generator().manual_seed(0)
    book = q.map.codebook().double()
    middles = (book[1:] + book[:-1]) / 2
    rounded = torch.randn(65536, generator=draw).bfloat16().float()
    multiples = torch.randint(-256, 257, (65536,), generator=draw) / 256
    multiples[::256] = 1
    for x, share in (
        (rounded, 0.0025),
        (multiples, 0.043),
    ):
        theirs = OptimState8bit.zeros(x.shape, True, 256)
        theirs.copy_(x)
        ours = q.quantize(x).dequantize()
        differs = (theirs.dequantize() - ours).abs() > 2e-6 * ours.abs()
        assert float(differs.double().mean()) == pytest.approx(share, abs=0.001)
        scales = x.view(-1, 256).abs().amax(1, keepdim=True).expand(-1, 256).reshape(-1)
        n = (x / scales)[differs].double()
        assert bool(((n[:, None] - middles).abs().amin(1) <= 2.0**-23 * n.abs()).all())


def test_the_momentum_of_axolotl() -> None:
    x = sample((64 * 2048,), signed=True).view(64, 2048)
    step = x.abs().amax(1, keepdim=True) / 127
    ours = qmaps.quantizer("B2048/linear0@8s").quantize(x).dequantize()
    assert torch.allclose((x / step).round() * step, ours, rtol=2e-6, atol=0.0)
