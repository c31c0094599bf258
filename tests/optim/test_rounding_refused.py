"""Who takes rounding to nearest and stochastic rounding alone refuses the others in a line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qmaps import lpmm
from qmaps.capture import Monitor
from qmaps.distributed.comm.coder import Coder
from qmaps.errors import BadValueError
from qmaps.optim import AdamW


@pytest.mark.parametrize("rounding", ["+dither", "+ef4", "+ef8"])
def test_parameters_and_messages_in_few_bits(rounding: str) -> None:
    with pytest.raises(BadValueError) as caught:
        lpmm.convert(nn.Linear(8, 8), params=f"B64/linear0@8s{rounding}")
    assert str(caught.value) == (
        f"params='B64/linear0@8s{rounding}' has {rounding}; expected rounding to nearest, or +sr"
    )
    with pytest.raises(BadValueError) as caught:
        Coder(f"B64/linear0@8s{rounding}")
    assert str(caught.value) == (
        f"quantizer=B64/linear0@8s{rounding} has {rounding}; messages are rounded to nearest, or "
        "with +sr"
    )


@pytest.mark.parametrize("spec", ["B64/linear@4s+dither", "B64/DE@4s+ef4"])
def test_a_monitor(spec: str) -> None:
    param = nn.Parameter(torch.zeros(48, 32))
    quantizers = {"exp_avg": spec, "exp_avg_sq": None}
    optimizer = AdamW([param], min_quantized_size=0, state_quantizers=quantizers)
    with pytest.raises(BadValueError) as caught:
        Monitor(optimizer)
    assert str(caught.value) == (
        f"exp_avg of group0.param0 has the quantizer {spec}; a monitor supports rounding to "
        "nearest and +sr"
    )
