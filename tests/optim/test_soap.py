"""SOAP, beside its authors' code and step by step."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.errors import BadValueError
from qmaps.optim import SOAP, AdamW, SOAP4bit, SOAP8bit
from qmaps.optim.soap import eigenbasis, refined
from tests.optim import soap_golden as golden
from tests.optim.small_run import gradient, start


def trained(**options: object) -> list[Tensor]:
    params = [nn.Parameter(x) for x in start()]
    optimizer = SOAP(params, lr=0.05, **options)
    for step in range(1, 21):
        for i, param in enumerate(params):
            param.grad = gradient(step, i, param.detach())
        optimizer.step()
    return [param.detach() for param in params]


@pytest.mark.parametrize(
    ("options", "expected"), [({}, golden.USUAL), (golden.CHANGES, golden.CHANGED)]
)
def test_32_bits_go_where_the_authors_go(
    options: dict[str, object], expected: list[list[float]]
) -> None:
    for ours, theirs in zip(trained(**options), expected, strict=True):
        torch.testing.assert_close(ours.flatten(), torch.tensor(theirs), rtol=0, atol=1e-4)


def test_maximize_goes_the_other_way() -> None:
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(6, 4))
    twin = copy.deepcopy(param)
    down, up = SOAP([param]), SOAP([twin], maximize=True)
    for _ in range(12):
        param.grad = torch.randn(6, 4)
        twin.grad = -param.grad
        down.step()
        up.step()
    assert torch.equal(param, twin)


@pytest.mark.parametrize("spec", ["B64/DE-sym@8s", "B128/sqrt@4s", "rank1/linear@4s"])
def test_quantized_states_are_decoded_updated_and_encoded(spec: str) -> None:
    torch.manual_seed(1)
    param = nn.Parameter(torch.randn(72, 80))
    q = qmaps.quantizer(spec)
    names = ("exp_avg", "gram_0", "gram_1", "basis_0", "basis_1")
    optimizer = SOAP([param], lr=0.1, weight_decay=0.0, precondition_frequency=2,
                     state_quantizers=dict.fromkeys(names, spec))  # fmt: skip
    m, v = torch.zeros(72, 80), torch.zeros(72, 80)
    grams, bases = [torch.zeros(72, 72), torch.zeros(80, 80)], [torch.zeros(0)] * 2
    for step in range(5):
        grad = torch.randn(72, 80)
        param.grad = grad.clone()
        before = param.detach().clone()
        optimizer.step()
        if step > 0:
            rows, columns = bases
            m = m * 0.95 + grad * (1 - 0.95)
            v = v * 0.95 + (rows.t() @ grad @ columns).square() * (1 - 0.95)
            update = rows @ ((rows.t() @ m @ columns) / (v.sqrt() + 1e-8)) @ columns.t()
            rate = 0.1 * (1 - 0.95**step) ** 0.5 / (1 - 0.95**step)
            torch.testing.assert_close(param.detach(), before - rate * update, rtol=1e-4, atol=1e-4)
        for dim, square in enumerate((grad @ grad.t(), grad.t() @ grad)):
            grams[dim] = grams[dim] * 0.95 + square * (1 - 0.95)
            if step == 0:
                bases[dim] = eigenbasis(grams[dim])
            elif step % 2 == 0:
                bases[dim], order = refined(grams[dim], bases[dim])
                v = v.index_select(dim, order)
        states = optimizer.state[param]
        torch.testing.assert_close(states["exp_avg_sq"], v, rtol=1e-4, atol=1e-4)
        for name, exact in zip(names, (m, *grams, *bases), strict=True):
            stored = states[name]
            assert stored.quantizer.spec == spec
            # What is near a threshold may be rounded to the other side.
            near = q.quantize(exact).dequantize()
            assert (stored.dequantize() != near).float().mean() < 0.01
        m = states["exp_avg"].dequantize()
        grams = [states[f"gram_{dim}"].dequantize() for dim in range(2)]
        bases = [states[f"basis_{dim}"].dequantize() for dim in range(2)]


def test_power_iterations_find_the_eigenvectors() -> None:
    torch.manual_seed(2)
    vectors = torch.linalg.qr(torch.randn(12, 12)).Q
    gram = vectors @ torch.diag(2.0 ** -torch.arange(12.0)) @ vectors.t()
    torch.testing.assert_close((eigenbasis(gram).t() @ vectors).abs(), torch.eye(12),
                               rtol=0, atol=1e-3)  # fmt: skip
    basis = torch.eye(12)
    for _ in range(40):
        basis, order = refined(gram, basis)
        torch.testing.assert_close(basis.t() @ basis, torch.eye(12), rtol=0, atol=1e-5)
    assert order.tolist() == list(range(12))
    torch.testing.assert_close((basis.t() @ vectors).abs(), torch.eye(12), rtol=0, atol=1e-2)


def test_a_decomposition_that_does_not_converge_is_tried_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eigh = torch.linalg.eigh

    def fails(x: Tensor) -> object:
        if x.dtype == torch.float32:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return eigh(x)

    gram = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    actual = eigenbasis(gram)
    assert actual.dtype == torch.float32
    assert actual.abs().tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_without_a_basis_it_is_adam_after_the_first_gradient() -> None:
    torch.manual_seed(3)
    soap, adam = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.zeros(8, 8))
    adam.data.copy_(soap.data)
    ours = SOAP([soap], lr=0.01, weight_decay=0.0, max_precond_dim=7)
    theirs = AdamW([adam], lr=0.01, betas=(0.95, 0.95), weight_decay=0.0)
    soap.grad = torch.randn(8, 8)
    ours.step()
    assert torch.equal(soap, adam)
    assert set(ours.state[soap]) == {"step", "exp_avg", "exp_avg_sq"}
    for _ in range(5):
        soap.grad = adam.grad = torch.randn(8, 8)
        ours.step()
        theirs.step()
    torch.testing.assert_close(soap, adam, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cls", [SOAP, SOAP8bit, SOAP4bit])
def test_a_saved_run_goes_on_bit_for_bit(cls: type[SOAP]) -> None:
    def steps(optimizer: SOAP, param: nn.Parameter, first: int, last: int) -> None:
        for step in range(first, last):
            param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()

    start = torch.randn(80, 96)
    uninterrupted = nn.Parameter(start.clone())
    steps(cls([uninterrupted], precondition_frequency=2), uninterrupted, 0, 6)
    param = nn.Parameter(start.clone())
    optimizer = cls([param], precondition_frequency=2)
    steps(optimizer, param, 0, 3)
    again = nn.Parameter(param.detach().clone())
    resumed = cls([again], precondition_frequency=2)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(resumed, again, 3, 6)
    assert torch.equal(again, uninterrupted)


def test_the_second_moment_has_no_zero() -> None:
    param = nn.Parameter(torch.randn(80, 96))
    for cls, specs in {
        SOAP8bit: ("B256/DE-sym@8s", "B256/geometric@8u+qsr"),
        SOAP4bit: ("B64xbf16/mu-law10:linear0@4s+qsr", "B64xbf16/geometric@4u+qsr"),
    }.items():
        optimizer = cls([param])
        param.grad = torch.randn(80, 96)
        optimizer.step()
        states = optimizer.state[param]
        assert states["exp_avg_sq"].quantizer.spec == specs[1]
        for name in ("exp_avg", "gram_0", "gram_1", "basis_0", "basis_1"):
            assert states[name].quantizer.spec == specs[0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_infinite_gradients_follow_the_policy(bad: float, step: int) -> None:
    for policy in ("propagate", "skip"):
        param = nn.Parameter(torch.randn(6, 4))
        optimizer = SOAP([param], precondition_frequency=2, nonfinite=policy)
        for now in range(4):
            param.grad = torch.randn(6, 4)
            if now == step:
                param.grad[1, 2] = bad
            optimizer.step()
        assert bool(param.isfinite().all()) == (policy == "skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shampoo_beta": 1.0}, "shampoo_beta=1.0 must be"),
        ({"precondition_frequency": 0}, "precondition_frequency=0 must be"),
        ({"precondition_frequency": 1.5}, "precondition_frequency=1.5 must be an int"),
        ({"max_precond_dim": -1}, "max_precond_dim=-1 must be"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"eps": -1.0}, "eps=-1.0 must be"),
    ],
)
def test_options_that_are_not_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadValueError, match=re.escape(message)):
        SOAP([nn.Parameter(torch.zeros(2, 2))], **options)


def test_nine_dimensions_are_too_many() -> None:
    with pytest.raises(BadValueError, match="has 9 dimensions, and SOAP supports at most 8"):
        SOAP([nn.Parameter(torch.zeros([1] * 9))])
