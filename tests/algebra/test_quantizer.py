from __future__ import annotations

import contextlib
import copy
import pickle
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import qmaps
from qmaps.errors import BadTypeError, BadValueError
from qmaps.ops.backends import use_backend

X = torch.linspace(-2, 3, 300)


COUNTED = {
    # 1000 elements: bytes of the codes, of the scales, of a codebook that belongs to the tensor.
    "tensor/linear@2s": 250 + 4,
    "tensor/linear@3s": 375 + 4,
    "tensor/linear@5s": 625 + 4,
    "tensor/linear@6s": 750 + 4,
    "tensor/linear@7s": 875 + 4,
    "tensor/DE@8s": 1000 + 4,
    "tensor/linear@9s": 1125 + 4,
    "tensor/linear0@10s": 1250 + 4,
    "tensor/linear@11s": 1375 + 4,
    "tensor/linear@13u": 1625 + 4,
    "tensor/linear0@16s": 2000 + 4,
    "B128/DE@4s": 500 + 4 * 8,
    "B100/linear0@3s": 375 + 4 * 10,
    "B2048/linear0@12s": 1500 + 4,
    "B1/DE@8u": 1000 + 4 * 1000,
    "row/DE@4s": 500 + 4 * 8,  # one dimension: as B128
    "rank1/DE@4s": 500 + 4 * 8,
    "tensorx8/DE@4s": 500 + 1 + 8,
    "B100x8/DE@4s": 500 + 10 + 8,
    "B100&tensor/DE@4s": 500 + 4 * 11,
    "B100x8&B10x8/DE@4s": 500 + (10 + 8) + (100 + 8),
    "logB100/log2@8u": 1000 + 2 * 4 * 10,
    "tensor/lloyd@4s": 500 + 4 + 4 * 16,
    "B100/quantile@8s": 1000 + 4 * 10 + 4 * 256,
    "B100/quantile@3u+sr": 375 + 4 * 10 + 4 * 8,
}


@pytest.mark.parametrize("spec", COUNTED)
def test_bytes_and_bits_are_counted_by_hand(spec: str) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    q = qmaps.quantizer(spec)
    t = q.quantize(x if q.map.signed else x.abs())
    assert t.nbytes == COUNTED[spec]
    assert t.bits_per_element == 8 * COUNTED[spec] / 1000
    assert repr(t) == f"QuantizedTensor({spec!r}, shape=(1000,), {COUNTED[spec]} bytes)"


def test_bytes_of_other_shapes() -> None:
    x = torch.rand(5, 10, 20)
    for spec, nbytes in {
        "rank1/linear@4u": 500 + 4 * (5 + 10 + 20),
        "rank1x8/linear@4u": 500 + (5 + 10 + 20) + 8,
        "row/linear@4u": 500 + 4 * 5,
        "col/linear@4u": 500 + 4 * 20,
        "col&row/linear@4u": 500 + 4 * 25,
    }.items():
        assert qmaps.quantizer(spec).quantize(x).nbytes == nbytes, spec
    q = qmaps.quantizer("B128/DE@3s")
    assert [q.quantize(torch.ones(n)).packed.numel() for n in range(9)] == [
        0,
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
    ]
    assert q.quantize(torch.ones(0)).nbytes == 0
    assert q.quantize(torch.tensor(1.0)).nbytes == 1 + 4
    # A codebook of the user's is shared between tensors: not counted.
    codebook = qmaps.Codebook([-1, 0, 1], label="mine")
    assert qmaps.quantizer("tensor/mine@2s", [codebook]).quantize(torch.ones(8)).nbytes == 2 + 4
    x = torch.zeros(1 << 16)
    assert qmaps.quantizer("B128/DE@4s").quantize(x).bits_per_element == 4.25
    assert qmaps.quantizer("B32x8/DE@4s").quantize(x).bits_per_element == 4.25 + 64 / (1 << 16)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X.double(), "x must be float32, float16 or bfloat16, got torch.float64"),
        (torch.arange(3), "x must be float32, float16 or bfloat16, got torch.int64"),
        ([1.0], "x must be a torch.Tensor, got list"),
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
    q, smaller = qmaps.quantizer("B128/DE@4s"), qmaps.quantizer("B64/DE@4s")
    t = q.quantize(X)
    first, second = (
        qmaps.normalize.BlockWise(64) / qmaps.Codebook(values, label="mine")
        for values in ([-1, 0, 1], [-1, 0.5, 1])
    )
    for call, message in (
        (lambda: q.quantize(X[1:], out=t), "out must have shape (299,), got (300,)"),
        (
            lambda: smaller.quantize(X, out=t),
            "out must have the quantizer B64/DE@4s, got B128/DE@4s",
        ),
        (
            lambda: first.quantize(X, out=second.quantize(X)),
            "out has another codebook under the spec B64/mine@2s; each codebook needs its own "
            "label",
        ),
        (
            lambda: smaller.dequantize(t),
            ("t was quantized with B128/DE@4s; B64/DE@4s cannot decode it"),
        ),
        (lambda: q.dequantize(t, out=torch.empty(3)), "out must have shape (300,), got (3,)"),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message
    with pytest.raises(TypeError) as wrong:
        t.dequantize(dtype=torch.float64)
    assert str(wrong.value) == (
        "dtype=torch.float64 must be torch.float32, torch.float16 or torch.bfloat16"
    )


def test_out_must_be_on_the_same_device() -> None:
    q = qmaps.quantizer("B128/DE@4s")
    with pytest.raises(ValueError) as caught:
        q.quantize_unchecked(torch.empty(300, device="meta"), out=q.quantize(X))
    assert str(caught.value) == "out must be on meta, got cpu"


def test_copies_share_nothing() -> None:
    t = qmaps.quantizer("B128x8/DE@4s").quantize(X)
    copy, moved = t.clone(), t.to("cpu")
    before = t.dequantize()
    t.packed.zero_()
    t.scales[0].zero_()
    assert torch.equal(copy.dequantize(), before)
    assert moved.device == t.device


def test_a_quantizer_stands_for_itself() -> None:
    q = qmaps.quantizer("B128/DE@4s")
    assert qmaps.quantizer(q) is q
    assert (q.normalizer.spec, q.map.bits, q.map.signed) == ("B128", 4, True)
    t = q.quantize(X)
    assert torch.equal(q.dequantize(t), t.dequantize())
    assert q.dequantize(t, dtype=torch.float16).dtype == torch.float16
    stochastic = qmaps.quantizer("B128/DE@4s+sr")
    assert torch.equal(stochastic.dequantize(t), t.dequantize())


def test_a_failed_quantize_leaves_out_as_it_was() -> None:
    q = qmaps.quantizer("B128/DE@4s")
    t = q.quantize(X)
    before = t.clone()
    bad = X.clone()
    bad[5] = float("nan")
    with pytest.raises(qmaps.errors.NonFiniteError):
        q.quantize(bad, out=t)
    assert torch.equal(t.packed, before.packed)


def test_error_returns_every_metric() -> None:
    errors = qmaps.quantizer("B128/DE@4s").error(X)
    assert set(errors) == {"bits_per_element", *qmaps.metrics.METRICS}


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


def test_the_backend_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {backend.name: backend for backend in qmaps.backends()}
    assert list(by_name) == ["reference", "native", "cuda", "triton"]
    assert all(backend.reason for backend in by_name.values())
    assert by_name["reference"].available
    best = "native" if by_name["native"].available else "reference"
    monkeypatch.delenv("QMAPS_BACKEND", raising=False)
    assert qmaps.backend() == best
    with use_backend("reference"):
        assert qmaps.backend() == "reference"
    assert qmaps.backend() == best
    monkeypatch.setenv("QMAPS_BACKEND", "reference")
    assert qmaps.backend() == "reference"


def test_unknown_and_absent_back_ends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError) as caught, use_backend("nativ"):
        pass
    assert str(caught.value) == (
        "name='nativ' is not a back end; allowed are 'reference', 'native', 'cuda', 'triton'; "
        "nearest match: native"
    )
    monkeypatch.setenv("QMAPS_BACKEND", "cuda")
    reason = qmaps.backends()[2].reason
    with pytest.raises(ValueError) as caught:
        qmaps.backend()
    assert str(caught.value) == f"QMAPS_BACKEND='cuda' is not available: {reason}"


def test_attributes_of_tensors_are_refused() -> None:
    t, x = qmaps.quantizer("B64/DE@8s").quantize(torch.ones(8, 8)), torch.ones(8, 8)
    for name in ("norm", "mean", "numel", "dtype", "T", "add_", "view", "item"):
        assert not hasattr(t, name)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("norm", lambda: torch.norm(t)),
        ("mean", lambda: torch.mean(t)),
        ("sum", lambda: torch.sum(t)),
        ("copy_", lambda: x.copy_(t)),
        ("stack", lambda: torch.stack([x, t])),
        ("zeros_like", lambda: torch.zeros_like(t)),
        ("equal", lambda: torch.equal(x, t)),
    ]
    for name, call in calls:
        with pytest.raises(BadTypeError) as caught:
            call()
        assert str(caught.value) == (
            f"{name} does not accept a QuantizedTensor; pass t.dequantize()"
        )
    for operator in (lambda: t + 1, lambda: 1 + t, lambda: x - t, lambda: t @ t, lambda: abs(t),
                     lambda: t > 0, lambda: t[0]):  # fmt: skip
        with pytest.raises(TypeError, match="QuantizedTensor"):
            operator()


def test_copies_and_pickles_go_past_names_of_tensors() -> None:
    t = qmaps.quantizer("B64/DE@8s").quantize(torch.ones(8, 8))
    for again in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t)), replace(t)):
        assert torch.equal(again.dequantize(), t.dequantize())
        assert bool(again)
    assert not isinstance(t, Iterable)


@pytest.mark.parametrize("backend", [b.name for b in qmaps.backends() if b.available])
def test_codes_beyond_the_codebook_stand_for_its_last_value(backend: str) -> None:
    q = qmaps.quantizer("B8/DE-0@4u")  # 15 values for 16 codes
    t = q.quantize(torch.ones(8))
    t.packed.fill_(255)
    with use_backend(backend):
        assert torch.equal(t.dequantize(), torch.ones(8) * q.map.codebook()[-1])


@pytest.mark.parametrize("engine", [b.name for b in qmaps.backends() if b.available])
@pytest.mark.parametrize("mode", [torch.device("meta"), FakeTensorMode()])
def test_cached_values_of_a_map_are_real_tensors(
    mode: AbstractContextManager[object], engine: str
) -> None:
    level = len(engine) / (50 + len(type(mode).__name__))  # of a codebook that no test has used
    q = qmaps.normalize.BlockWise(64) / qmaps.Codebook([-1, -level, 0, level, 1])
    with use_backend(engine):
        for look in (q.map.codebook, q.map.thresholds, lambda: q.quantize(torch.zeros(64))):
            with mode, contextlib.suppress(Exception):  # whether it works there or not
                look()
        assert q.error(X)["sqnr_db"] > 10


MOST_FILES, MOST_CALLS = 9, 30


@pytest.mark.skipif(qmaps.backend() != "native", reason="needs the native engine")
@pytest.mark.parametrize("spec", ["B128/DE@4s", "B256/DE-0@8u"])
def test_a_repeated_call_goes_through_few_functions(spec: str) -> None:
    q, x = qmaps.quantizer(spec), torch.rand(64, 64)
    q.quantize(x)
    package = str(Path(qmaps.__file__).parent)
    files: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            files.append(frame.f_code.co_filename)

    sys.setprofile(count)
    try:
        q.quantize(x)
    finally:
        sys.setprofile(None)
    assert len(set(files)) <= MOST_FILES
    assert len(files) <= MOST_CALLS


def test_tensors_stored_beside_the_codes_must_fit() -> None:
    q = qmaps.quantizer("lowrank2(B64/DE@8s)+B64/DE@4s")
    t = q.quantize(torch.ones(40, 30))
    for beside in ((), t.beside[:1], t.beside[::-1]):
        with pytest.raises(BadValueError, match=r"beside holds .*; lowrank2.* of shape .* needs"):
            replace(t, beside=beside)
    plain = qmaps.quantizer("B64/DE@4s").quantize(torch.ones(40, 30))
    with pytest.raises(BadValueError, match=r"needs nothing$"):
        replace(plain, beside=t.beside)


def test_bytes_of_a_frozen_codebook_are_counted_before_quantizing() -> None:
    q = qmaps.quantizer("B64/quantile@4s").fit(X)
    assert q.nbytes(X.shape) == q.quantize(X).nbytes
