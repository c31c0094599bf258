"""Gradient release: the bits of the plain loop, and no gradient after a backward pass."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qmaps import optim
from qmaps.engines.native.plan import NativeEngine
from qmaps.errors import BadTypeError, BadValueError
from qmaps.lpmm import LPMMAdam, convert
from qmaps.optim import AdamW8bit, Muon8bit, muon_groups, records, release, release_gradients
from tests.training.runs import assert_same

QUANTIZED = [
    name
    for name in optim.__all__
    if name.endswith(("4bit", "8bitFactor")) and not getattr(optim, name).takes_all_gradients
]
OTHERS = {
    "Adafactor8bit": {},
    "Adafactor": {"apollo_rank": 4, "seed": 3},
    "SM3": {"state_quantizers": "8bit"},
    "AdamW": {"master_weights": True, "reset_every": 2},
    "NAdam": {"state_quantizers": "B64/quantile@4s + B64/quantile@4u", "refit_every": 2},
}


class Net(nn.Module):
    """Two matrices, one of them used twice, with an embedding tied to the head."""

    def __init__(self, bias: bool = True, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(64, 72)
        self.hidden = nn.Linear(72, 72, bias=bias)
        self.head = nn.Linear(72, 64, bias=False)
        self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(torch.tanh(self.hidden(torch.tanh(self.hidden(x)))))


def loss_of(model: nn.Module, number: int) -> Tensor:
    tokens = torch.randint(64, (40,), generator=torch.Generator().manual_seed(number))
    return nn.functional.cross_entropy(model(tokens).float(), tokens.roll(1))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range = range(4),
    clip: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train in a loop for both ways."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    losses = []
    for number in steps:
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        clip()
        optimizer.step()
        scheduler.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", [*QUANTIZED, *OTHERS])
def test_every_rule_has_the_bits_of_the_plain_loop(name: str) -> None:
    options = OTHERS.get(name, {"stochastic_rounding": True})
    models = [Net(bias="Muon" not in name, dtype=torch.bfloat16) for _ in range(2)]
    plain, released = (
        getattr(optim, name)(model.named_parameters(), **options) for model in models
    )
    release_gradients(models[1], released)
    assert train(models[0], plain) == train(models[1], released)
    assert all(param.grad is None for param in models[1].parameters())
    assert_same(plain, released)


def pair(**options: Any) -> tuple[Net, Net, AdamW8bit, AdamW8bit]:
    """Two equal models with their optimizers."""
    models = Net(), Net()
    return *models, *(AdamW8bit(m.named_parameters(), lr=0.01, **options) for m in models)


def test_clipping_resuming_and_removing_are_those_of_the_plain_loop() -> None:
    plain, released, a, b = pair()
    release = release_gradients(released, b, clip_value=1e-3)
    clip = lambda: nn.utils.clip_grad_value_(plain.parameters(), 1e-3)  # noqa: E731
    assert train(plain, a, clip=clip) == train(released, b)
    resumed = Net()
    resumed.load_state_dict(released.state_dict())
    c = AdamW8bit(resumed.named_parameters())
    release_gradients(resumed, c, clip_value=1e-3)
    c.load_state_dict(copy.deepcopy(b.state_dict()))
    release.remove()
    release.remove()
    clips = [lambda m=m: nn.utils.clip_grad_value_(m.parameters(), 1e-3) for m in (plain, released)]
    losses = [train(plain, a, clip=clips[0]), train(released, b, clip=clips[1]), train(resumed, c)]
    assert losses[0] == losses[1] == losses[2]
    assert_same(a, b)
    assert_same(a, c)


def test_two_optimizers_of_one_model() -> None:
    losses = []
    for released in (False, True):
        model = Net()
        optimizers = [
            make(params, lr=0.01)
            for make, params in zip((Muon8bit, AdamW8bit), muon_groups(model), strict=True)
        ]
        for optimizer in optimizers if released else ():
            release_gradients(model, optimizer)
        for number in range(3):
            loss = loss_of(model, number)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
    assert losses[:3] == losses[3:]


@pytest.mark.parametrize("through_scaler", [False, True])
def test_a_gradient_scaler_skips_the_parameters_that_overflow(through_scaler: bool) -> None:
    plain, released, a, b = pair()
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8) for _ in range(2)]
    release_gradients(released, b, clip_value=1e-3, scaler=scalers[1])
    overflow = released.hidden.weight.register_hook(lambda g: g * (torch.inf if at == 2 else 1))
    for at in range(4):
        scalers[0].scale(loss_of(plain, at)).backward()
        before = released.hidden.weight.detach().clone()
        scalers[1].scale(loss_of(released, at)).backward()
        if at == 2:
            assert torch.equal(released.hidden.weight, before)
            plain.hidden.weight.grad = None  # the plain loop without this parameter
        scalers[0].unscale_(a)
        nn.utils.clip_grad_value_(plain.parameters(), 1e-3)
        scalers[0].step(a)
        scalers[1].step(b) if through_scaler else b.step()
        a.zero_grad()
        for scaler in scalers:
            scaler.update()
    overflow.remove()
    assert [scaler.get_scale() for scaler in scalers] == [2.0**8, 2.0**7]
    assert_same(a, b)


def accumulate(model: Net, optimizer: AdamW8bit) -> None:
    release_gradients(model, optimizer)
    loss_of(model, 0).backward()
    loss_of(model, 1).backward()


def scaled(model: Net, optimizer: AdamW8bit) -> None:
    release_gradients(model, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0)).backward()
    scaler.step(optimizer)


def unfrozen(model: Net, optimizer: AdamW8bit) -> None:
    model.hidden.requires_grad_(False)
    release_gradients(model, optimizer)
    model.hidden.requires_grad_(True)
    loss_of(model, 0).backward()
    optimizer.step()


def leftover(model: Net, optimizer: AdamW8bit) -> None:
    release_gradients(model, optimizer)
    loss_of(model, 0).backward()
    model.hidden.weight.grad = torch.ones_like(model.hidden.weight)
    optimizer.step()


def wrapped(model: Net, optimizer: AdamW8bit) -> None:
    ddp = object.__new__(nn.parallel.DistributedDataParallel)  # without a process group
    nn.Module.__init__(ddp)
    ddp.module = model
    release_gradients(nn.Sequential(ddp), optimizer)


def flattened(model: Net, optimizer: AdamW8bit) -> None:
    model.hidden.weight._fsdp_flattened = True
    release_gradients(model, optimizer)


def twice(model: Net, optimizer: AdamW8bit) -> None:
    release_gradients(model, optimizer)
    release_gradients(model, AdamW8bit(model.parameters()))


def low_precision(model: Net, _: AdamW8bit) -> None:
    convert(model)
    release_gradients(model, LPMMAdam(model.parameters()))


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (accumulate, BadValueError,
         "parameter 'hidden.bias' has a second gradient before optimizer.step(); "
         "release_gradients steps in every backward pass and cannot accumulate gradients: call "
         "optimizer.step() after each, or remove() the release"),
        (scaled, BadValueError,
         "release_gradients has taken steps with gradients that a GradScaler has scaled; pass it "
         "as release_gradients(model, optimizer, scaler=scaler)"),
        (unfrozen, BadValueError,
         "parameter 'hidden.weight' was added or unfrozen after release_gradients; call remove() "
         "and release_gradients again"),
        (leftover, BadValueError,
         "parameter 'hidden.weight' has a gradient again after its step in the backward pass; set "
         "it to None, or remove() the release"),
        (wrapped, BadTypeError,
         "release_gradients does not support DistributedDataParallel, which writes gradients back "
         "after each step; train the module without it"),
        (flattened, BadTypeError,
         "parameter 'hidden.weight' is sharded; release_gradients needs whole parameters"),
        (twice, BadValueError,
         "parameter 'embed.weight' is released to a AdamW8bit already; call remove() of that "
         "release first"),
        (low_precision, BadTypeError,
         "release_gradients does not support LPMMAdam, which keeps gradients as codes"),
        (lambda m, _: release_gradients(m, optim.Prodigy(m.parameters())), BadTypeError,
         "release_gradients does not support Prodigy, which needs all gradients at once"),
        (lambda _, o: release_gradients(o, o), BadTypeError,
         "model must be a torch.nn.Module, got AdamW8bit"),
        (lambda m, _: release_gradients(m, torch.optim.SGD(m.parameters())), BadTypeError,
         "optimizer must be one of qmaps.optim, got SGD"),
        (lambda m, _: release_gradients(m, AdamW8bit(m.parameters(), nonfinite="skip")),
         BadValueError,
         "nonfinite='skip' looks at all gradients before a step; release_gradients supports "
         "nonfinite='propagate'"),
        (lambda m, o: release_gradients(m.hidden, o), BadValueError,
         "parameter number 0 of the optimizer is not a parameter of the model"),
        (lambda m, o: release_gradients(m, o, clip_value=0), BadValueError,
         "clip_value=0 must be above 0"),
        (lambda m, o: release_gradients(m, o, scaler=1.0), BadTypeError,
         "scaler=1.0 must be a torch.amp.GradScaler or None"),
    ],
)  # fmt: skip
def test_wrong_uses_are_refused(
    use: Callable[[Net, AdamW8bit], object], error: type[Exception], message: str
) -> None:
    _, model, _, optimizer = pair()
    with pytest.raises(error) as caught:
        use(model, optimizer)
    assert str(caught.value) == message


def test_a_refused_backward_pass_changes_nothing() -> None:
    model, _, optimizer, _ = pair()
    release_gradients(model, optimizer)
    loss_of(model, 0).backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(BadValueError, match="has a second gradient before"):
        loss_of(model, 1).backward()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    optimizer.step()
    loss_of(model, 1).backward()


def test_a_released_model_can_be_saved_whole(tmp_path: Path) -> None:
    model, _, optimizer, _ = pair()
    release = release_gradients(model, optimizer)
    torch.save(model, tmp_path / "model.pt")
    copies = [torch.load(tmp_path / "model.pt", weights_only=False), copy.deepcopy(model)]
    for duplicate in (*copies, pickle.loads(pickle.dumps(model))):
        release_gradients(duplicate, AdamW8bit(duplicate.parameters())).remove()
    release.remove()
    release_gradients(model, optimizer)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    model, _, optimizer, _ = pair()
    with pytest.raises(BadValueError) as caught:
        release_gradients(model, optimizer)
    assert str(caught.value) == (
        "release_gradients supports one process, got 2: steps would be taken before the gradients "
        "of all processes are averaged"
    )


def test_a_value_that_autograd_needs_later_is_refused_by_torch() -> None:
    first, last = nn.Linear(80, 80), nn.Linear(80, 80)
    optimizer = AdamW8bit([*first.parameters(), *last.parameters()])
    release_gradients(nn.Sequential(first, last), optimizer)
    x = first(torch.ones(2, 80)) @ last.weight.detach()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (last(torch.ones(2, 80)).sum() + x.sum()).backward()


class Recomputed(nn.Module):
    """Layers with checkpointed activations; two are the same layer."""

    def __init__(self, reentrant: bool = False, read: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.reentrant, self.read = reentrant, read
        first, last = nn.Linear(72, 72), nn.Linear(72, 72)
        self.layers = nn.ModuleList([first, first if not reentrant else nn.Linear(72, 72), last])
        self.head = nn.Linear(72, 72)

    def segment(self, layer: nn.Module, x: Tensor) -> Tensor:
        x = torch.tanh(layer(x))
        return x if self.read is None else x * self.read(self.head.weight)

    def loss(self, number: int, recompute: bool = True) -> Tensor:
        x = torch.randn(4, 72, generator=torch.Generator().manual_seed(number), requires_grad=True)
        for layer in self.layers:
            again = lambda x, layer=layer: self.segment(layer, x)  # noqa: E731
            x = checkpoint(again, x, use_reentrant=self.reentrant) if recompute else again(x)
        return self.head(x).square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_segments_that_are_computed_again_have_the_bits_of_the_plain_loop(reentrant: bool) -> None:
    models = [Recomputed(reentrant) for _ in range(2)]
    plain, released = (AdamW8bit(m.named_parameters(), lr=0.01) for m in models)
    release_gradients(models[1], released)
    for number in range(3):
        models[0].loss(number, recompute=False).backward()
        plain.step()
        plain.zero_grad()
        models[1].loss(number).backward()
        released.step()
    assert_same(plain, released)


def under_no_grad(weight: Tensor) -> Tensor:
    with torch.no_grad():
        return weight.square().mean()


READS = {
    "detach": lambda w: w.detach()[0],
    "data": lambda w: w.data[0],
    "statistics": under_no_grad,
    "nothing": lambda w: torch.full((w.size(1),), 0.5 + (w.grad is None) * w.shape[0]),
}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("read", READS)
def test_a_segment_computed_again_cannot_read_stepped_parameters(
    read: str, reentrant: bool
) -> None:
    """Its forward pass used the old values; gradients would differ without an error."""
    model = Recomputed(reentrant, READS[read])
    optimizer = AdamW8bit(model.named_parameters())
    release_gradients(model, optimizer)
    loss = model.loss(0)
    if read == "nothing":
        loss.backward()
    else:
        with pytest.raises(BadValueError) as caught:
            loss.backward()
        assert str(caught.value) == (
            "parameter 'head.weight' is read in the backward pass after its step by "
            "release_gradients, as by a segment that activation checkpointing computes again; read "
            "it outside of the segment, or remove() the release"
        )
    assert float(READS["statistics"](model.head.weight)) > 0
    optimizer.step()
    assert {type(param) for param in model.parameters()} == {nn.Parameter}
    model.loss(1, recompute=False)


GIVES_ACCESS = {"data_ptr", "const_data_ptr", "untyped_storage", "storage", "tolist", "numpy"}


@pytest.mark.filterwarnings("ignore")
def test_methods_that_read_no_values_are_allowed() -> None:
    """All methods without arguments that return the same result for other values, not a tensor."""
    called: list[Any] = []

    class Called(nn.Parameter):
        @classmethod
        def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None):
            called.append(function)
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))

    def result(name: str, value: float) -> Any:
        param = nn.Parameter(torch.full((3, 4), value))
        param.__class__ = Called
        called.clear()
        try:
            return getattr(param, name)()
        except Exception:  # it has arguments, or does not support the dtype or the device
            return NotImplemented

    plain = (bool, int, str, tuple, type, type(None))
    allowed = set()
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    for name in sorted((public | {"__len__", "_is_view"}) - GIVES_ACCESS):
        values = [result(name, value) for value in (0.25, 0.75)]
        leaves = torch.utils._pytree.tree_leaves(values)
        if not called or name == "type" or any(isinstance(leaf, Tensor) for leaf in leaves):
            continue
        if isinstance(values[0], plain) and values[0] == values[1]:
            assert not any(map(release._reads, called)), name
            allowed.add(name)
    assert allowed > {"stride", "storage_offset", "get_device", "is_pinned", "is_shared", "__len__"}
    for function in (Tensor.register_hook, Tensor.is_same_size, torch.zeros_like):
        assert not release._reads(function)
    for name in ("__repr__", "detach", "clone", "sum", "item", *GIVES_ACCESS):
        assert release._reads(getattr(Tensor, name)), name


def test_parameters_can_be_copied_before_the_step_ends() -> None:
    model, _, optimizer, _ = pair()
    release = release_gradients(model, optimizer)
    loss_of(model, 0).backward()
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    release.remove()
    assert {type(param) for param in model.parameters()} == {nn.Parameter}
    for duplicate in copies:
        assert loss_of(duplicate, 1) == loss_of(model, 1)
        assert {type(param) for param in duplicate.parameters()} == {nn.Parameter}


def test_parameters_of_other_classes_keep_them() -> None:
    class Named(nn.Parameter):
        pass

    model = nn.Linear(72, 72, bias=False)
    model.weight = Named(model.weight.detach())
    model.weight.label = "own"
    optimizer = AdamW8bit(model.parameters())
    release_gradients(model, optimizer)
    model(torch.ones(2, 72)).sum().backward()
    assert isinstance(model.weight, Named)
    optimizer.step()
    assert type(model.weight) is Named
    assert model.weight.label == "own"


def test_a_checkpoint_that_skips_steps_is_refused() -> None:
    model, twin, optimizer, _ = pair()
    skipping = AdamW8bit(twin.named_parameters(), nonfinite="skip", lr=0.5)
    train(twin, skipping)
    release = release_gradients(model, optimizer)
    with pytest.raises(BadValueError) as caught:
        optimizer.load_state_dict(skipping.state_dict())
    message = (
        "nonfinite='skip' looks at all gradients before a step; release_gradients supports "
        "nonfinite='propagate'"
    )
    assert str(caught.value) == f"state_dict has {message}"
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert not optimizer.state
    optimizer.param_groups[0]["nonfinite"] = "skip"
    with pytest.raises(BadValueError) as caught:
        loss_of(model, 0).backward()
    assert str(caught.value) == message
    release.remove()
    optimizer.load_state_dict(skipping.state_dict())


def test_each_step_makes_the_record_of_its_parameter_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _, optimizer, _ = pair()
    release_gradients(model, optimizer)
    numbers: list[int] = []
    record = records.ParameterRecord
    monkeypatch.setattr(
        records, "ParameterRecord", lambda *args: numbers.append(args[2]) or record(*args)
    )
    loss_of(model, 0).backward()
    assert sorted(numbers) == [0, 1, 2]


class Watched(list[Tensor]):
    """A group's parameters, with a count of iterations over them."""

    looks = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.looks += 1
        return super().__iter__()


def test_a_step_finds_its_parameter_without_looking_through_all() -> None:
    losses = []
    for released in (False, True):
        model = Net()
        optimizer = optim.AdamW4bit(model.named_parameters(), lr=0.01)
        if released:
            release_gradients(model, optimizer)
        train(model, optimizer, range(2))
        params = Watched(optimizer.param_groups[0]["params"])
        optimizer.zero_grad()
        optimizer.param_groups[0]["params"] = params
        loss_of(model, 2).backward()
        assert params.looks == 0
        optimizer.step()
        params.reverse()  # parameters get other random numbers, with their new places
        losses.append(train(model, optimizer, range(3)))
    assert losses[0] == losses[1]


def test_it_keeps_nothing_alive_and_plans_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, optimizer, _ = pair()
    release_gradients(model, optimizer)
    plans: list[int] = []
    plan = NativeEngine.plan
    monkeypatch.setattr(NativeEngine, "plan", lambda *args: plans.append(1) or plan(*args))
    train(model, optimizer, range(5))
    assert len(plans) <= 2 * len(list(model.parameters()))
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    loss_of(model, 0).backward()
    assert model.hidden.weight.grad is not None


def test_two_threads_list_the_places_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks of parameters on two devices do; each list must hold its own place."""
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    groups = [{"params": [first, second]}]
    listed, of_the_other = release._Places(), []

    def interrupted(groups: list[dict[str, Any]]) -> Iterator[records.Place]:
        for place in places(groups):
            yield place
            if not of_the_other:
                of_the_other.append([])
                of_the_other[:] = listed.of(second, groups)

    places = release.places
    monkeypatch.setattr(release, "places", interrupted)
    assert listed.of(first, groups) == [records.Place(0, 0, 0)]
    assert of_the_other == [records.Place(1, 0, 1)]
    assert listed.of(second, groups) == of_the_other
