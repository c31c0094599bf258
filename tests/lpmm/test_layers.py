"""A converted model computes like the plain model with the decoded weights."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import qmaps
from qmaps import lpmm
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError

GRADS = "B64/linear0@8s"
X = torch.linspace(-1, 1, 2 * 6 * 8).view(2, 6, 8).sin()
TOKENS = torch.tensor([[1, 2, 2], [0, 5, 1]])

LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "Linear": (lambda: nn.Linear(8, 5), lambda m: m(X)),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), lambda m: m(X, X)),
    "Conv1d": (lambda: nn.Conv1d(6, 4, 3, groups=2), lambda m: m(X)),
    "Conv2d": (lambda: nn.Conv2d(1, 4, 3, padding=1), lambda m: m(X[:, None])),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), lambda m: m(X.view(2, 1, 2, 3, 8))),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2), lambda m: m(X[None])),
    "Embedding": (lambda: nn.Embedding(6, 8, padding_idx=0), lambda m: m(TOKENS)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(6, 8), lambda m: m(TOKENS)),
    "StableEmbedding": (lambda: qmaps.nn.StableEmbedding(6, 8), lambda m: m(TOKENS)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), lambda m: m(X)),
    "BatchNorm1d eval": (lambda: nn.BatchNorm1d(6).eval(), lambda m: m(X)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(6, affine=True), lambda m: m(X)),
    "LayerNorm": (lambda: nn.LayerNorm(8), lambda m: m(X)),
    "GroupNorm": (lambda: nn.GroupNorm(3, 6), lambda m: m(X)),
    "RMSNorm": (lambda: nn.RMSNorm(8), lambda m: m(X)),
    "PReLU": (lambda: nn.PReLU(6), lambda m: m(X)),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        lambda m: m(X, X, X)[0],
    ),
    "MultiheadAttention kdim": (
        lambda: nn.MultiheadAttention(8, 2, kdim=8, vdim=8, bias=False, add_bias_kv=True),
        lambda m: m(X, X, X, need_weights=False)[0],
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True),
        lambda m: m(X),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0, batch_first=True),
        lambda m: m(X, X),
    ),
    "LSTM": (lambda: nn.LSTM(8, 4, 2, bidirectional=True), lambda m: m(X)[0]),
    "GRUCell": (lambda: nn.GRUCell(8, 4), lambda m: m(X[:, 0])),
}


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    """The layer with all weights different."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for param in model.parameters():
            param.normal_()
    return model


def with_decoded_weights(model: nn.Module, spec: str) -> nn.Module:
    q = qmaps.quantizer(spec)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for param in plain.parameters():
            param.copy_(q.quantize(param).dequantize())
    return plain


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_have_the_bits_of_the_plain_layer(name: str) -> None:
    make, run = LAYERS[name]
    model = drawn(make)
    spec = "B64/linear0@12s"
    plain = with_decoded_weights(model, spec)
    assert lpmm.convert(model, spec, GRADS) is model
    expected = run(plain)
    outcome = run(model)
    assert torch.equal(outcome, expected)
    assert type(outcome) is Tensor
    weights = torch.linspace(-1, 2, outcome.numel()).view(outcome.shape)
    (expected * weights).sum().backward()
    (outcome * weights).sum().backward()
    q = qmaps.quantizer(GRADS)
    for (key, param), (_, plain_param) in zip(
        model.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert isinstance(param, lpmm.LowPrecisionParameter)
        assert isinstance(param, nn.Parameter)
        assert plain_param.grad is not None
        assert param.accumulator is not None
        if param.accumulator.count == 1:
            assert torch.equal(param.grad.decode(), q.quantize(plain_param.grad).dequantize()), key
        else:  # a layer adds for each use of a parameter
            assert name.startswith("MultiheadAttention")
            assert torch.allclose(param.grad.decode(), plain_param.grad, atol=0.05), key


@pytest.mark.parametrize("name", ["MultiheadAttention", "TransformerEncoderLayer", "LSTM"])
def test_layers_with_fast_paths_for_inference_take_ordinary_ones(name: str) -> None:
    make, run = LAYERS[name]
    model = drawn(make).eval()
    plain = with_decoded_weights(model, "B64/linear0@12s")
    lpmm.convert(model, "B64/linear0@12s", GRADS)
    with torch.no_grad():
        assert torch.allclose(run(model), run(plain), atol=1e-5)


@pytest.mark.parametrize(("bits", "nbytes"), [(16, 2000), (12, 1500), (10, 1250), (8, 1000)])
def test_codes_are_packed(bits: int, nbytes: int) -> None:
    model = lpmm.convert(nn.Linear(100, 10, bias=False), f"B2048/linear0@{bits}s")
    assert model.weight.codes.packed.nbytes == nbytes
    assert model.weight.codes.nbytes == nbytes + 4
    assert model.weight.accumulator.total.nbytes == 1000 + 4
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(RuntimeError, match="invalid"):
        model.weight.untyped_storage().data_ptr()  # there is nothing else


def test_tied_weights_stay_tied_and_add_each_use() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(6, 8)
            self.head = nn.Linear(8, 6, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.tokens(tokens))

    model = drawn(Tied)
    plain = with_decoded_weights(model, "B64/linear0@12s")
    lpmm.convert(model, "B64/linear0@12s", "B64/linear0@16s")
    assert model.head.weight is model.tokens.weight
    assert len(list(model.parameters())) == 1
    model(TOKENS).square().sum().backward()
    plain(TOKENS).square().sum().backward()
    actual, expected = model.head.weight.grad.decode(), plain.head.weight.grad
    assert model.head.weight.accumulator.count == 2
    assert torch.allclose(actual, expected, atol=float(expected.abs().max()) * 2**-15)


class Live(TorchDispatchMode):
    """Peak bytes of new float storage alive in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (list, tuple)) else [result]:
            if type(t) is Tensor and t.is_floating_point():
                storage = t.untyped_storage()
                self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._known = {key: entry for key, entry in self._known.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._known.values()))
        return result


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(12)])


def test_no_more_than_a_layer_is_ever_in_full_precision() -> None:
    layer = 128 * 128 * 4
    x = torch.ones(1, 128)
    peaks = {}
    for name, model in (("warm", lpmm.convert(deep())), ("lpmm", lpmm.convert(deep())),
                        ("plain", deep())):  # fmt: skip
        with Live() as live:
            model(x).sum().backward()
        peaks[name] = live.peak
    # In backward: the weight or the sum in the accumulator, and the new gradient.
    assert layer < peaks["lpmm"] < 4 * layer
    assert peaks["plain"] >= 12 * layer  # all gradients at once
    model = lpmm.convert(deep())
    with torch.no_grad(), Live() as forward:
        model(x)
    assert layer < forward.peak < 4 * layer
    optimizer = lpmm.LPMMSGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    with Live() as live:
        optimizer.step()
    assert live.peak < 12 * layer


def test_autograd_keeps_codes_between_forward_and_backward() -> None:
    layer = 128 * 128 * 4
    model = lpmm.convert(deep())
    with Live() as live:
        loss = model(torch.ones(1, 128)).sum()
        alive = sum(nbytes for storage, nbytes in live._known.values() if not storage.expired())
    assert alive < layer  # activations only
    loss.backward()
    assert all(param.accumulator.count == 1 for param in model.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients_and_keeps_its_savings(reentrant: bool) -> None:
    x = torch.linspace(-1, 1, 512 * 16).view(512, 16).requires_grad_()
    model = nn.Sequential(
        *[
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
            for _ in range(4)
        ]
    )
    once, again = (lpmm.convert(copy.deepcopy(model), grads=GRADS) for _ in range(2))
    alive = []
    for copied in (once, again):
        with Live() as live:
            y = x
            for part in copied:
                y = part(y) if copied is once else checkpoint(part, y, use_reentrant=reentrant)
            loss = y.square().sum()
            alive.append(sum(n for storage, n in live._known.values() if not storage.expired()))
        loss.backward()
    for expected, actual in zip(once.parameters(), again.parameters(), strict=True):
        assert expected.accumulator.count == actual.accumulator.count == 1
        assert torch.equal(expected.grad.decode(), actual.grad.decode())
    activation = x.numel() * 4
    assert alive[0] - alive[1] >= 3 * activation


def test_gradients_of_gradients_are_refused() -> None:
    model = lpmm.convert(nn.Linear(4, 4), grads=GRADS)
    x = torch.ones(1, 4, requires_grad=True)
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    first = model.weight.grad.decode()
    loss.backward()
    error = 0.02 * float(first.abs().max())
    assert torch.allclose(model.weight.grad.decode(), 2 * first, atol=error)
    with pytest.raises(BadValueError) as caught:
        torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    assert str(caught.value) == (
        "create_graph=True is not supported for low-precision parameters, which have no "
        "second derivatives"
    )


def test_a_weight_written_between_forward_and_backward_is_refused() -> None:
    model = lpmm.convert(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    loss = model(torch.ones(1, 4)).sum()
    with torch.no_grad():
        model[1].weight.mul_(2)
    with pytest.raises(BadValueError) as caught:
        loss.backward()
    assert str(caught.value) == (
        "a low-precision parameter was changed between forward and backward; the backward "
        "pass needs its old values"
    )


def test_frozen_parameters_are_codes_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    lpmm.convert(model)
    assert not model[0].weight.requires_grad
    model(torch.ones(1, 4)).sum().backward()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None


@pytest.mark.parametrize("copied", [False, True])
def test_layers_frozen_at_conversion_train_after_they_thaw(copied: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plain = with_decoded_weights(model, "B2048/linear0@12s")
    model[0].requires_grad_(False)
    lpmm.convert(model, grads=GRADS)
    twin = pickle.loads(pickle.dumps(model)) if copied else copy.deepcopy(model)
    assert twin[0].weight.accumulator is None
    twin.zero_grad()
    twin[0].requires_grad_(True)
    before = twin[0].weight.decode()
    optimizer = lpmm.LPMMSGD(twin.parameters(), lr=1.0)
    twin(torch.ones(1, 4)).sum().backward()
    plain(torch.ones(1, 4)).sum().backward()
    expected = qmaps.quantizer(GRADS).quantize(plain[0].weight.grad).dequantize()
    assert torch.equal(twin[0].weight.grad.decode(), expected)
    optimizer.step()
    assert not torch.equal(twin[0].weight.decode(), before)


# In place


@contextmanager
def weight(spec: str = "B64/linear0@16s") -> Iterator[Any]:
    with torch.no_grad():
        yield lpmm.convert(nn.Linear(8, 8), spec).weight


def test_in_place_operations_write_the_codes() -> None:
    with weight() as w:
        before = w.decode()
        for write, expected in (
            (lambda: w.mul_(0.5), before * 0.5),
            (lambda: w.copy_(before), before),
            (lambda: torch._foreach_mul_([w], 0.5), before * 0.5),
            (lambda: w.__setitem__(0, 0.0), torch.cat([torch.zeros(1, 8), before[1:] * 0.5])),
            (lambda: nn.init.ones_(w), torch.ones(8, 8)),
            (lambda: setattr(w, "data", before), before),
        ):
            write()
            assert torch.allclose(w.decode(), expected, atol=1e-4)
        w -= before
        assert not w.decode().any()


def test_gradients_can_be_clipped() -> None:
    model = lpmm.convert(nn.Linear(8, 8), grads="B64/linear0@16s")
    model(torch.ones(3, 8)).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert norm > 0.5
    clipped = torch.cat([p.grad.decode().flatten() for p in model.parameters()])
    assert float(clipped.norm()) == pytest.approx(0.5, rel=1e-3)
    model.zero_grad()
    assert all(param.grad is None for param in model.parameters())


def test_in_place_under_autograd_is_refused() -> None:
    model = lpmm.convert(nn.Linear(8, 8))
    with pytest.raises(BadValueError) as caught:
        model.weight.mul_(2)
    assert str(caught.value) == (
        "mul_ writes to a low-precision parameter that requires gradients; call it under "
        "torch.no_grad()"
    )
    with torch.no_grad(), pytest.raises(BadTypeError) as refused:
        torch.add(torch.ones(8, 8), 1, out=model.weight)
    assert str(refused.value) == ("add cannot write its result into low-precision codes; use copy_")


def test_a_converted_model_does_not_change_dtype() -> None:
    model = lpmm.convert(nn.Linear(8, 8))
    assert model.to("cpu") is model
    assert model.float().weight.codes.quantizer.spec == "B2048/linear0@12s+sr"
    with pytest.raises(BadValueError) as caught:
        model.bfloat16()
    assert str(caught.value) == (
        "a low-precision parameter of torch.float32 on cpu cannot become torch.bfloat16 on cpu; "
        "move the model first and convert it then"
    )


def test_a_bfloat16_model_decodes_to_bfloat16() -> None:
    model = lpmm.convert(nn.Linear(8, 8).bfloat16())
    y = model(torch.ones(1, 8, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert model.weight.grad.decode().dtype == torch.bfloat16


# Copies and checkpoints


def test_checkpoints_load_into_the_plain_model_and_back_exactly() -> None:
    torch.manual_seed(1)
    model = lpmm.convert(deep())
    saved = model.state_dict()
    assert all(type(value) is Tensor for value in saved.values())
    plain = deep()
    plain.load_state_dict(saved)
    for param, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(param.decode(), expected)
    torch.manual_seed(2)
    other_model = lpmm.convert(nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(12)]))
    other_model.load_state_dict(plain.state_dict())
    for param, expected in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(param.codes.packed, expected.codes.packed)
        assert torch.equal(param.codes.scales[0], expected.codes.scales[0])


@pytest.mark.parametrize("copied", [False, True])
def test_assigning_a_checkpoint_copies_it_into_the_codes(copied: bool) -> None:
    model = drawn(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    saved = copy.deepcopy(model.state_dict())
    nn.init.zeros_(model[0].weight)
    lpmm.convert(model, skip=["*.bias"])
    model = copy.deepcopy(model) if copied else model
    weight = model[0].weight
    model.load_state_dict(saved, assign=True)
    assert model[0].weight is weight
    assert torch.allclose(weight.decode(), saved["0.weight"], atol=1e-3)
    assert torch.equal(model[0].bias, saved["0.bias"])


def reloaded(model: nn.Module, spec: str, dtype: torch.dtype) -> nn.Module:
    """Another model, converted, with the state loaded."""
    twin = lpmm.convert(nn.Linear(64, 40, bias=False).to(dtype), spec, GRADS)
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    return twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "spec", ["B2048/DE@4s+sr", "B128/DE@8s+sr", "row/DE@4s", "rank1/DE@8s+sr", "B32x8/DE@4s"]
)
def test_weights_of_maps_without_minus_1_survive_any_number_of_checkpoints(
    spec: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 40, bias=False).to(dtype)
    with torch.no_grad():
        model.weight[::3] *= -model.weight[::3].sign()  # so that maxima are negative
        model.weight[5] = 0
    lpmm.convert(model, spec, GRADS)
    optimizer = lpmm.LPMMSGD(model.parameters(), lr=0.1)
    for _ in range(2):
        weights = model.weight.decode()
        for _ in range(3):
            model.load_state_dict(copy.deepcopy(model.state_dict()))
        assert torch.equal(model.weight.decode(), weights)
        if dtype == torch.float32 and not spec.startswith(("rank1", "B32x8")):
            twice = reloaded(reloaded(model, spec, dtype), spec, dtype)
            assert torch.equal(twice.weight.decode(), weights)
            plain = nn.Linear(64, 40, bias=False)
            plain.load_state_dict(twice.state_dict())
            assert torch.equal(lpmm.convert(plain, spec, GRADS).weight.decode(), weights)
        model(torch.ones(2, 64, dtype=dtype)).square().sum().backward()
        optimizer.step()
        assert not torch.equal(model.weight.decode(), weights)


def test_saved_codes_give_way_to_values_that_have_changed_and_are_checked() -> None:
    torch.manual_seed(0)
    model = lpmm.convert(nn.Linear(8, 4), "B32x8/DE@4s+sr", GRADS)
    saved = model.state_dict()
    saved["weight"].mul_(0.5)
    loaded = lpmm.convert(nn.Linear(8, 4), "B32x8/DE@4s+sr", GRADS)
    loaded.load_state_dict(saved)
    assert torch.equal(loaded.bias.codes.packed, model.bias.codes.packed)
    assert torch.allclose(loaded.weight.decode(), saved["weight"], atol=0.05)
    assert not torch.allclose(loaded.weight.decode(), model.weight.decode(), atol=0.05)
    saved["weight"].qmaps_codes["packed"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(BadValueError) as caught:
        loaded.load_state_dict(saved)
    assert str(caught.value) == (
        "qmaps_codes of 'weight' in state_dict: packed has 3 elements of torch.uint8; "
        "B32x8/DE@4s+sr of shape (4, 8) needs 16 elements of torch.uint8"
    )


def test_nothing_that_is_not_finite_is_converted() -> None:
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight[0, 1] = float("nan")
    with pytest.raises(NonFiniteError) as caught:
        lpmm.convert(model)
    assert str(caught.value) == (
        "x holds 1 NaN or infinite elements, the first at flat index 1; only finite values can be "
        "quantized"
    )


def test_copies_share_nothing() -> None:
    model = lpmm.convert(nn.Linear(8, 8), seed=3)
    model(torch.ones(1, 8)).sum().backward()
    model.weight.stepped(5)
    copied = copy.deepcopy(model)
    loaded = pickle.loads(pickle.dumps(model))
    for duplicate in (copied, loaded):
        assert torch.equal(duplicate.weight.decode(), model.weight.decode())
        assert (duplicate.weight.accumulator.seed, duplicate.weight.accumulator.step) == (3, 5)
        with torch.no_grad():
            duplicate.weight.mul_(0)
    assert torch.equal(copied.weight.grad.decode(), model.weight.grad.decode())
    assert model.weight.decode().any()


# What convert refuses


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (3, {}, "model must be a torch.nn.Module, got int"),
        (nn.Linear(2, 2), {"params": "B64/linear0@8u"},
         "params='B64/linear0@8u' is unsigned; expected a signed map"),
        (nn.Linear(2, 2), {"grads": "B64/lloyd@4s"},
         "grads='B64/lloyd@4s' is fitted to data; expected a map that is given by a formula"),
        (nn.Linear(2, 2), {"params": "lowrank4(B64/DE@8s)+B64/DE@8s"},
         "params='lowrank4(B64/DE@8s)+B64/DE@8s' has lowrank4(B64/DE@8s); expected a quantizer "
         "without a low-rank part"),
        (nn.Linear(2, 2), {"skip": ["w"]},
         "skip names 'w', which matches no parameter; the parameters are weight, bias"),
        (nn.Linear(2, 2), {"seed": -1}, "seed=-1 must be between 0 and 2**32 - 1"),
        (nn.Linear(2, 2).double(), {}, "parameter 'weight' has dtype torch.float64; float32, "
         "float16 and bfloat16 can be converted"),
        (nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)), {},
         "module '0' has max_norm=1.0, which rewrites its weights in forward; only max_norm=None "
         "can be converted"),
        (lpmm.convert(nn.Linear(2, 2)), {}, "parameter 'weight' is already converted"),
        (nn.Sequential(nn.LazyLinear(2)), {}, (
            "parameter '0.weight' has no shape yet; call the model once so that its lazy "
            "modules see their inputs"
        )),
        (nn.Linear(2, 2, device="meta"), {}, (
            "parameter 'weight' is on the device 'meta' and has no values; convert the model "
            "after they are loaded"
        )),
    ],
)  # fmt: skip
def test_bad_input_of_convert_is_refused(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((BadValueError, BadTypeError)) as caught:
        lpmm.convert(model, **options)
    assert str(caught.value) == message


def converted(model: nn.Module) -> list[str]:
    named = model.named_parameters()
    return [name for name, param in named if isinstance(param, lpmm.LowPrecisionParameter)]


def test_tied_parameters_are_skipped_by_each_of_their_names() -> None:
    for skip in ("0.weight", "2.*"):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
        model[2].weight = model[0].weight
        model.append(nn.Linear(4, 4))
        lpmm.convert(model, skip=[skip])
        assert converted(model) == ["3.weight", "3.bias"]
        assert type(model[0].weight) is nn.Parameter
        assert model[3].weight.accumulator.number == 1


def test_skipped_parameters_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    lpmm.convert(model, skip=["1.*", "*.bias"])
    assert converted(model) == ["0.weight"]
    model(torch.ones(1, 4)).sum().backward()
    assert type(model[1].weight.grad) is Tensor


def test_a_pickled_model_keeps_a_codebook_of_ones_own() -> None:
    quantizer = qmaps.normalize.BlockWise(64) / qmaps.Codebook([-1, -0.25, 0, 0.25, 1])
    model = lpmm.convert(nn.Linear(8, 8), grads=quantizer)
    again = pickle.loads(pickle.dumps(model))
    for net in (model, again):
        net(X).sum().backward()
    assert again.weight.thawed[0] == quantizer
    assert torch.equal(again.weight.grad.decode(), model.weight.grad.decode())


def test_gradients_can_be_set() -> None:
    """A tensor in place of the accumulated gradient, by name or at conversion."""
    plain = nn.Linear(8, 5, bias=False)
    plain.weight.grad = torch.linspace(-1, 1, 40).view(5, 8)
    model = lpmm.convert(plain, params="B64/linear0@16s", grads="B64/linear0@16s")
    weight: Any = model.weight
    expected = torch.linspace(-1, 1, 40).view(5, 8)
    assert torch.allclose(weight.grad.dequantize(), expected, atol=1e-4)
    for _ in range(2):  # the second takes the place of the first
        weight.grad = 0.5 * expected
        assert torch.allclose(weight.grad.dequantize(), 0.5 * expected, atol=1e-4)
    weight.grad = weight.grad  # its own codes
    assert torch.allclose(weight.grad.dequantize(), 0.5 * expected, atol=1e-4)
    with pytest.raises(BadTypeError, match=r"a gradient must be a floating-point tensor, got"):
        weight.grad = torch.ones(5, 8, dtype=torch.int64)
    weight.grad = None
    assert weight.grad is None
