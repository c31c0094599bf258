"""Any map after a transform."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.spec import parse_map
from qmaps.maps import Linear, Log2, MuLaw, Softsign, SquareRoot, Transformed
from qmaps.ops.backends import use_backend
from qmaps.optim import AdamW
from qmaps.testing import check_map
from tests.helpers import same_bits, sample

Floats = NDArray[np.float64]

FORWARD: dict[str, Callable[[Floats], Floats]] = {
    "sqrt": np.sqrt,
    "softsign": lambda x: 2 * x / (1 + x),
    "mu-law255": lambda x: np.log1p(255 * x) / math.log1p(255),
    "mu-law3": lambda x: np.log1p(3 * x) / math.log1p(3),
    "pow0.25": lambda x: x**0.25,
    "pow3": lambda x: x**3,
    "log20": lambda x: 1 + np.log2(np.maximum(x, 1e-300)) / 20,
    "log1": lambda x: 1 + np.log2(np.maximum(x, 1e-300)),
}
"""The transforms of magnitudes, as their docstrings give them."""
INNER = ("DE@4s", "DE@8u", "linear@3u", "linear0@5s", "nf4@4s", "e4m3@8s", "DE-0@6u", "power2@4s")
MAPS = [f"{transform}:{inner}" for transform in FORWARD for inner in INNER]


def transformed(name: str, x: Floats) -> Floats:
    """The transform of each value, with its sign."""
    return np.sign(x) * FORWARD[name](np.abs(x))


@pytest.mark.parametrize("spec", MAPS)
def test_values_and_rounding_are_in_the_transformed_domain(spec: str) -> None:
    name, _, inner = spec.partition(":")
    map_, book = parse_map(spec), parse_map(inner).values().numpy()
    assert map_.spec == spec
    assert transformed(name, map_.values().numpy()) == pytest.approx(book, rel=1e-9, abs=1e-12)
    generator = np.random.default_rng(3)
    low = -1.0 if map_.signed else 0.0
    x = np.concatenate([generator.uniform(low, 1, 4000), generator.uniform(low, 1, 4000) ** 9])
    x = x.astype(np.float32)
    ours = qmaps.quantizer(f"tensor/{spec}").map.thresholds().numpy().searchsorted(x)
    t = transformed(name, x.astype(np.float64))
    if name.startswith("log"):
        # What is below 2**-octaves lies between the values of 0 and of the smallest transform.
        in_range = np.abs(x) > 2.0 ** -int(name.removeprefix("log"))
        t, ours = t[in_range], ours[in_range]
    distance = np.abs(t[:, None] - book)
    chosen = distance[np.arange(len(t)), ours]
    assert (chosen <= distance.min(1) + 1e-7).all()


@pytest.mark.parametrize("spec", MAPS)
def test_thresholds_round_in_the_value_as_an_option(spec: str) -> None:
    head, _, width = spec.rpartition("@")
    map_ = parse_map(f"{head}(NEAREST=True)@{width}")
    assert map_.spec == f"{head}(nearest=true)@{width}"
    plain = parse_map(spec)
    assert torch.equal(map_.codebook(), plain.codebook())
    values, limits = map_.codebook().double(), map_.thresholds().double()
    assert (limits <= (values[1:] + values[:-1]) / 2).all()
    after = torch.nextafter(map_.thresholds(), torch.tensor(math.inf)).double()
    assert (after > (values[1:] + values[:-1]) / 2).all()
    assert not torch.equal(map_.thresholds(), plain.thresholds())


@pytest.mark.parametrize("spec", [*MAPS, "mu-law1048576:linear@16s", "log120:linear0@8u",
                                  "pow64:linear@8u", "sqrt:DE(nearest=true)@8s"])  # fmt: skip
def test_they_pass_the_checks_of_every_map(spec: str) -> None:
    check_map(parse_map(spec))


def test_those_of_linear0_are_the_maps_of_their_names() -> None:
    for bits, signed in ((2, True), (4, False), (8, True), (8, False)):
        width = f"linear0@{bits}{'us'[signed]}"
        for name, name_of_map in (
            ("sqrt", SquareRoot(bits, signed)),
            ("softsign", Softsign(bits, signed)),
            ("mu-law255", MuLaw(bits, signed)),
            ("mu-law15", MuLaw(bits, signed, mu=15)),
        ):
            same = parse_map(f"{name}:{width}")
            assert torch.equal(same.codebook(), name_of_map.codebook())
            assert torch.equal(same.thresholds(), name_of_map.thresholds())


def test_fields_of_the_map_after_the_transform_stay() -> None:
    q = qmaps.quantizer("B64xe8m0/ SQRT : e4m3( mx=TRUE , nearest=true)@8S+sr")
    assert str(q) == "B64xe8m0/sqrt:e4m3(mx=true,nearest=true)@8s+sr"
    assert qmaps.quantizer(str(q)) == q
    assert q.map == Transformed("sqrt", parse_map("e4m3(mx=true)@8s"), nearest=True)
    assert str(qmaps.quantizer("B64/pow0.50:linear@4")) == "B64/pow0.5:linear@4s"


def test_stochastic_rounding_is_unbiased_in_the_value() -> None:
    q = qmaps.quantizer("tensor/sqrt:linear@3u+sr")
    x = torch.linspace(1 / 16, 1, 2000)
    runs = torch.stack([q.quantize(x, key=RoundingKey(step=i)).dequantize() for i in range(400)])
    book = q.map.codebook().double()
    above = torch.searchsorted(book, x.double()).clamp(1, len(book) - 1)
    gap = book[above] - book[above - 1]
    error = (runs.double().mean(0) - x.double()) / gap
    assert abs(float(error.mean())) < 4 * 0.5 / math.sqrt(runs.numel())
    assert float(error.abs().max()) < 5 * 0.5 / math.sqrt(400)


@pytest.mark.parametrize("pair", [
    "B64/mu-law255:linear@4s+sr + B64/sqrt:DE-0@4u",
    "rank1/softsign:DE@8s + B32xf16/pow0.25:linear(nearest=true)@8u",
])  # fmt: skip
def test_steps_and_files(pair: str, tmp_path: Path) -> None:
    def stepped() -> AdamW:
        param = torch.nn.Parameter(sample((40, 96), signed=True))
        optimizer = AdamW([param], lr=0.1, state_quantizers=pair, min_quantized_size=0)
        for step in range(3):
            param.grad = sample((40, 96), signed=True) * 2.0**-step
            optimizer.step()
        return optimizer

    with use_backend("reference"):
        expected = stepped()
    ours = stepped()
    param, expected_param = (o.param_groups[0]["params"][0] for o in (ours, expected))
    assert same_bits(param.detach(), expected_param.detach())
    torch.save(ours.state_dict(), tmp_path / "state.pt")
    again = AdamW([param], lr=0.1, state_quantizers=pair, min_quantized_size=0)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(again.state[param][name].packed, ours.state[param][name].packed)
        assert again.state[param][name].quantizer == ours.state[param][name].quantizer


WITHOUT = "it must be a map with a formula and without a transform of its own"
TRANSFORMS = "sqrt, softsign, mu-law<mu>, pow<p>, log<octaves>"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("foo:DE@4s", f"unknown transform 'foo'; allowed are {TRANSFORMS}"),
        ("log:DE@4s", f"unknown transform 'log'; allowed are {TRANSFORMS}"),
        ("sqrt:@4s", "unknown map '' after the transform sqrt"),
        ("sqrt:softsign@4s", f"inner=softsign@4s cannot follow a transform; {WITHOUT}"),
        ("sqrt:sqrt:DE@4s", f"inner=sqrt:DE@4s cannot follow a transform; {WITHOUT}"),
        ("sqrt:lloyd@4s", f"inner=lloyd@4s cannot follow a transform; {WITHOUT}"),
        ("sqrt:log2@4u", f"inner=log2@4u cannot follow a transform; {WITHOUT}"),
        ("sqrt:mantissa@8s", "inner=mantissa@8s has values above 1; transforms end there"),
        ("pow100:DE@4s", "p=100.0 must be between 1/64 and 64"),
        ("mu-law0:DE@4s", "mu=0 must be between 1 and 1048576"),
        ("log121:DE@4s", "octaves=121 must be between 1 and 120"),
        ("sqrt:DE(nearest=1)@4s", "nearest='1' must be true or false"),
        ("sqrt:DE(nearest=true,nearest=true)@4s",
         "field 'nearest' of sqrt is given more than once"),
        ("sqrt:DE(x=1)@4s", "unknown field 'x' of DE; allowed are no fields"),
    ],
)  # fmt: skip
def test_bad_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(qmaps.errors.SpecError) as caught:
        qmaps.quantizer(f"B64/{spec}")
    assert str(caught.value) == f"spec='B64/{spec}': {message}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Transformed("cube", Linear(4)),
         f"transform='cube' is none of {TRANSFORMS}, such as sqrt"),
        (lambda: Transformed(3, Linear(4)), f"transform=3 is none of {TRANSFORMS}, such as sqrt"),
        (lambda: Transformed("sqrt", "linear@4s"), "inner='linear@4s' must be a map"),
        (lambda: Transformed("sqrt", Linear(4), nearest=1), "nearest=1 must be True or False"),
        (lambda: Transformed("sqrt", Log2(4)),
         f"inner=log2@4u cannot follow a transform; {WITHOUT}"),
        (lambda: Transformed("sqrt", qmaps.Codebook([0.0, 1.0], label="mine")),
         f"inner=mine@1u cannot follow a transform; {WITHOUT}"),
    ],
)  # fmt: skip
def test_bad_arguments(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert str(caught.value) == message
