"""One record has all that is known about a state."""

from __future__ import annotations

import torch
from torch import nn

from qmaps.algebra.philox import RoundingKey
from qmaps.optim import Adagrad


def test_records_of_parameters() -> None:
    params = [("head", nn.Parameter(torch.ones(80, 80))), ("bias", nn.Parameter(torch.ones(80)))]
    spec = "B256/DE-0@8u+sr"
    optimizer = Adagrad(
        params, initial_accumulator_value=0.5, state_quantizers={"sum": spec}, seed=3
    )
    head, bias = optimizer._parameters.records()
    assert [record.label for record in (head, bias)] == ["parameter 'head'", "parameter 'bias'"]
    ((state,), (other,)) = (record.states() for record in (head, bias))
    assert (state.name, state.shape) == ("sum", (80, 80))
    assert (str(state.quantizer), state.why) == (spec, "state_quantizers")
    assert (state.initial, state.shard) == (0.5, None)
    assert state.key == RoundingKey(seed=3, purpose=0, step=0, tensor=0, state=0)
    assert (other.quantizer, other.key) == (None, None)
    assert other.why == "80 <= min_quantized_size=4096"
    added = [("tail", nn.Parameter(torch.ones(80, 80)))]
    optimizer.add_param_group({"params": added, "state_quantizers": "8bit"})
    tail = optimizer._parameters.records()[2]
    assert (tail.place, tail.key("sum").tensor) == ((1, 0), 2)
    assert tail.states()[0].key is None  # rounding to nearest takes no random numbers
