"""Emulated steps give the states and parameters of the reference, bit for bit."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qmaps import optim
from qmaps.algebra.quantizer import QuantizedTensor, quantizer
from qmaps.cuda.layout import STEP_SCALAR
from qmaps.cuda.source import source_of
from qmaps.engines.rules import rules
from qmaps.engines.step_scalars import (
    Corrected,
    Decoupled,
    First,
    Lengthened,
    LengthenedRest,
    NesterovGradient,
    NesterovMoment,
    Power,
    PowerRest,
    RelativeStep,
    RootCorrection,
    Slowing,
    StepScalar,
    Unbiased,
    UnbiasedRest,
    Warmed,
    power,
    values_at,
)
from qmaps.ops.backends import use_backend
from qmaps.optim.base import QuantizedOptimizer
from tests.cuda.emulation import EmulatedEngine, build
from tests.helpers import Wrapped
from tests.optim.families import same_bits

pytestmark = pytest.mark.slow

SHAPES = ((96, 50), (5000,), (7, 3), (2049,))
QUANTIZED = tuple(shape for shape in SHAPES if shape != (7, 3))
"""Without the small one: its float32 states need a separate kernel for every rule."""
RULE_OPTIONS: tuple[tuple[type[QuantizedOptimizer], dict[str, Any]], ...] = (
    (optim.Adam, {"weight_decay": 0.1}),
    (optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
    (optim.NAdam, {"weight_decay": 0.1}),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.5}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "lr": 0.1}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, "lr": 0.1}),
    (optim.SGD, {"lr": 0.1}),
    (optim.RMSprop, {"momentum": 0.9}),
    (optim.RMSprop, {"centered": True, "momentum": 0.5}),
    (optim.Adagrad, {"lr_decay": 0.1}),
    (optim.Lion, {"weight_decay": 0.1}),
    (optim.AdEMAMix, {"weight_decay": 0.1, "t_alpha": 2, "t_beta3": 100}),
    (optim.Adan, {"maximize": True}),
    (optim.Adan, {"weight_decay": 0.1}),
    (optim.Adan, {"weight_decay": 0.1, "no_prox": True}),
    (optim.LAMB, {"maximize": True, "trust_clip": 0.5}),
    (optim.LAMB, {"max_unorm": 0.1, "weight_decay": 0.0}),
    (optim.LARS, {"nesterov": True, "trust_coefficient": 0.1}),
    (optim.LARS, {"max_unorm": 0.02, "lr": 0.3}),
    (optim.LARS, {"momentum": 0.0, "trust_coefficient": 0.1}),
    (optim.Adafactor, {"factored": False, "weight_decay": 0.1}),
    (optim.Adafactor, {"factored": False, "beta1": 0.9, "maximize": True, "d": 0.1}),
)


def parameters(
    dtype: torch.dtype = torch.float32, shapes: tuple[tuple[int, ...], ...] = SHAPES
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [p.requires_grad_() for p in values]


def set_gradients(params: list[Tensor], number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for p in params:
        exponents = torch.randint(-5, 2, p.shape, generator=generator).float()
        grad = torch.randn(p.shape, generator=generator) * 10**exponents
        p.grad = grad.to(p.dtype)
        p.grad.view(-1)[:3] = torch.tensor([0.0, -0.0, 1e-40])[: p.numel()]


def trained(
    kind: type[QuantizedOptimizer],
    steps: int,
    dtype: torch.dtype,
    options: dict[str, Any],
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
) -> QuantizedOptimizer:
    optimizer = kind(parameters(dtype, shapes), min_quantized_size=100, **options)
    for number in range(steps):
        set_gradients(optimizer.param_groups[0]["params"], number)
        optimizer.step()
    return optimizer


def pieces(optimizer: QuantizedOptimizer) -> list[Tensor]:
    results = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            results.append(p.detach())
            for value in optimizer.state[p].values():
                quantized = isinstance(value, QuantizedTensor)
                results += [value.packed, *value.scales] if quantized else [value]
    return results


def assert_same(ours: QuantizedOptimizer, theirs: QuantizedOptimizer) -> None:
    for a, b in zip(pieces(ours), pieces(theirs), strict=True):
        assert a.shape == b.shape
        assert same_bits(a, b)


def assert_as_reference(
    kind: type[QuantizedOptimizer],
    options: dict[str, Any],
    steps: int = 3,
    dtype: torch.dtype = torch.float32,
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
) -> QuantizedOptimizer:
    ours = trained(kind, steps, dtype, options, shapes)
    with use_backend("reference"):
        assert_same(ours, trained(kind, steps, dtype, options, shapes))
    return ours


@pytest.mark.fuzz
@pytest.mark.parametrize(("kind", "options"), RULE_OPTIONS)
def test_every_rule(
    kind: type[QuantizedOptimizer], options: dict[str, Any], on_device: EmulatedEngine
) -> None:
    """With one preset for each class, in turns; ``make fuzz`` runs all, and float32 states."""
    presets, shapes = ("8bit", "4bit", "paper-4bit"), SHAPES
    if "QMAPS_FUZZ" not in os.environ:
        classes = list(dict.fromkeys(cls for cls, _ in RULE_OPTIONS))
        presets, shapes = (presets[classes.index(kind) % 3],), QUANTIZED
    for preset in presets:
        options = {**options, "state_quantizers": preset}
        assert_as_reference(kind, options, shapes=shapes)
    assert any(name.startswith("step<") for name in on_device.launched)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("B2048/DE@8s", "B128/DE-0@8u"),
        ("B128/DE@4s", "B128/linear@4u"),
        ("B128/DE@4s+sr", "rank1/linear@4u+sr"),
        ("rank1x8/DE@8s", "B32x8/linear@4u"),
        ("B64&rank1/DE@5s", "logB128/log2@8u"),
        ("B100/DE@3s", "tensor/power2@8u"),
        (None, "col/DE-0@6u"),
        (None, "logB100/log2@8u"),
        ("B32xf16/softsign@8s", "B32xf16sq/sqrt@8u"),  # FlashOptim
        ("B32xe8m0/e4m3@8s", "B32xe8m0/e4m3@8u"),  # MXFP8
        ("B16xe4m3/e2m1@4s", "rank1xbf16/linear@4u"),  # NVFP4
        ("bf16+sr", "fp16"),
        ("B256/linear@12s+sr", "B64/linear0@16u"),
        ("B256/linear@8s+sr", "logB128/log2-0(in_log=true)@4u+sr"),
        ("B128/DE@4s", "logB128q0.1/log2-0(in_log=true)@2u+sr"),  # SOLO
        ("powB128r100352/e4m3@8s", "powB128r100352/e4m3@8u"),  # COAT
        ("powB64r16/linear@4s+sr", "logB128q0.1/log2-0@4u"),
        ("B512/DE@8s+sr", None),
    ],
)
def test_every_kind_of_format(
    first: str | None, second: str | None, on_device: EmulatedEngine
) -> None:
    quantizers = {"exp_avg": first, "exp_avg_sq": second}
    assert_as_reference(optim.AdamW, {"state_quantizers": quantizers})
    assert all("step" in n or n in {"begin_step", "write_words"} for n in on_device.launched)


@pytest.mark.parametrize(
    "options",
    [
        {"state_quantizers": "rank1B16x16/linear@4s + B64/linear@4u"},
        {"state_quantizers": "B100/DE@4s + logB100q0.1/log2@4u"},
        {"state_quantizers": "rms4B64/DE@8s + B64/linear@4u"},
        {"state_quantizers": "lowrank2(B64/DE@8s)+B64/DE@4s + rank1/linear@4u"},
    ],
)
def test_unsupported_quantizers_step_on_the_reference(
    options: dict[str, Any], on_device: EmulatedEngine
) -> None:
    ours = trained(optim.AdamW, 3, torch.float32, options)
    assert ours.engine_counts().get("reference", 0) == sum(np.prod(shape) > 100 for shape in SHAPES)
    with use_backend("reference"):
        theirs = trained(optim.AdamW, 3, torch.float32, options)
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.AdamW, {"state_quantizers": "B256/DE@8s+sr + rank1/linear@4u"}),
        (optim.AdEMAMix, {"state_quantizers": "8bit", "t_alpha": 2, "t_beta3": 4}),
        (optim.LAMB, {"state_quantizers": None}),
        (optim.SGD, {"lr": 0.1}),
    ],
)
def test_states_that_begin_anew(
    kind: type[QuantizedOptimizer], options: dict[str, Any], on_device: EmulatedEngine
) -> None:
    options = {**options, "reset_every": 2}
    assert_as_reference(kind, options, steps=5)
    assert trained(kind, 5, torch.float32, options).engine_counts().get("reference", 0) == 0
    assert any(name.startswith("step<") for name in on_device.launched)


def test_resets_that_begin_late_and_end(on_device: EmulatedEngine) -> None:
    def run() -> QuantizedOptimizer:
        optimizer = trained(optim.AdamW, 3, torch.float32, {"state_quantizers": "8bit"})
        for number, every in ((3, 2), (4, 2), (5, None), (6, None)):
            optimizer.param_groups[0]["reset_every"] = every
            set_gradients(optimizer.param_groups[0]["params"], number)
            optimizer.step()
        return optimizer

    ours = run()
    with use_backend("reference"):
        assert_same(ours, run())


@pytest.mark.parametrize("rounding", [False, True])
def test_bfloat16(rounding: bool, on_device: EmulatedEngine) -> None:
    options = {"stochastic_rounding": rounding, "state_quantizers": "8bit", "seed": 7}
    assert_as_reference(optim.AdamW, options, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "dtype"), [(optim.AdamW, torch.bfloat16), (optim.LAMB, torch.float16)]
)
def test_master_copies(
    kind: type[QuantizedOptimizer], dtype: torch.dtype, on_device: EmulatedEngine
) -> None:
    options = {"master_weights": True, "state_quantizers": "8bit"}
    optimizer = assert_as_reference(kind, options, dtype=dtype, shapes=QUANTIZED)
    kinds = {name for name in on_device.launched if name.startswith("step<")}
    assert {name.split(", ")[1] for name in kinds} == {"float"}
    for p in optimizer.param_groups[0]["params"]:
        assert same_bits(p, optimizer.state[p]["master_param"].to(dtype))


@pytest.mark.parametrize(
    ("preset", "kind", "form"),
    [
        ("8bit", optim.AdamW, "bf16+8"),
        ("paper-4bit", optim.AdamW, "bf16+16"),
        ("8bit", optim.LAMB, "bf16+8"),
        ("8bit", optim.SM3, "bf16+16"),
    ],
)
def test_split_master_weights(
    preset: str, kind: type[QuantizedOptimizer], form: str, on_device: EmulatedEngine
) -> None:
    options = {"master_weights": form, "state_quantizers": preset}
    optimizer = assert_as_reference(kind, options, dtype=torch.bfloat16, shapes=QUANTIZED)
    kinds = {name for name in on_device.launched if name.startswith("step<")}
    bits = {"bf16+8": 8, "bf16+16": 16}[form]
    assert {name.split(", ")[1] for name in kinds} == {f"Split<std::int{bits}_t>"}
    remainders = [state["master_remainder"] for state in optimizer.state.values()]
    assert all(bool(remainder.any()) for remainder in remainders)


def test_groups_and_changing_hyper_parameters(on_device: EmulatedEngine) -> None:
    def run() -> QuantizedOptimizer:
        params = parameters()
        groups = [
            {"params": params[:2], "lr": torch.tensor(1e-2)},
            {"params": params[2:3], "state_quantizers": None},
            {"params": params[3:], "betas": (0.5, 0.9), "lr": torch.tensor(0.1).double()},
        ]
        optimizer = optim.AdamW(groups, state_quantizers="8bit", min_quantized_size=100)
        for number in range(4):
            set_gradients(params, number)
            if number == 2:
                params[0].grad = None
            optimizer.param_groups[1]["lr"] = 10.0**-number
            optimizer.param_groups[0]["lr"].mul_(0.5)
            optimizer.step()
        return optimizer

    ours = run()
    with use_backend("reference"):
        assert_same(ours, run())


def test_more_parameters_than_one_launch_describes(on_device: EmulatedEngine) -> None:
    assert_as_reference(optim.SGD, {"lr": 0.1}, steps=2, shapes=((5,),) * 300)
    assert on_device.launched[:2] == ["write_words"] * 2


def test_a_plan_repeats(on_device: EmulatedEngine) -> None:
    params = parameters()
    optimizer = optim.AdamW8bit(params, min_quantized_size=100)
    set_gradients(params, 0)
    optimizer.step()
    on_device.launched.clear()
    optimizer.step()
    # Nothing has changed: the step is begun and taken, for quantized and for small parameters.
    assert len(on_device.launched) == 3
    assert on_device.launched[0] == "begin_step"
    on_device.launched.clear()
    set_gradients(params, 1)
    optimizer.step()
    assert on_device.launched[0] == "write_words"


def test_gradients_do_not_outlive_their_step(on_device: EmulatedEngine) -> None:
    param = torch.nn.Parameter(torch.zeros(5000))
    optimizer = optim.AdamW8bit([param])
    references = []
    for _ in range(2):
        param.grad = torch.ones_like(param)
        references.append(weakref.ref(param.grad))
        optimizer.step()
        param.grad = None
    assert on_device.launched
    assert [reference() is None for reference in references] == [True, True]


def test_state_dict_goes_between_engines(on_device: EmulatedEngine) -> None:
    options = {"state_quantizers": "paper-4bit", "min_quantized_size": 100}
    uninterrupted = trained(optim.AdamW, 4, torch.float32, {"state_quantizers": "paper-4bit"})
    half = trained(optim.AdamW, 2, torch.float32, {"state_quantizers": "paper-4bit"})
    saved = io.BytesIO()
    torch.save(half.state_dict(), saved)
    saved.seek(0)
    for backend in ("reference", None):
        params = [p.detach().clone().requires_grad_() for p in half.param_groups[0]["params"]]
        resumed = optim.AdamW(params, **options)
        saved.seek(0)
        resumed.load_state_dict(torch.load(saved, weights_only=True))
        for number in (2, 3):
            set_gradients(params, number)
            if backend:
                with use_backend(backend):
                    resumed.step()
            else:
                resumed.step()
        assert_same(resumed, uninterrupted)


def test_overflow_leaves_out_the_step(on_device: EmulatedEngine) -> None:
    params = parameters()
    optimizer = optim.AdamW8bit(params, min_quantized_size=100)
    assert optimizer._step_supports_amp_scaling
    set_gradients(params, 0)
    optimizer.step()
    before = [piece.clone() for piece in pieces(optimizer)]
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(1.0), torch.tensor(4.0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(pieces(optimizer), before, strict=True))
    assert optimizer.skipped_steps == 1
    assert copy.deepcopy(optimizer).skipped_steps == 1
    # Gradients are divided by the scale.
    plain = optim.AdamW8bit(
        [p.detach().clone().requires_grad_() for p in params], min_quantized_size=100
    )
    plain.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, plain.param_groups[0]["params"], strict=True):
        q.grad = p.grad / 4.0
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    plain.step()
    assert_same(optimizer, plain)


@pytest.mark.parametrize(
    ("steps", "dtype"), [(2**24 - 2, torch.float32), (2**32 - 2, torch.float64)]
)
def test_steps_beyond_float32_and_32_bits(
    steps: int, dtype: torch.dtype, on_device: EmulatedEngine
) -> None:
    quantizers = {"exp_avg": "B128/DE@8s+sr", "exp_avg_sq": "rank1/linear@4u+sr"}

    def run() -> QuantizedOptimizer:
        options = {"state_quantizers": quantizers, "stochastic_rounding": True, "seed": 3}
        optimizer = trained(optim.AdamW, 1, torch.bfloat16, options)
        for state in optimizer.state.values():
            state["step"] = torch.tensor(steps, dtype=dtype)
        for number in range(4):
            set_gradients(optimizer.param_groups[0]["params"], number)
            optimizer.step()
        return optimizer

    ours = run()
    assert any(name.startswith("step<") for name in on_device.launched)
    assert {int(state["step"]) for state in ours.state.values()} == {steps + 4}
    with use_backend("reference"):
        assert_same(ours, run())


@pytest.mark.parametrize("policy", ["skip", "propagate", "raise"])
def test_gradients_that_are_not_finite(policy: str, on_device: EmulatedEngine) -> None:
    def run() -> QuantizedOptimizer:
        params = parameters()
        options = {"nonfinite": policy, "state_quantizers": "8bit"}
        optimizer = optim.AdamW(params, min_quantized_size=100, **options)
        for number in range(3):
            set_gradients(params, number)
            if number == 1:
                params[0].grad[5, 5] = float("nan")
            if number == 1 and policy == "raise":
                with pytest.raises(Exception, match="holds 1 NaN or infinite elements"):
                    optimizer.step()
            else:
                optimizer.step()
        return optimizer

    ours = run()
    assert ours.skipped_steps == (policy == "skip")
    with use_backend("reference"):
        assert_same(ours, run())


def test_unsupported_layouts_step_on_the_reference(on_device: EmulatedEngine) -> None:
    def run() -> QuantizedOptimizer:
        params = parameters()
        with torch.no_grad():
            params[0] = torch.randn(8, 6, 20, 10).to(memory_format=torch.channels_last)
            params[0].mul_(0).add_(1)
        params[0].requires_grad_()
        optimizer = optim.AdamW8bit(params, min_quantized_size=100)
        for number in range(2):
            set_gradients(params, number)
            optimizer.step()
        return optimizer

    ours = run()
    with use_backend("reference"):
        assert_same(ours, run())


def test_tensors_without_elements_at_their_address_step_on_the_reference(
    on_device: EmulatedEngine,
) -> None:
    params = [p if n else Wrapped(p.detach()) for n, p in enumerate(parameters())]
    optimizer = optim.AdamW8bit(params, min_quantized_size=100)
    for number in range(2):
        set_gradients(params, number)
        optimizer.step()
    assert on_device.launched
    plain = trained(optim.AdamW8bit, 2, torch.float32, {})
    for param, expected in zip(params, plain.param_groups[0]["params"], strict=True):
        actual = param.inner if isinstance(param, Wrapped) else param
        assert torch.equal(actual, expected)
    x = torch.linspace(-1, 1, 600)
    q = quantizer("B64/DE@4s")
    assert torch.equal(q.quantize(Wrapped(x)).packed, q.quantize(x).packed)


def test_fitted_maps_between_fits(on_device: EmulatedEngine) -> None:
    options = {"state_quantizers": {"exp_avg": "B256/quantile@8s"}, "refit_every": 3}
    assert_as_reference(optim.AdamW, options, steps=5)
    assert any("step<" in name for name in on_device.launched)


def test_rules_are_those_of_the_headers(
    device: EmulatedEngine, request: pytest.FixtureRequest
) -> None:
    checks = "\n".join(
        f'static_assert(same(Declared<{rule.type}>::kName, "{name}") && '
        f'same(Declared<{rule.type}>::kStateNames, "{states}") && '
        f'same(Declared<{rule.type}>::Scalars::kScalarNames, "{", ".join(rule.scalars)}"));'
        for (name, states), rule in rules().items()
    )
    build(
        source_of("step.cuh"),
        "constexpr bool same(const char* a, const char* b) {\n"
        "    while (*a && *a == *b) { ++a; ++b; }\n    return *a == *b;\n}\n" + checks,
        request.config.cache.mkdir("cuda-emulation"),
    )


@pytest.mark.parametrize("kind", [optim.LAMB, optim.LARS], ids=lambda kind: kind.__name__)
def test_norms_of_many_chunks(kind: type[QuantizedOptimizer], on_device: EmulatedEngine) -> None:
    def run() -> QuantizedOptimizer:
        sizes = (1, 4095, 4097, 9 * 4096, 70_001)
        generator = torch.Generator().manual_seed(1)
        params = [torch.randn(n, generator=generator).requires_grad_() for n in sizes]
        optimizer = kind(params, lr=0.5, state_quantizers=None)
        for number in range(2):
            set_gradients(params, number)
            optimizer.step()
        return optimizer

    ours = run()
    assert [n.partition("<")[0] for n in on_device.launched[-4:]] == [
        "begin_step", "step_norms", "finish_norms", "step",
    ]  # fmt: skip
    with use_backend("reference"):
        assert_same(ours, run())


KINDS = [
    StepScalar(0.1),
    Corrected(1e-3, 0.9),
    RootCorrection(0.0, 0.999),
    Decoupled(1e-3, 0.1),
    First(-0.0, 0.9),
    Slowing(0.1, 0.3),
    Warmed(5.0, 1000),
    *(cls(a) for cls in (Power, PowerRest) for a in (-0.8, -0.5, 0.0, -3.0)),
    *(cls(a) for cls in (Unbiased, UnbiasedRest) for a in (0.999, 0.5, 0.0)),
    RelativeStep(0.01),
    RelativeStep(1.0),
    *(
        cls(2e-3, beta1, decay)
        for cls in (NesterovGradient, NesterovMoment)
        for beta1, decay in ((0.9, 4e-3), (0.0, 4e-3), (0.95, 0.0), (0.99, 100.0))
    ),
    *(
        cls(last, first, steps)
        for cls in (Lengthened, LengthenedRest)
        for last, first in ((0.9999, 0.9), (0.999999, 0.0), (0.3, 1e-300))
        for steps in (1, 7, 100_000)
    ),
]


def test_step_scalars_have_the_hosts_bits(
    device: EmulatedEngine, request: pytest.FixtureRequest
) -> None:
    library = build(
        source_of("prologue.cuh"),
        'extern "C" double value(const qmaps::StepScalar* given, std::uint64_t step, '
        "float before) {\n    return qmaps::value_of(*given, step, before);\n}\n",
        request.config.cache.mkdir("cuda-emulation"),
    )
    library.value.restype = ctypes.c_double
    for constant in KINDS:
        structure = np.zeros((), dtype=STEP_SCALAR)
        for name in ("kind", "a", "b", "c"):
            structure[name] = getattr(constant, name)
        for step in (1, 2, 3, 6, 7, 8, 99, 1000, 54321, 100_000, 2**24 + 1, 2**33 + 1):
            before = 0.75 ** min(step, 300)
            arguments = ctypes.c_void_p(structure.ctypes.data), ctypes.c_uint64(step)
            actual = library.value(*arguments, ctypes.c_float(before))
            (expected,) = values_at([constant], step, ctypes.c_float(before).value)
            assert actual.hex() == expected.hex(), (constant, step)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 1000, 123456])
def test_powers(exponent: int) -> None:
    assert power(0.999, exponent) == pytest.approx(0.999**exponent, rel=1e-14)
