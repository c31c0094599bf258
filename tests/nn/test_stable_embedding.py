from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qmaps.errors import BadTypeError, BadValueError
from qmaps.nn import StableEmbedding
from qmaps.optim import AdamW, AdamW4bit, AdamW8bit
from qmaps.optim.choice import MARK
from tests.optim.families import FAMILIES, Family, label

WHY = "module StableEmbedding"
TOKENS = torch.tensor([[3, 0, 3], [7, 199, 1]])


def test_the_signature_is_that_of_torch() -> None:
    ours, theirs = (inspect.signature(cls).parameters for cls in (StableEmbedding, nn.Embedding))
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
    assert [p.kind for p in ours.values()] == [p.kind for p in theirs.values()]


def test_the_weight_is_xavier_uniform_and_the_norm_starts_as_none() -> None:
    layer = StableEmbedding(1000, 200)
    bound = math.sqrt(6 / (1000 + 200))
    assert float(layer.weight.detach().abs().max()) == pytest.approx(bound, rel=1e-3)
    assert float(layer.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=1e-2)
    assert torch.equal(layer.norm.weight, torch.ones(200))
    assert torch.equal(layer.norm.bias, torch.zeros(200))
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert not torch.equal(layer.weight, before)
    assert float(layer.weight.detach().abs().max()) == pytest.approx(bound, rel=1e-3)


def test_rows_are_normalized_and_have_a_variance_of_one() -> None:
    layer = StableEmbedding(200, 64)
    nn.init.normal_(layer.norm.weight)
    nn.init.normal_(layer.norm.bias)
    rows = layer.weight[TOKENS]
    centred = rows - rows.mean(-1, keepdim=True)
    wanted = centred / (rows.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer(TOKENS), wanted * layer.norm.weight + layer.norm.bias)
    fresh = StableEmbedding(200, 64)(torch.arange(200))
    assert float(fresh.detach().var()) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_out_comes_the_dtype_of_the_weight(dtype: torch.dtype) -> None:
    layer = StableEmbedding(200, 64, dtype=dtype)
    assert {p.dtype for p in layer.parameters()} == {dtype}
    out = layer(TOKENS)
    assert out.dtype == nn.Embedding(200, 64, dtype=dtype)(TOKENS).dtype == dtype
    # Computed in float32 at least, and rounded once.
    work = torch.promote_types(dtype, torch.float32)
    exact = F.layer_norm(layer.weight.to(work)[TOKENS], (64,))
    assert torch.equal(out, exact.to(dtype))
    out.float().square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == dtype


def test_autocast_does_not_change_the_dtype() -> None:
    layer = StableEmbedding(200, 64, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(TOKENS).dtype == torch.bfloat16


def test_padding_is_zero_before_the_norm_and_never_trained() -> None:
    layer = StableEmbedding(200, 64, padding_idx=-197)
    assert layer.padding_idx == 3
    assert not layer.weight[3].any()
    assert layer.weight[4].any()
    optimizer = AdamW8bit(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(TOKENS) - 1).square().sum().backward()
        optimizer.step()
    assert not layer.weight[3].any()
    torch.testing.assert_close(layer(TOKENS)[0, 0], layer.norm.bias)


def test_max_norm_scales_looked_up_rows_down() -> None:
    layer = StableEmbedding(200, 64, max_norm=0.25, norm_type=1.0)
    before = layer.weight.detach().clone()
    layer(TOKENS)
    norms = layer.weight.detach().abs().sum(-1)
    assert bool((norms[TOKENS] <= 0.25 + 1e-5).all())
    assert torch.equal(layer.weight[10], before[10])


def test_gradients_are_divided_by_frequencies_if_asked() -> None:
    grads = []
    for by_frequency in (False, True):
        torch.manual_seed(0)
        layer = StableEmbedding(200, 64, scale_grad_by_freq=by_frequency)
        layer(TOKENS).pow(3).sum().backward()
        grads.append(layer.weight.grad)
    torch.testing.assert_close(grads[0][3], 2 * grads[1][3])
    torch.testing.assert_close(grads[0][7], grads[1][7])


def test_given_weights_are_taken_as_they_are() -> None:
    weight = torch.randn(5, 8, dtype=torch.bfloat16)
    layer = StableEmbedding(5, 8, _weight=weight, padding_idx=0)
    assert torch.equal(layer.weight, weight)
    assert layer.norm.weight.dtype == torch.bfloat16
    frozen = StableEmbedding.from_pretrained(weight)
    assert isinstance(frozen, StableEmbedding)
    assert not frozen.weight.requires_grad


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sparse": True}, BadValueError,
         "sparse=True must be False; the optimizers of qmaps accept dense gradients only"),
        ({"padding_idx": 10}, BadValueError, "padding_idx=10 must be between -10 and 9"),
        ({"padding_idx": -11}, BadValueError, "padding_idx=-11 must be between -10 and 9"),
        ({"dtype": torch.int64}, BadTypeError,
         "dtype=torch.int64 must be a floating-point dtype"),
    ],
)  # fmt: skip
def test_bad_options(options, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        StableEmbedding(10, 4, **options)
    assert str(caught.value) == message


def stays_in_32_bits(layer: nn.Module, make=AdamW4bit, **options) -> bool:
    """True if all states of all parameters are in 32 bits, predicted and after a step."""
    optimizer = make(layer.parameters(), min_quantized_size=0, **options)
    predicted = {(row.quantizer, row.why) for row in optimizer.memory()}
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    results = {(row.quantizer, row.why) for row in optimizer.memory()}
    values = [v for state in optimizer.state.values() for v in state.values()]
    return predicted == results == {(None, WHY)} and all(
        isinstance(v, torch.Tensor) for v in values
    )


@pytest.mark.parametrize("width", ["eight", "four"])
@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_states_stay_in_32_bits_in_every_optimizer(family: Family, width: str) -> None:
    assert stays_in_32_bits(StableEmbedding(100, 60), getattr(family, width), **family.options[-1])
    assert not stays_in_32_bits(nn.Embedding(100, 60), getattr(family, width), **family.options[-1])


def test_states_stay_in_32_bits_under_any_override() -> None:
    net = nn.Sequential(StableEmbedding(100, 60), nn.Linear(60, 100))
    optimizer = AdamW(net.named_parameters(), overrides={"*": "4bit"})
    why = {row.parameter: row.why for row in optimizer.memory()}
    assert why == {
        "0.weight": WHY, "0.norm.weight": WHY, "0.norm.bias": WHY,
        "1.weight": "override '*'", "1.bias": "100 <= min_quantized_size=4096",
    }  # fmt: skip


def pickled(layer: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(layer))


def saved(layer: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def loaded(layer: nn.Module, assign: bool = False) -> nn.Module:
    again = StableEmbedding(100, 60)
    again.load_state_dict(layer.state_dict(), assign=assign)
    return again


def from_meta(layer: nn.Module) -> nn.Module:
    again = StableEmbedding(100, 60, device="meta").to_empty(device="cpu")
    again.load_state_dict(layer.state_dict())
    return again


def overwritten(layer: nn.Module) -> nn.Module:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        weight = layer.weight
        assert layer.to(torch.float64).weight is not weight
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    return layer.float()


def swapped(change) -> Any:
    """`change`, run so that it swaps the contents of parameters and leaves the objects in place."""

    def with_swaps(layer: nn.Module) -> nn.Module:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return change(layer)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return with_swaps


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        pickled,
        saved,
        lambda layer: layer.to(torch.bfloat16),
        lambda layer: layer.double().float(),
        overwritten,
        loaded,
        lambda layer: loaded(layer, assign=True),
        from_meta,
        lambda layer: copy.deepcopy(nn.Sequential(layer))[0],
        swapped(lambda layer: layer.double().float()),
        swapped(loaded),
        swapped(lambda layer: loaded(layer, assign=True)),
        swapped(from_meta),
    ],
    ids=["deepcopy", "pickle", "save", "to", "double", "overwrite", "load", "assign", "meta",
         "inside", "swap", "swap and load", "swap and assign", "swap and meta"],
)  # fmt: skip
def test_the_mark_survives(copied) -> None:
    assert stays_in_32_bits(copied(StableEmbedding(100, 60)))


def test_tied_weights_share_the_mark_in_either_direction() -> None:
    layer, head = StableEmbedding(100, 60), nn.Linear(60, 100, bias=False)
    head.weight = layer.weight
    assert stays_in_32_bits(head)
    layer, head = StableEmbedding(100, 60), nn.Linear(60, 100, bias=False)
    layer.weight = head.weight
    assert stays_in_32_bits(head)
    assert getattr(copy.deepcopy(nn.ModuleList([head, layer]))[0].weight, MARK) == WHY


def test_sharded_embeddings_are_marked_and_counted_whole() -> None:
    dist = pytest.importorskip("torch.distributed")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not (dist.is_available() and hasattr(fsdp, "fully_shard")):
        pytest.skip("this torch has no torch.distributed.fsdp.fully_shard")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        net = nn.Sequential(StableEmbedding(100, 60), nn.Linear(60, 100))
        fsdp.fully_shard(net, mesh=mesh)
        assert type(net[0].weight).__name__ == "DTensor"
        why = {row.parameter: row.why for row in AdamW8bit(net.named_parameters()).memory()}
    finally:
        dist.destroy_process_group()
    assert why == {
        "0.weight": WHY, "0.norm.weight": WHY, "0.norm.bias": WHY,
        "1.weight": "state_quantizers", "1.bias": "100 <= min_quantized_size=4096",
    }  # fmt: skip
