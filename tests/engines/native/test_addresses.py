"""The gate to the engines: tensors pass, or are copied or refused before."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps import quantiles, quantizer
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines import addresses
from qmaps.engines.addresses import WatchedTensors, address, in_memory, plain, tensor_info
from qmaps.errors import BadValueError
from qmaps.ops.backends import use_backend
from qmaps.optim import AdamW8bit
from tests.optim.changes import freed, negative, strided

Q = quantizer("B64/DE@8s")
BACKENDS = pytest.mark.parametrize("backend", ["native", "reference"])


def zero(x: Tensor) -> Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


def freed_copy(x: Tensor) -> Tensor:
    copy = x.clone()
    freed(copy)
    return copy


def test_every_address_passes_the_gate() -> None:
    folder = Path(qmaps.__file__).parent
    for file in folder.rglob("*.py"):
        # A storage's address may serve as its name.
        matches = re.findall(r"(?<!untyped_storage\(\))\.data_ptr\(", file.read_text())
        assert not matches or file.name == "addresses.py", file


@BACKENDS
@pytest.mark.parametrize("make", [negative, strided, zero], ids=lambda make: make.__name__)
def test_quantizing(make: Callable[[Tensor], Tensor], backend: str) -> None:
    x = make(torch.randn(40, 70, generator=torch.Generator().manual_seed(0)))
    values = torch.zeros(40, 70).add(x)
    with use_backend("reference"):
        expected = Q.quantize(values)
    with use_backend(backend):
        t = Q.quantize(x)
        assert torch.equal(t.packed, expected.packed)
        assert torch.equal(t.scales[0], expected.scales[0])
        out = make(torch.ones(40, 70)) if make is not zero else torch.ones(40, 70)
        assert Q.dequantize(t, out=out) is out
        assert torch.equal(out, expected.dequantize())
        assert Q.error(x) == Q.error(values)
        assert torch.equal(quantiles.exact(x, 9), quantiles.exact(values, 9))
        assert torch.equal(quantizer("B64/lloyd@3s").fit(x).map.codebook(), _fitted(values))


def _fitted(x: Tensor) -> Tensor:
    return quantizer("B64/lloyd@3s").fit(x).map.codebook()


@BACKENDS
def test_negative_parts(backend: str) -> None:
    """Scales with torch's negative bit are read with their true sign."""
    t = Q.quantize(torch.linspace(-1, 1, 100))
    turned = QuantizedTensor(Q, t.shape, t.packed, (negative(t.scales[0]),))
    with use_backend(backend):
        assert torch.equal(turned.dequantize(), t.dequantize())
        Q.quantize(torch.linspace(-2, 2, 100), out=turned)
    assert torch.equal(turned.dequantize(), Q.quantize(torch.linspace(-2, 2, 100)).dequantize())


@BACKENDS
def test_without_memory(backend: str) -> None:
    t = Q.quantize(torch.ones(100))
    lost = freed_copy(torch.ones(100))
    said = (
        " has shape (100,), but its storage is 400 bytes too small; it may have been freed or "
        "resized"
    )
    with use_backend(backend):
        for work in (Q.quantize, Q.error, Q.fit, quantizer("B64/lloyd@3s").fit):
            with pytest.raises(BadValueError) as caught:
                work(lost)
            assert str(caught.value) == "x" + said
        with pytest.raises(BadValueError) as caught:
            t.dequantize(out=lost)
        assert str(caught.value) == "out" + said
        with pytest.raises(BadValueError) as caught:
            quantiles.exact(lost)
        assert str(caught.value) == "x" + said


@BACKENDS
def test_quantized_tensors_of_other_sizes(backend: str) -> None:
    t = Q.quantize(torch.ones(100))
    message = (
        "packed has 10 elements of torch.uint8; B64/DE@8s of shape (100,) needs 100 "
        "elements of torch.uint8"
    )
    with pytest.raises(BadValueError) as caught:
        QuantizedTensor(Q, (100,), t.packed[:10].clone(), t.scales)
    assert str(caught.value) == message
    with pytest.raises(BadValueError) as caught:
        QuantizedTensor(Q, (1000,), t.packed, t.scales)
    assert str(caught.value) == (
        "packed has 100 elements of torch.uint8; B64/DE@8s of shape (1000,) needs 1000 "
        "elements of torch.uint8"
    )
    with pytest.raises(BadValueError) as caught:
        QuantizedTensor(Q, (100,), t.packed, (torch.ones(1),))
    assert str(caught.value) == (
        "scales are ((torch.float32, (1,)),); B64 of shape (100,) needs ((torch.float32, (2,)),)"
    )
    t.packed.resize_(10)
    with use_backend(backend):
        for work in (t.dequantize, t.codes, lambda: Q.quantize(torch.ones(100), out=t)):
            with pytest.raises(BadValueError) as caught:
                work()
            assert str(caught.value) == message


@BACKENDS
@pytest.mark.parametrize("spec", ["B64/DE-0@4u", "B64/nf4@4s", "B64/linear0@9s", "B64/mine@9s"])
def test_codes_beyond_the_codebook(spec: str, backend: str) -> None:
    codebook = qmaps.Codebook(torch.linspace(-1, 1, 300), label="mine")
    q = quantizer(spec, codebooks=[codebook])
    packed = torch.full((-(-100 * q.map.bits // 8),), 255, dtype=torch.uint8)
    t = QuantizedTensor(q, (100,), packed, (torch.full((2,), 3.0),))
    with use_backend(backend):
        last = float(q.map.codebook()[-1])
        assert torch.equal(t.dequantize(), torch.full((100,), last) * 3)


def test_addresses() -> None:
    x = torch.arange(6.0)
    assert address(x) == address(x, 6) == x.data_ptr()
    with pytest.raises(BadValueError) as caught:
        address(x, 7, "a scale")
    assert str(caught.value) == "a scale must have 7 elements, got 6"
    cases = (negative(x), strided(x), zero(x), freed_copy(x), x.to_sparse(), x.to("meta"))
    for bad in cases:
        with pytest.raises(BadValueError) as caught:
            address(bad)
        assert str(caught.value) == (
            "a tensor of shape (6,) must be contiguous, with all of its elements in memory"
        )
    assert in_memory(strided(x))
    assert address(torch.empty(0)) == torch.empty(0).data_ptr()
    torch.func.grad(lambda y: (_outside(y), y.sum())[1])(x)


def _outside(y: Tensor) -> None:
    assert not in_memory(y)


def test_plain() -> None:
    x = torch.randn(5)
    assert plain(x, "x") is x
    assert torch.equal(plain(negative(x), "x"), x)
    assert not plain(negative(x), "x").is_neg()
    assert torch.equal(plain(zero(x), "x"), torch.zeros(5))


@pytest.fixture(params=[True, False], ids=["by torch's C interface", "by Python"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses._TORCH
    monkeypatch.setattr(addresses, "_TORCH", request.param)
    if not request.param:
        monkeypatch.setattr(addresses, "plain_address", lambda _: 0)


@pytest.mark.usefixtures("looks")
def test_looks() -> None:
    x = torch.randn(4, 4)
    first = tensor_info([x])
    assert first[0] == [x.data_ptr()]
    assert tensor_info([x]) == first
    assert tensor_info([x.clone()])[1] == first[1]
    unlike = (x.t(), x[:2], x.view(16), x.bfloat16(), x.to_sparse(), freed_copy(x), zero(x))
    for changed in unlike:
        assert tensor_info([changed])[1] != first[1]
    assert tensor_info([torch.empty(0)])[0] == [0]


@pytest.mark.usefixtures("looks")
def test_kept() -> None:
    def changed(change: Callable[[Tensor], object]) -> bool:
        x = torch.randn(4, 4)
        watched = WatchedTensors([torch.ones(3), x])
        assert watched.unchanged()
        x.zero_()
        assert watched.unchanged()
        change(x)
        return not watched.unchanged()

    def same_address(x: Tensor) -> None:
        x.data = x.data.t()

    assert changed(same_address)
    assert changed(lambda x: x.t_())
    assert changed(lambda x: x.share_memory_())
    assert changed(lambda x: x.set_(x.clone()))
    assert changed(freed)
    assert changed(lambda x: x.resize_(2))


def test_tensors_that_are_kept_live_on() -> None:
    x = torch.randn(1000)
    watched = WatchedTensors([x])
    del x
    assert watched.unchanged()


def test_overlapping() -> None:
    x, y, empty = torch.zeros(10), torch.zeros(4, 4), torch.zeros(0)
    assert addresses.overlapping([x, y, empty, torch.zeros(0)]) == set()
    assert addresses.overlapping([x, y, x[9:], x[:3]]) == {0, 2, 3}
    assert addresses.overlapping([y[:, 1], x[:5], x[5:], y[3, 1:]]) == {0, 3}
    assert addresses.overlapping([x[:2], empty, y, empty, x[2:], x[3:4]]) == {1, 3, 4, 5}


@BACKENDS
def test_parameters_that_share_memory(backend: str) -> None:
    """The optimizer steps them one after another, like torch's loop."""
    p = torch.zeros(9000)
    params = [p[:6000].requires_grad_(), p[4000:].requires_grad_()]
    with use_backend(backend):
        optimizer = AdamW8bit(params, lr=0.1, weight_decay=0.0)
        for _ in range(2):
            for param in params:
                param.grad = torch.ones_like(param)
            optimizer.step()
    expected = torch.full((9000,), -0.2)
    expected[4000:6000] = -0.4
    assert torch.allclose(p, expected, rtol=5e-3)
