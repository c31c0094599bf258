"""On a real device: the bits of the reference there and of the CPU, in streams and in graphs.

``-k small`` selects a part, short enough for a sanitizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps import optim, quantiles
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadValueError, NonFiniteError
from qmaps.ops.backends import cuda_engine, use_backend
from qmaps.optim import AdamW, QuantizedOptimizer
from tests.optim.families import FUSED_FAMILIES, Family, label, same_bits

pytestmark = [pytest.mark.slow, pytest.mark.gpu]

DEVICE, CPU = torch.device("cuda", 0), torch.device("cpu")
# The large one has more elements than a device takes at once. No side is a multiple of anything.
SIZES = {"small": (67, 131), "large": (2311, 1031)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPECS = (
    "B256/DE@8s", "B2048/DE-0@8u", "B128/DE@4s", "B128/linear@4u", "B64/linear0@3s", "B512/DE@6s",
    "rank1/linear@4u", "row/DE@5s", "col/DE@8s", "tensor/linear@8u", "B64&rank1/DE@4s",
    "B32x8/DE@4s", "rank1x8/linear@2s", "B100/power2@7s", "logB128/log2@8u",
)  # fmt: skip
PAIRS = {
    "8bit": "8bit",
    "4bit": "4bit",
    "paper-4bit": "paper-4bit",
    "blocks": {"exp_avg": "B128/DE@4s", "exp_avg_sq": "B128/linear@4u"},
    "x8": {"exp_avg": "B32x8/DE@4s", "exp_avg_sq": "rank1x8/linear@8u"},
    "sr": {"exp_avg": "B256/DE@8s+sr", "exp_avg_sq": "rank1/linear@4u+sr"},
    "mixed": {"exp_avg": None, "exp_avg_sq": "B256/DE-0@8u"},
    "32bit": None,
}

Answers = dict[str, Tensor]
Make = Callable[..., QuantizedOptimizer]
sizes = pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels launched by the engine."""
    engine: Any = cuda_engine(torch.empty(1, device=DEVICE))
    launch, names = engine.launch, []

    def noted(entry: object, *arguments: object, **named: object) -> None:
        names.append(str(entry))
        launch(entry, *arguments, **named)

    monkeypatch.setattr(engine, "launch", noted)
    return names


def assert_same(answers: Callable[[torch.device], Answers]) -> None:
    """Equal bits from the engine, from the reference on the same device, and from the CPU."""
    actual = answers(DEVICE)
    with use_backend("reference"):
        reference = answers(DEVICE)
    for whose, expected in (("the reference", reference), ("the CPU", answers(CPU))):
        assert actual.keys() == expected.keys()
        for name, value in actual.items():
            assert same_bits(value.cpu(), expected[name].cpu()), f"{name} is not that of {whose}"


def sample(shape: tuple[int, ...], *, signed: bool = True, seed: int = 1) -> Tensor:
    """Values of many magnitudes, with some blocks of zeros."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=draw) * torch.exp2(4 * torch.randn(shape, generator=draw))
    x.view(-1)[300:900] = 0
    return x if signed else x.abs()


def parts(t: QuantizedTensor) -> Answers:
    """Codes, scales and values."""
    scales = {f"scales {number}": scale for number, scale in enumerate(t.scales)}
    values = {str(dtype): t.dequantize(dtype=dtype) for dtype in DTYPES}
    return {"codes": t.packed, **scales, **values}


@sizes
@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("spec", SPECS)
def test_codes_scales_and_values(
    spec: str, rounding: str, shape: tuple[int, ...], launched: list[str]
) -> None:
    q = qmaps.quantizer(spec + rounding)
    x = sample(shape, signed=q.map.signed)
    key = qmaps.RoundingKey(seed=5, tensor=3, step=7, offset=2) if rounding else None
    for dtype in DTYPES if shape == SIZES["small"] else DTYPES[:1]:
        if dtype == torch.float16:
            x = x.clamp(-6e4, 6e4)
        values = x.to(dtype)
        assert_same(lambda device, values=values: parts(q.quantize(values.to(device), key=key)))
    assert launched


@sizes
def test_a_codebook_without_structure(shape: tuple[int, ...], launched: list[str]) -> None:
    draw = torch.Generator().manual_seed(3)
    book = qmaps.Codebook((torch.randn(256, generator=draw) / 3).clamp(-1, 1), label="random")
    q = qmaps.quantizer("B256/random@8s", codebooks=[book])
    x = sample(shape)
    assert_same(lambda device: parts(q.quantize(x.to(device))))
    assert launched


def test_views_that_begin_anywhere_small() -> None:
    memory, q = sample((5000,)), qmaps.quantizer("B256/DE@4s")
    for dtype in DTYPES:
        for start in (1, 2, 3, 5):
            clamped = memory.clamp(-6e4, 6e4).to(dtype)
            assert_same(
                lambda device, clamped=clamped, start=start: parts(
                    q.quantize(clamped.to(device)[start:])
                )
            )
    expected = q.quantize(memory[:4096])
    packed = torch.full((4096,), 255, dtype=torch.uint8, device=DEVICE)[1:2049]
    scales = tuple(torch.zeros(17, device=DEVICE)[1:] for _ in expected.scales)
    out = QuantizedTensor(q, (4096,), packed, scales)
    q.quantize(memory[:4096].to(DEVICE), out=out)
    assert torch.equal(out.packed.cpu(), expected.packed)
    values = torch.zeros(4097, device=DEVICE)
    out.dequantize(out=values[1:])
    assert torch.equal(values[1:].cpu(), expected.dequantize())
    assert values[0] == 0


def test_bad_values_and_wrong_devices_small() -> None:
    q = qmaps.quantizer("B256/DE@8s")
    x = sample((3000,))
    for spec in ("B256/DE@8s", "rank1/linear@4s"):
        bad = x.to(DEVICE)
        bad[2999] = float("nan")
        with pytest.raises(NonFiniteError, match="the first at flat index 2999"):
            qmaps.quantizer(spec).quantize(bad)
    with pytest.raises(BadValueError, match="negative"):
        qmaps.quantizer("B256/DE-0@8u").quantize(x.to(DEVICE))
    on_cpu, on_gpu = q.quantize(x), q.quantize(x.to(DEVICE))
    with pytest.raises(BadValueError, match=f"^out must be on {DEVICE}, got cpu$"):
        q.quantize(x.to(DEVICE), out=on_cpu)
    with pytest.raises(BadValueError, match=f"^out must be on cpu, got {DEVICE}$"):
        q.quantize(x, out=on_gpu)
    # Values may be asked for where the codes are not.
    assert torch.equal(on_gpu.dequantize(out=torch.empty(3000)), on_cpu.dequantize())
    decoded = on_cpu.dequantize(out=torch.empty(3000, device=DEVICE))
    assert torch.equal(decoded.cpu(), on_cpu.dequantize())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_device_that_is_not_the_current_one_small() -> None:
    q, x = qmaps.quantizer("rank1/linear@4s"), sample(SIZES["small"])
    second = torch.device("cuda", 1)
    assert torch.cuda.current_device() == 0
    assert torch.equal(q.quantize(x.to(second)).packed.cpu(), q.quantize(x).packed)
    mixed = q.quantize(x)
    parted = QuantizedTensor(q, mixed.shape, mixed.packed.to(second), mixed.to(DEVICE).scales)
    with pytest.raises(RuntimeError):
        parted.dequantize()


class Stepping:
    """An optimizer on one device, with the same gradients on every device.

    Args:
        make: the optimizer of these parameters.
        device: of the parameters.
        shape: of the largest parameter.
        dtype: of all parameters.
    """

    def __init__(
        self, make: Make, device: torch.device, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._draw = torch.Generator().manual_seed(5)
        shapes = (shape, (5000,), (33, 127), (7,), ())
        self.params = [
            torch.randn(size, generator=self._draw).to(dtype).to(device) for size in shapes
        ]
        self.optimizer = make(self.params)

    def gradients(self, *, missing: int | None = None) -> list[Tensor | None]:
        """New gradients, on the CPU; None for the missing one."""
        drawn = [1e-2 * torch.randn(p.shape, generator=self._draw) for p in self.params]
        return [None if number == missing else g for number, g in enumerate(drawn)]

    def give(self, gradients: list[Tensor | None], *, in_place: bool = False) -> None:
        """Set the gradients of the parameters, `in_place` in the storage of the last ones."""
        for p, g in zip(self.params, gradients, strict=True):
            if in_place and g is not None and p.grad is not None:
                p.grad.copy_(g)
            else:
                p.grad = None if g is None else g.to(p.dtype).to(p.device)

    def take(self, steps: int, *, missing: dict[int, int] | None = None) -> None:
        """Take steps, some without the gradient of a parameter."""
        for step in range(steps):
            self.give(self.gradients(missing=(missing or {}).get(step)))
            self.optimizer.step()

    def answers(self) -> Answers:
        """Parameters and states."""
        results = {f"parameter {number}": p for number, p in enumerate(self.params)}
        for number, p in enumerate(self.params):
            for name, state in self.optimizer.state[p].items():
                if isinstance(state, QuantizedTensor):
                    results |= {
                        f"{name} {number} {of}": value for of, value in parts(state).items()
                    }
                elif isinstance(state, Tensor):
                    results[f"{name} {number}"] = state.float()
        return {name: value.detach() for name, value in results.items()}


def stepped(
    make: Make, shape: tuple[int, ...], dtype: torch.dtype
) -> Callable[[torch.device], Answers]:
    def answers(device: torch.device) -> Answers:
        stepping = Stepping(make, device, shape, dtype)
        stepping.take(4, missing={2: 1})
        return stepping.answers()

    return answers


@sizes
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("preset", ["8bit", "4bit", "paper-4bit", "32bit"])
@pytest.mark.parametrize("family", FUSED_FAMILIES, ids=label)
def test_steps_of_every_rule(
    family: Family, preset: str, dtype: torch.dtype, shape: tuple[int, ...], launched: list[str]
) -> None:
    def make(params: list[Tensor], options: dict[str, Any]) -> QuantizedOptimizer:
        return family.full(params, lr=family.rate, state_quantizers=preset, **options)

    # To a kernel all options are numbers or missing states: the first and last differ most.
    for options in (family.options[0], family.options[-1]):
        assert_same(stepped(lambda params, options=options: make(params, options), shape, dtype))
    assert any("step" in name for name in launched)


def adamw(pair: str, **options: Any) -> Make:
    return lambda params: AdamW(params, lr=1e-2, state_quantizers=PAIRS[pair], **options)


@sizes
@pytest.mark.parametrize("pair", PAIRS)
def test_steps_with_every_kind_of_scale(pair: str, shape: tuple[int, ...]) -> None:
    assert_same(stepped(adamw(pair), shape, torch.float32))
    assert_same(stepped(adamw(pair, stochastic_rounding=True), shape, torch.bfloat16))


def test_parameters_and_gradients_that_begin_anywhere_small() -> None:
    def answers(device: torch.device) -> Answers:
        memory = [sample((3, 9001), seed=seed).to(device) for seed in (1, 2)]
        params = [memory[0][number, number : number + 8999] for number in range(3)]
        optimizer = adamw("8bit")(params)
        for _ in range(3):
            for number, p in enumerate(params):
                p.grad = memory[1][number, 2 - number : 9001 - number]
            optimizer.step()
        return {f"parameter {number}": p for number, p in enumerate(params)}

    assert_same(answers)


def test_parameters_on_both_devices_small() -> None:
    expected = Stepping(adamw("4bit"), CPU, SIZES["small"], torch.float32)
    mixed = Stepping(adamw("4bit"), CPU, SIZES["small"], torch.float32)
    mixed.params[0] = mixed.params[0].to(DEVICE)
    mixed.params[3] = mixed.params[3].to(DEVICE)
    mixed.optimizer = adamw("4bit")(mixed.params)
    for stepping in (expected, mixed):
        stepping.take(3)
    assert mixed.optimizer.state[mixed.params[0]]["exp_avg"].device == DEVICE
    assert_equal(mixed, expected)


def test_a_checkpoint_goes_from_one_device_to_the_other_small() -> None:
    on_cpu = Stepping(adamw("4bit"), CPU, SIZES["small"], torch.float32)
    on_cpu.take(2)
    on_gpu = Stepping(adamw("4bit"), DEVICE, SIZES["small"], torch.float32)
    on_gpu.take(2)
    for p in on_gpu.params:
        p.zero_()
    on_gpu.optimizer.load_state_dict(on_cpu.optimizer.state_dict())
    with torch.no_grad():
        for p, q in zip(on_gpu.params, on_cpu.params, strict=True):
            p.copy_(q)
    for stepping in (on_cpu, on_gpu):
        stepping.take(2)
    assert_equal(on_gpu, on_cpu)


def assert_equal(ours: Stepping, theirs: Stepping) -> None:
    actual, expected = ours.answers(), theirs.answers()
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert same_bits(value.cpu(), expected[name].cpu()), name


@sizes
def test_gradients_that_are_not_finite(shape: tuple[int, ...]) -> None:
    for policy in ("propagate", "skip"):

        def answers(device: torch.device, policy: str = policy) -> Answers:
            stepping = Stepping(adamw("8bit", nonfinite=policy), device, shape, torch.float32)
            stepping.take(2)
            bad = stepping.gradients()
            bad[0].view(-1)[-1] = float("inf")
            stepping.give(bad)
            stepping.optimizer.step()
            stepping.take(1)
            skipped = torch.tensor(stepping.optimizer.skipped_steps)
            assert skipped == (policy == "skip")
            return stepping.answers() | {"skipped": skipped}

        assert_same(answers)


@pytest.mark.parametrize("pair", ["8bit", "4bit", "paper-4bit"])
def test_a_side_stream_small(pair: str) -> None:
    expected = Stepping(adamw(pair), DEVICE, SIZES["small"], torch.float32)
    expected.take(4)
    actual = Stepping(adamw(pair), DEVICE, SIZES["small"], torch.float32)
    actual.take(1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            new = [g.to(DEVICE) for g in actual.gradients()]
            # What runs in another stream does not wait for this, and reads the last gradients.
            torch.cuda._sleep(20_000_000)
            actual.give(new, in_place=True)
            actual.optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    assert_equal(actual, expected)


@sizes
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_recorded_step_is_an_eager_one(
    pair: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    make = adamw(pair, stochastic_rounding=dtype == torch.bfloat16)
    eager, recorded = (Stepping(make, DEVICE, shape, dtype) for _ in range(2))
    eager.take(6)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        recorded.take(1)
        recorded.give(recorded.gradients(), in_place=True)
        recorded.optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded.optimizer.step()
    for _ in range(4):
        recorded.give(recorded.gradients(), in_place=True)
        graph.replay()
    assert_equal(recorded, eager)


@pytest.mark.parametrize("pair", ["8bit", "4bit", "paper-4bit"])
def test_a_scaler_of_gradients_small(pair: str) -> None:
    expected = Stepping(adamw(pair), DEVICE, SIZES["small"], torch.float32)
    actual = Stepping(adamw(pair), DEVICE, SIZES["small"], torch.float32)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=1000)
    scaler.scale(torch.ones((), device=DEVICE))  # initializes the scale, a power of two
    for step in range(4):
        new = actual.gradients()
        scaled = [1024 * g for g in new]
        if step == 2:
            scaled[1][17] = float("inf")
            for p in actual.params:
                p.grad = None
            before = {name: value.clone() for name, value in actual.answers().items()}
        actual.give(scaled)
        scaler.step(actual.optimizer)
        if step == 2:
            assert all(same_bits(value, before[name]) for name, value in actual.answers().items())
            assert scaler._found_inf_per_device(actual.optimizer)[DEVICE] == 1
        else:
            expected.give(new)
            expected.optimizer.step()
        scaler.update(1024.0)
    assert_equal(actual, expected)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_a_step_waits_for_nothing(pair: str, dtype: torch.dtype) -> None:
    make = adamw(pair, stochastic_rounding=True, nonfinite="skip")
    stepping = Stepping(make, DEVICE, SIZES["large"], dtype)
    stepping.take(2)
    for _ in range(2):  # the gradients lie elsewhere each time
        stepping.give(stepping.gradients())
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            stepping.optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("spec", ["B256/DE@8s", "rank1/linear@4s", "B32x8/DE@4s", "B128/DE@4s+sr"])
def test_quantizing_unchecked_waits_for_nothing(spec: str) -> None:
    q, x = qmaps.quantizer(spec), sample(SIZES["large"]).to(DEVICE)
    t, y = q.quantize(x), torch.empty_like(x)
    t.dequantize(out=y)
    torch.cuda.set_sync_debug_mode("error")
    try:
        q.quantize_unchecked(x, out=t)
        t.dequantize(out=y)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("pair", ["8bit", "4bit", "paper-4bit"])
def test_a_step_needs_no_memory_for_each_element(pair: str) -> None:
    stepping = Stepping(adamw(pair), DEVICE, SIZES["large"], torch.float32)
    stepping.take(2)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    stepping.optimizer.step()
    more = torch.cuda.max_memory_allocated() - before
    assert more < sum(p.numel() for p in stepping.params)


@sizes
@pytest.mark.parametrize("kind", [quantiles.exact, quantiles.sram])
def test_quantiles(kind: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    x = sample(shape)
    for values in (x, x.bfloat16(), x.t()[1:], torch.full(shape, 3.0)):
        for num, offset in ((256, None), (16, 0.0)):
            assert_same(
                lambda device, values=values, num=num, offset=offset: {
                    "quantiles": kind(values.to(device), num, offset=offset)
                }
            )
    bad = x.to(DEVICE)
    bad[3, 5] = float("nan")
    with pytest.raises(NonFiniteError, match=r"^x holds 1 NaN or infinite elements"):
        kind(bad)


@sizes
@pytest.mark.parametrize("spec", SPECS)
def test_metrics(spec: str, shape: tuple[int, ...]) -> None:
    q = qmaps.quantizer(spec)
    x = sample(shape, signed=q.map.signed)
    errors = q.error(x.to(DEVICE))
    with use_backend("reference"):
        reference = q.error(x.to(DEVICE))
    for expected in (reference, q.error(x)):
        # Sums are taken in any order, in float64.
        assert errors == pytest.approx(expected, rel=1e-9, nan_ok=True)
    bad = x.to(DEVICE)
    bad[3, 5] = float("inf")
    with pytest.raises(NonFiniteError):
        q.error(bad)


def test_learning_small() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(128, 96, device=DEVICE)
    x, aim = torch.randn(64, 128, device=DEVICE), torch.randn(64, 96, device=DEVICE)
    optimizer = optim.AdamW4bit(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(x) - aim).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
