from __future__ import annotations

import io

import pytest
import torch

import qmaps
from qmaps import QuantizedTensor, store

X = torch.linspace(-2, 3, 300)


def test_bytes_and_bits_are_counted_by_hand() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for spec, nbytes in {
        "tensor/DE@8s": 1000 + 4,
        "B128/DE@4s": 500 + 4 * 8,
        "B100/linear0@3s": 375 + 4 * 10,
        "B2048/linear0@12s": 1500 + 4,
        "B100x8/DE@4s": 500 + 10 + 8,
        "logB100/log2@8u": 1000 + 2 * 4 * 10,
        "tensor/lloyd@4s": 500 + 4 + 4 * 16,
    }.items():
        q = qmaps.quantizer(spec)
        t = q.quantize(x.abs() if not q.map.signed else x)
        assert t.nbytes == nbytes, spec
        assert t.bits_per_element == 8 * nbytes / 1000
    matrix = qmaps.quantizer("rank1/linear@4u").quantize(x.abs().view(50, 20))
    assert matrix.nbytes == 500 + 4 * (50 + 20)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X.double(), "x has dtype torch.float64; allowed are float32, float16, bfloat16"),
        (torch.arange(3), "x has dtype torch.int64; allowed are float32, float16, bfloat16"),
        ([1.0], "x is a list; a torch.Tensor is needed"),
    ],
)
def test_bad_tensors(x: object, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        qmaps.quantizer("B128/DE@4s").quantize(x)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_gradients_are_left_out() -> None:
    x = X.clone().requires_grad_()
    t = qmaps.quantizer("B128/DE@4s").quantize(x)
    assert not t.dequantize().requires_grad


def test_out_must_match() -> None:
    q, other = qmaps.quantizer("B128/DE@4s"), qmaps.quantizer("B64/DE@4s")
    t = q.quantize(X)
    for call, message in (
        (lambda: q.quantize(X[1:], out=t), "out has shape (300,); (299,) is needed"),
        (lambda: other.quantize(X, out=t), "out was made by B128/DE@4s; B64/DE@4s is needed"),
        (lambda: other.dequantize(t), "t was made by B128/DE@4s; B64/DE@4s cannot decode it"),
        (lambda: q.dequantize(t, out=torch.empty(3)), "out has shape (3,); (300,) is needed"),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message
    with pytest.raises(TypeError) as wrong:
        t.dequantize(dtype=torch.float64)
    assert str(wrong.value) == "dtype=torch.float64; allowed are float32, float16, bfloat16"


def test_a_failed_quantize_leaves_out_as_it_was() -> None:
    q = qmaps.quantizer("B128/DE@4s")
    t = q.quantize(X)
    kept = t.clone()
    bad = X.clone()
    bad[5] = float("nan")
    with pytest.raises(qmaps.errors.NonFiniteError):
        q.quantize(bad, out=t)
    assert torch.equal(t.packed, kept.packed)


def test_error_returns_every_metric() -> None:
    found = qmaps.quantizer("B128/DE@4s").error(X)
    assert set(found) == {"bits_per_element", *qmaps.metrics.METRICS}


def test_plain_form_loads_without_executing_code() -> None:
    for spec in ("B128x8&row/lloyd@3s+sr", "rank1/DE@8s"):
        t = qmaps.quantizer(spec).quantize(X.view(10, 30))
        buffer = io.BytesIO()
        torch.save(store.to_plain(t), buffer)
        buffer.seek(0)
        back = store.from_plain(torch.load(buffer, weights_only=True))
        assert back.quantizer == t.quantizer
        assert torch.equal(back.dequantize(), t.dequantize())


def test_several_tensors_in_one_file(tmp_path) -> None:
    mine = qmaps.Codebook([-1, 0, 1], label="mine")
    tensors = {
        "a/b.c": qmaps.quantizer("B128/DE@4s").quantize(X),
        "": qmaps.quantizer("tensor/mine@2s", [mine]).quantize(X),
        "empty": qmaps.quantizer("B7/quantile@4s").quantize(torch.zeros(0, 3)),
    }
    qmaps.save(tensors, tmp_path / "all.safetensors")
    back = qmaps.load(tmp_path / "all.safetensors")
    assert list(back) == list(tensors)
    for name, t in tensors.items():
        assert back[name].quantizer == t.quantizer
        assert torch.equal(back[name].dequantize(), t.dequantize())
    with pytest.raises(ValueError, match=r"holds 3 tensors; use qmaps\.load"):
        QuantizedTensor.load(tmp_path / "all.safetensors")


def test_damaged_files_are_refused(tmp_path) -> None:
    path = tmp_path / "t.safetensors"
    qmaps.quantizer("B128/lloyd@4s").quantize(X).save(path)
    data = path.read_bytes()
    for size in range(0, len(data), 41):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match="cannot be read as safetensors"):
            qmaps.load(path)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        qmaps.load(tmp_path / "missing.safetensors")


def test_parts_that_do_not_fit_are_refused() -> None:
    plain = store.to_plain(qmaps.quantizer("B128/DE@4s").quantize(X))
    for change, message in (
        ({"shape": [301]}, "packed has 150 elements of torch.uint8; B128/DE@4s of shape (301,) "
                           "needs 151 of torch.uint8"),
        ({"scales": []}, "scales are (); B128 of shape (300,) needs ((torch.float32, (3,)),)"),
        ({"format": 99}, "format=99 of a quantized tensor is not supported; 1 is"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            store.from_plain({**plain, **change})
        assert str(caught.value) == message
    del plain["packed"]
    with pytest.raises(ValueError, match="a quantized tensor lacks packed"):
        store.from_plain(plain)


def test_stochastic_rounding_of_log2_is_unbiased_in_value() -> None:
    """|z| < 6 for the mean of 4096 draws of 40 values: refused once in 1e7 runs if correct."""
    q = qmaps.quantizer("logB40/log2@3u+sr")
    x = torch.exp2(torch.linspace(-3, 3, 40))
    draws = torch.stack(
        [
            q.quantize(x, key=qmaps.RoundingKey(step=step)).dequantize().double()
            for step in range(1024)
        ]
    )
    spread = draws.std(0).clamp_min(1e-6) / 1024**0.5
    assert float(((draws.mean(0) - x) / spread).abs()[1:-1].max()) < 6


def test_backends_say_what_runs() -> None:
    assert qmaps.backend() == "reference"
    by_name = {backend.name: backend for backend in qmaps.backends()}
    assert by_name["reference"].available
    assert not by_name["native"].available
    assert all(backend.reason for backend in by_name.values())
