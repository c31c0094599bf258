"""Quantizers with a low-rank part beside the codes."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.algebra.low_rank import low_rank_of
from qmaps.algebra.quantizer import LowRank, QuantizedTensor
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.capture import Monitor
from qmaps.capture.conversion import convert_state_dict
from qmaps.distributed.comm.coder import Coder
from qmaps.distributed.rows import by_rows
from qmaps.errors import BadTypeError, BadValueError, SpecError
from qmaps.optim import AdamW, Muon

SPEC = "lowrank4(B128/DE@8s)+B128/DE@4s"
GRASP = "lowrank4(rank1B128x128/linear@8s)+rank1B128x128/linear@4s"


def matrix(rows: int = 96, columns: int = 64, rank: int = 4, noise: float = 0.1) -> Tensor:
    """A matrix with a few large singular values and many small ones."""
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(rows, rank, generator=g), torch.randn(rank, columns, generator=g)
    return left @ right + noise * torch.randn(rows, columns, generator=g)


@pytest.mark.parametrize("spec", [SPEC, GRASP, f"{SPEC}+qsr", f"{SPEC}+sr"])
def test_specs_round_trip(spec: str) -> None:
    q = qmaps.quantizer(spec.upper())
    assert q.spec == spec
    assert qmaps.quantizer(q.spec) == q
    assert q.low_rank == LowRank(4, qmaps.quantizer(spec[9 : spec.index(")+")]))
    assert q != replace(q, low_rank=None)
    assert replace(q, low_rank=None).spec == spec[spec.index(")+") + 2 :]


def test_it_decodes_to_the_product_and_the_rest() -> None:
    x, q = matrix(), qmaps.quantizer(SPEC)
    t = q.quantize(x)
    left, right = t.beside
    assert (left.quantizer.spec, left.shape, right.shape) == ("B128/DE@8s", (96, 4), (64, 4))
    product = left.dequantize() @ right.dequantize().T
    residual = qmaps.quantizer("B128/DE@4s").quantize(x - product)
    assert torch.equal(t.packed, residual.packed)
    assert torch.equal(t.dequantize(), product + residual.dequantize())
    out = torch.empty(96, 64, dtype=torch.bfloat16)
    assert t.dequantize(out=out) is out
    assert torch.equal(out, t.dequantize().bfloat16())
    assert torch.equal(t.dequantize(dtype=torch.float16), t.dequantize().half())


def test_the_factors_are_those_of_the_singular_value_decomposition() -> None:
    """The best approximation, up to 16-bit factors, if a gap follows the first singular values."""
    x = matrix(noise=0.01)
    t = qmaps.quantizer("lowrank4(tensor/linear@16s)+B128/DE@4s").quantize(x)
    left, right = (factor.dequantize() for factor in t.beside)
    u, s, v = torch.linalg.svd(x)
    best = u[:, :4] * s[:4] @ v[:4]
    torch.testing.assert_close(left @ right.T, best, rtol=0, atol=2e-3)
    torch.testing.assert_close(left.T @ left, torch.eye(4), rtol=0, atol=1e-3)


@pytest.mark.parametrize("spec", [SPEC, GRASP])
def test_large_singular_directions_are_kept(spec: str) -> None:
    """Muon's update needs them; codes alone turn the directions of the other values more."""
    x, q = matrix(), qmaps.quantizer(spec)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    errors = {}
    for quantizer in (q, replace(q, low_rank=None)):
        error = quantizer.quantize(x).dequantize() - x
        inside = u[:, :4] @ (u[:, :4].T @ error) + (error @ v[:4].T) @ v[:4]
        errors[quantizer.spec] = float(error.square().mean()), float(inside.square().mean())
    low, codes = errors[q.spec], errors[replace(q, low_rank=None).spec]
    assert low[0] < codes[0] / 50
    assert low[1] < codes[1] / 20


def test_the_tensor_before_is_where_the_iteration_begins() -> None:
    """One iteration from the last factors is closer than one from other factors."""
    x, q = matrix(noise=1.0), qmaps.quantizer("lowrank4(B128/linear@16s)+B128/DE@4s")
    elsewhere = q.quantize(torch.randn(96, 64, generator=torch.Generator().manual_seed(5)))

    def rest(t: QuantizedTensor) -> float:
        left, right = (factor.dequantize() for factor in low_rank_of(t))
        return float((x - left @ right.T).norm())

    alone = q.quantize(x)
    best = float(torch.linalg.svdvals(x)[4:].norm())
    cold = rest(q.quantize(x, after=elsewhere))
    t, warm = elsewhere, []
    for _ in range(12):
        t = q.quantize(x, after=t)
        warm.append(rest(t))
    assert warm[0] == cold > 1.5 * best
    assert rest(alone) == pytest.approx(best, rel=1e-4)
    assert warm[-1] == pytest.approx(best, rel=1e-4)
    # A start of zeros, or of another shape, is none.
    zero = q.quantize(torch.zeros(96, 64))
    assert rest(q.quantize(x, after=zero)) == rest(alone)
    plain = qmaps.quantizer("B128/DE@4s").quantize(x)
    assert rest(q.quantize(x, after=plain)) == rest(alone)


@pytest.mark.parametrize("shape", [(50,), (), (3, 4, 5), (4, 64), (64, 3), (0, 9)])
def test_vectors_and_small_matrices_have_no_low_rank_part(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    t, without = (qmaps.quantizer(spec).quantize(x) for spec in (SPEC, "B128/DE@4s"))
    assert t.beside == ()
    assert torch.equal(t.packed, without.packed)
    assert torch.equal(t.dequantize(), without.dequantize())


def test_zeros_nan_and_infinity() -> None:
    q = qmaps.quantizer(SPEC)
    assert not q.quantize(torch.zeros(9, 9)).dequantize().any()
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = matrix()
        x[3, 4] = bad
        assert not q.quantize_unchecked(x).dequantize().isfinite().any()
        t = q.quantize(matrix())
        with pytest.raises(qmaps.QmapsError, match="x holds 1 NaN or infinite elements"):
            q.quantize(x, out=t)
        assert torch.equal(t.dequantize(), q.quantize(matrix()).dequantize())


def test_bytes_files_and_copies(tmp_path: Path) -> None:
    q = qmaps.quantizer(SPEC)
    t = q.quantize(matrix())
    codes, factors = 96 * 64 // 2 + 4 * 48, 96 * 4 + 4 * 3 + 64 * 4 + 4 * 2
    assert t.nbytes == q.nbytes((96, 64)) == codes + factors
    qmaps.save({"tensor": t}, tmp_path / "t.safetensors")
    back = qmaps.load(tmp_path / "t.safetensors")["tensor"]
    for copied in (back, t.clone(), t.to("cpu"), from_plain(to_plain(t)), copy.deepcopy(t)):
        assert copied.quantizer == q
        assert torch.equal(copied.dequantize(), t.dequantize())
        again = [
            q.quantize(matrix(noise=0.2), after=previous).dequantize() for previous in (copied, t)
        ]
        assert torch.equal(*again)


def test_in_place() -> None:
    q = qmaps.quantizer(SPEC)
    t, later = q.quantize(matrix()), matrix(noise=0.3)
    expected = q.quantize(later, after=t)
    places = [part.packed.data_ptr() for part in (t, *t.beside)]
    assert q.quantize(later, out=t, after=t) is t
    assert places == [part.packed.data_ptr() for part in (t, *t.beside)]
    assert torch.equal(t.dequantize(), expected.dequantize())


def train(optimizer: torch.optim.Optimizer, steps: range) -> None:
    (param,) = optimizer.param_groups[0]["params"]
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        param.grad = matrix(noise=0.5) + torch.randn(96, 64, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("spec", [SPEC, GRASP, f"{SPEC}+qsr"])
def test_muon_steps_with_it_and_resumes_bit_for_bit(spec: str) -> None:
    def muon(param: nn.Parameter) -> Muon:
        return Muon([param], lr=0.02, state_quantizers={"momentum_buffer": spec},
                    min_quantized_size=0)  # fmt: skip

    uninterrupted, half = (nn.Parameter(torch.ones(96, 64)) for _ in range(2))
    train(muon(uninterrupted), range(6))
    optimizer = muon(half)
    train(optimizer, range(3))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    resumed = nn.Parameter(half.detach().clone())
    again = muon(resumed)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    train(again, range(3, 6))
    assert torch.equal(resumed, uninterrupted)
    # The factors of the step before count: without them it goes elsewhere.
    changed = nn.Parameter(half.detach().clone())
    cut = muon(changed)
    saved = optimizer.state_dict()
    cut.load_state_dict(saved)
    for part in cut.state[changed]["momentum_buffer"].beside[1].scales:
        part.zero_()
    train(cut, range(3, 6))
    assert not torch.equal(changed, uninterrupted)


def test_adam_leaves_it_to_the_reference() -> None:
    param = nn.Parameter(torch.ones(96, 64))
    optimizer = AdamW([param], state_quantizers=f"{SPEC} + B128/DE-0@4u", min_quantized_size=0)
    train(optimizer, range(2))
    assert optimizer.engine_counts().get("reference", 0) == 1
    state = optimizer.state[param]["exp_avg"]
    assert len(state.beside) == 2
    saved = optimizer.state_dict()
    exact, _ = convert_state_dict(saved, "torch")
    assert torch.equal(exact["state"][0]["exp_avg"], state.dequantize())
    same, _ = convert_state_dict(saved, "qmaps")
    assert torch.equal(from_plain(same["state"][0]["exp_avg"]).dequantize(), state.dequantize())


FACTORS = "keeps factors of whole matrices"


def test_messages_monitors_and_rows_refuse_it() -> None:
    with pytest.raises(BadValueError) as caught:
        Coder(SPEC)
    assert str(caught.value) == (
        f"quantizer={SPEC} has lowrank4(B128/DE@8s); messages need a quantizer without a low-rank "
        "part"
    )
    param = nn.Parameter(torch.ones(96, 64))
    optimizer = AdamW([param], state_quantizers=f"{SPEC} + B128/DE-0@4u", min_quantized_size=0)
    with pytest.raises(BadValueError) as caught:
        Monitor(optimizer)
    assert str(caught.value) == (
        f"exp_avg of group0.param0 has the quantizer {SPEC}; a monitor supports quantizers without "
        "a low-rank part"
    )
    train(optimizer, range(1))
    with by_rows(), pytest.raises(BadValueError) as caught:
        optimizer.state_dict()
    assert str(caught.value) == f"{SPEC} {FACTORS}; it cannot be saved by rows"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lowrank4(B128/DE@8s)", "spec='lowrank4(B128/DE@8s)' does not have the form "
         "lowrank<k>(SPEC)+SPEC, such as lowrank4(B128/DE@8s)+B128/DE@4s"),
        ("lowrank0(B128/DE@8s)+B128/DE@4s", "rank=0 of a low-rank part must be 1 to 4096"),
        ("lowrank4(B128/DE@8u)+B128/DE@4s", "the quantizer of factors B128/DE@8u must be signed"),
        ("lowrank4(B128/DE@8s+sr)+B128/DE@4s",
         "the quantizer of factors B128/DE@8s+sr must round to nearest, alone"),
        (f"lowrank4({SPEC})+B128/DE@4s", f"spec='lowrank4({SPEC})+B128/DE@4s' has more than one "
         "low-rank part; the form is lowrank<k>(SPEC)+SPEC"),
        (f"lowrank4(B128/DE@8s)+{SPEC}", f"spec='lowrank4(B128/DE@8s)+{SPEC}' has more than one "
         "low-rank part; the form is lowrank<k>(SPEC)+SPEC"),
        ("lowrank4(B128/DE@8s)+B128/linear@4u",
         "lowrank4(B128/DE@8s)+B128/linear@4u: the quantizer of the rest must be signed"),
        ("lowrank4(B128/DE@8s)+B128/lloyd@4s", "lowrank4(B128/DE@8s)+B128/lloyd@4s: the quantizer "
         "of the rest must have a map that is given by a formula"),
    ],
)  # fmt: skip
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises((SpecError, BadValueError)) as caught:
        qmaps.quantizer(spec)
    assert str(caught.value) == message


def test_bad_ranks_and_long_specs() -> None:
    with pytest.raises(BadTypeError) as caught:
        LowRank(2.0, qmaps.quantizer("B128/DE@8s"))
    assert str(caught.value) == "rank=2.0 of a low-rank part must be an int"
    with pytest.raises(SpecError, match="characters; at most 500 are allowed"):
        qmaps.quantizer("lowrank4(" * 2000 + "B128/DE@8s" + ")+B128/DE@4s" * 2000)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-10, 1.0, 1e20, 1e37])
def test_factors_do_not_depend_on_the_scale(scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(96, 4, generator=g) @ torch.randn(4, 64, generator=g)
    x = (x / x.abs().max() + 0.01 * torch.randn(96, 64, generator=g)) * scale
    q = qmaps.quantizer("lowrank4(B128/DE@8s)+B128/DE@4s")
    t = q.quantize(x)
    for _ in range(2):
        error = (t.dequantize() - x).abs().mean() / x.abs().mean()
        assert float(error) < 0.02
        t = q.quantize(x, after=t)


def test_matrices_of_the_largest_numbers_stay_finite() -> None:
    q = qmaps.quantizer("lowrank4(B128/DE@8s)+B128/DE@4s")
    x = torch.full((40, 30), 3.3e38)
    t = q.quantize(x)
    assert bool(t.dequantize().isfinite().all())
    assert bool(q.quantize(x, after=t).dequantize().isfinite().all())


def test_autocast_and_strides_change_no_bits() -> None:
    q = qmaps.quantizer("lowrank4(B128/DE@8s)+B128/DE@4s")
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    t = q.quantize(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert q.quantize(x).packed.equal(t.packed)
        assert t.dequantize().equal(q.quantize(x).dequantize())
        inside = t.dequantize()
    assert inside.equal(t.dequantize())
    view = x.t().contiguous().t()
    assert q.quantize(view).dequantize().equal(t.dequantize())


def test_scales_from_elsewhere_are_refused() -> None:
    q = qmaps.quantizer("lowrank4(B128/DE@8s)+B128/DE@4s")
    x = torch.ones(40, 30)
    with pytest.raises(BadValueError) as caught:
        q.quantize_scaled(x, q.normalizer.scales(x))
    assert str(caught.value) == (
        "quantizer=lowrank4(B128/DE@8s)+B128/DE@4s keeps factors of a whole matrix; with scales "
        "from elsewhere use one without a low-rank part"
    )


@pytest.mark.parametrize("spec", ["lowrank4()+B128/DE@4s", "lowrank4(B128/DE@8s)+"])
def test_a_half_that_is_missing_is_named_with_the_whole_spec(spec: str) -> None:
    with pytest.raises(qmaps.errors.SpecError) as caught:
        qmaps.quantizer(spec)
    assert str(caught.value).startswith(f"spec={spec!r} does not have the form lowrank<k>")
