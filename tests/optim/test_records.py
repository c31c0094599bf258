"""One record has all properties of a state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadValueError
from qmaps.ops.backends import backend, use_backend
from qmaps.optim import Adagrad, AdamW

ENGINES = sorted({"reference", backend()})


def test_records_of_parameters() -> None:
    params = [("head", nn.Parameter(torch.ones(80, 80))), ("bias", nn.Parameter(torch.ones(80)))]
    spec = "B256/DE-0@8u+sr"
    optimizer = Adagrad(
        params, initial_accumulator_value=0.5, state_quantizers={"sum": spec}, seed=3
    )
    head, bias = optimizer._parameters.records()
    assert [record.label for record in (head, bias)] == ["parameter 'head'", "parameter 'bias'"]
    ((state,), (bias_state,)) = (record.states() for record in (head, bias))
    assert (state.name, state.shape) == ("sum", (80, 80))
    assert (str(state.quantizer), state.why) == (spec, "state_quantizers")
    assert (state.initial, state.shard) == (0.5, None)
    assert state.key == RoundingKey(seed=3, purpose=0, step=0, tensor=0, state=0)
    assert (bias_state.quantizer, bias_state.key) == (None, None)
    assert bias_state.why == "80 <= min_quantized_size=4096"
    added = [("tail", nn.Parameter(torch.ones(80, 80)))]
    optimizer.add_param_group({"params": added, "state_quantizers": "8bit-0.3"})
    tail = optimizer._parameters.records()[2]
    assert (tail.place, tail.key("sum").tensor) == ((1, 0), 2)
    assert tail.states()[0].key is None  # rounding to nearest takes no random numbers


@pytest.mark.parametrize("before", ["B256/DE@8s+sr", "B256/linear@8s+qsr"])
def test_a_stored_quantizer_keeps_its_random_numbers_until_the_next_fit(before: str) -> None:
    params = []
    for engine in ENGINES:
        param = nn.Parameter(torch.linspace(-1, 1, 6400).reshape(80, 80))
        optimizer = AdamW([param], state_quantizers={"exp_avg": before}, refit_every=9, seed=3)
        with use_backend(engine):
            for step in range(3):
                param.grad = param.detach().cos() * (step + 1)
                optimizer.step()
                optimizer.param_groups[0]["state_quantizers"] = {"exp_avg": "B256/lloyd@4s"}
        stored = optimizer.state[param]["exp_avg"]
        assert stored.quantizer.spec == before
        params.append(param)
    assert all(torch.equal(param, params[0]) for param in params)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_random_rounding_needs_shards_with_known_positions(engine: str) -> None:
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not dist.is_available():
        pytest.skip("this torch is built without torch.distributed")
    from torch.distributed.tensor import DTensor, Shard

    def stepped(quantizers: dict[str, str]) -> AdamW:
        local, gradient = (
            DTensor.from_local(torch.ones(8, 8, 8), mesh, [Shard(1), Shard(2)], run_check=False)
            for _ in range(2)
        )
        param = nn.Parameter(local)
        param.grad = gradient
        optimizer = AdamW([param], state_quantizers=quantizers, min_quantized_size=0)
        optimizer.step()
        return optimizer

    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    try:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        with use_backend(engine):
            optimizer = stepped({"exp_avg": "row/DE@8s"})
            assert optimizer.memory().nbytes
            floats = stepped({}).state_dict()
            floats["param_groups"] = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict(floats)
            (state,) = optimizer.state.values()
            assert isinstance(state["exp_avg"], QuantizedTensor)
            with pytest.raises(BadValueError, match="stochastic rounding supports a split"):
                stepped({"exp_avg": "row/DE@8s+sr"})
    finally:
        dist.destroy_process_group()
