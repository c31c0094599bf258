"""The choice of quantizers for states, with the reasons."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import qmaps
from qmaps.errors import BadTypeError, BadValueError
from qmaps.nn import StableEmbedding
from qmaps.ops.backends import use_backend
from qmaps.optim import SGD, AdamW, AdamW4bit, AdamW8bit, keep_in_32_bits

EIGHT, FOUR = (
    ("B256/DE-sym@8s", "B256/geometric@8u+qsr"),
    ("B64xbf16/mu-law10:linear0@5s+qsr", "B64xbf16/geometric@3u+qsr"),
)
FLOATS = (None, None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 64)
        self.body = nn.ModuleList(nn.Linear(64, 80) for _ in range(2))
        self.head = nn.Linear(80, 5000)

    def forward(self, x):
        return self.head((self.body[0](self.tokens(x)) + self.body[1](self.tokens(x))).relu())


NAMES = [name for name, _ in Net().named_parameters()]


def chosen(optimizer) -> dict[str, tuple[str | None, ...]]:
    """Predicted specs of each parameter's states."""
    results: dict[str, tuple[str | None, ...]] = {}
    for row in optimizer.memory():
        results[row.parameter] = (*results.get(row.parameter, ()), row.quantizer)
    return results


def stored(optimizer) -> dict[str, tuple[str | None, ...]]:
    """Specs of each parameter's states after a step."""
    return {
        name: tuple(
            value.quantizer.spec if isinstance(value, qmaps.QuantizedTensor) else None
            for key, value in optimizer.state[param].items()
            if key != "step"
        )
        for group in optimizer.param_groups
        for name, param in zip(group["param_names"], group["params"], strict=True)
        if param in optimizer.state
    }


def reasons(optimizer) -> dict[str, str]:
    return {row.parameter: row.why for row in optimizer.memory() if row.state == "exp_avg"}


def step(net: nn.Module, optimizer, seed: int = 0) -> None:
    x = torch.randint(0, 100, (4, 8), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("backend", ["reference", None])
def test_overrides_by_name(backend: str | None) -> None:
    net = Net()
    optimizer = AdamW8bit(
        net.named_parameters(),
        overrides={
            "head.bias": {"exp_avg": "B64/DE@6s"},
            "head.*": None,
            "body.?.weight": "4bit",
            "*.weight": {"exp_avg": None, "exp_avg_sq": qmaps.quantizer("B32/linear@8u")},
        },
    )
    wanted = {
        "tokens.weight": (None, "B32/linear@8u"),
        "body.0.weight": FOUR,
        "body.0.bias": FLOATS,
        "body.1.weight": FOUR,
        "body.1.bias": FLOATS,
        "head.weight": FLOATS,
        "head.bias": ("B64/DE@6s", None),
    }
    assert chosen(optimizer) == wanted
    with use_backend(backend or qmaps.backend()):
        step(net, optimizer)
    assert stored(optimizer) == wanted
    assert reasons(optimizer) == {
        "tokens.weight": "override '*.weight'",
        "body.0.weight": "override 'body.?.weight'",
        "body.0.bias": "80 <= min_quantized_size=4096",
        "body.1.weight": "override 'body.?.weight'",
        "body.1.bias": "80 <= min_quantized_size=4096",
        "head.weight": "override 'head.*'",
        "head.bias": "override 'head.bias'",
    }


def test_a_group_that_is_not_to_be_quantized() -> None:
    net = Net()
    groups = [
        {"params": list(net.tokens.named_parameters("tokens")), "quantize": False},
        {"params": list(net.head.named_parameters("head")), "state_quantizers": "4bit"},
        {"params": list(net.body.named_parameters("body"))},
    ]
    optimizer = AdamW8bit(groups, overrides={"tokens.*": "4bit"})
    step(net, optimizer)
    assert stored(optimizer) == {
        "tokens.weight": FLOATS,
        "head.weight": FOUR, "head.bias": FOUR,
        "body.0.weight": EIGHT, "body.0.bias": FLOATS,
        "body.1.weight": EIGHT, "body.1.bias": FLOATS,
    }  # fmt: skip
    why = reasons(optimizer)
    assert why["tokens.weight"] == "quantize=False in the group"
    assert why["head.weight"] == why["body.0.weight"] == "state_quantizers"
    assert reasons(AdamW(net.named_parameters(), state_quantizers=None))["head.weight"] == (
        "no quantizer for exp_avg"
    )


def test_a_group_has_overrides_of_its_own() -> None:
    net = Net()
    optimizer = AdamW8bit(net.body.named_parameters("body"), overrides={"body.0.*": "4bit"})
    head = list(net.head.named_parameters("head"))
    optimizer.add_param_group({"params": head, "overrides": {"head.w*": None}})
    assert chosen(optimizer) == {
        "body.0.weight": FOUR, "body.0.bias": FLOATS,
        "body.1.weight": EIGHT, "body.1.bias": FLOATS,
        "head.weight": FLOATS, "head.bias": EIGHT,
    }  # fmt: skip


def test_a_mark_keeps_any_parameter_in_32_bits() -> None:
    net = Net()
    optimizer = AdamW8bit(net.named_parameters())
    step(net, optimizer)
    assert stored(optimizer)["head.weight"] == EIGHT
    # Noticed by the next step, though it was planned before.
    keep_in_32_bits(net.head.weight, "it diverged")
    assert reasons(optimizer)["head.weight"] == "32 bits from the next step: it diverged"
    step(net, optimizer)
    assert stored(optimizer)["head.weight"] == FLOATS
    assert reasons(optimizer)["head.weight"] == "it diverged"


@pytest.mark.parametrize("change", ["overrides", "quantize", "state_quantizers", "mark"])
def test_changes_between_steps_have_the_references_bits(change: str) -> None:
    results = []
    for backend in ("reference", qmaps.backend()):
        torch.manual_seed(0)
        net = Net()
        optimizer = AdamW8bit(net.named_parameters(), lr=1e-2)
        group = optimizer.param_groups[0]
        with use_backend(backend):
            for number in range(8):
                if change == "overrides":
                    specs = {"exp_avg": "B128/DE@4s", "exp_avg_sq": None}
                    group["overrides"] = {"body.*": specs} if number % 4 > 1 else {}
                elif change == "mark" and number == 3:
                    keep_in_32_bits(net.tokens.weight, "test")
                elif change == "quantize":
                    group["quantize"] = number % 4 < 2
                elif change == "state_quantizers" and number == 5:
                    group["state_quantizers"]["exp_avg"] = None
                step(net, optimizer, number)
                assert stored(optimizer) == chosen(optimizer)
        results.append([p.detach() for p in net.parameters()])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_brings_its_choices_along() -> None:
    codebook = qmaps.Codebook([-1, -0.25, 0, 0.25, 1], label="mine")
    options = {
        "overrides": {
            "head.*": None,
            "body.0.*": {"exp_avg": qmaps.quantizer("B64/mine@3s", [codebook])},
        },
    }
    uninterrupted, net = (copy.deepcopy(n) for n in [Net()] * 2)
    straight, optimizer = (AdamW8bit(n.named_parameters(), **options) for n in (uninterrupted, net))
    for number in range(4):
        step(uninterrupted, straight, number)
    for number in range(2):
        step(net, optimizer, number)
    optimizer.param_groups[0]["quantize"] = True
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    # One's own codebook must be known.
    again = AdamW8bit(
        net.named_parameters(), overrides={"*.bias": options["overrides"]["body.0.*"]}
    )
    again.load_state_dict(saved)
    assert chosen(again) == chosen(optimizer) == stored(again)
    assert reasons(again) == reasons(optimizer)
    for number in range(2, 4):
        step(net, again, number)
    for ours, theirs in zip(net.parameters(), uninterrupted.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_codebooks_without_labels_stay_apart_and_those_of_one_label_are_refused() -> None:
    def options(**label: str) -> dict[str, object]:
        first, second = (
            {"exp_avg": qmaps.normalize.BlockWise(64) / qmaps.Codebook(values, **label)}
            for values in ([-1, -0.5, 0, 1], [-1, -0.01, 0, 1])
        )
        return {"state_quantizers": first, "overrides": {"head.weight": second}}

    optimizer = AdamW(Net().named_parameters(), **options())
    specs = {specs[0] for specs in chosen(optimizer).values() if specs[0]}
    assert len(specs) == 2
    with pytest.raises(BadValueError) as error:
        AdamW(Net().named_parameters(), **options(label="mine"))
    assert str(error.value) == (
        "overrides['head.weight'] sets 'exp_avg' to B64/mine@2s, but its codebook differs from the "
        "one that is known by that name; each codebook needs its own label"
    )


def test_a_checkpoint_of_torch_leaves_the_choices_alone() -> None:
    net = Net()
    reference = torch.optim.AdamW(net.parameters())
    step(net, reference)
    optimizer = AdamW8bit(net.named_parameters(), overrides={"head.*": None})
    optimizer.load_state_dict(reference.state_dict())
    assert stored(optimizer) == chosen(optimizer)
    assert stored(optimizer)["head.weight"] == FLOATS
    assert stored(optimizer)["body.0.weight"] == EIGHT


def test_a_checkpoint_brings_names_along() -> None:
    net = Net()
    saved = AdamW8bit(
        [(f"module.{name}", param) for name, param in net.named_parameters()],
        overrides={"module.head.*": None},
    ).state_dict()
    optimizer = AdamW8bit(net.named_parameters(), overrides={"body.*": "4bit"})
    assert chosen(optimizer)["body.0.weight"] == FOUR
    optimizer.load_state_dict(saved)
    assert chosen(optimizer)["module.body.0.weight"] == EIGHT
    assert chosen(optimizer)["module.head.weight"] == FLOATS


@pytest.mark.parametrize("steps", [0, 2])
def test_deep_copies_choose_alike(steps: int) -> None:
    net = nn.Sequential(StableEmbedding(100, 64), nn.Linear(64, 80))
    optimizer = AdamW4bit(net.named_parameters(), overrides={"1.weight": "8bit"})
    for number in range(steps):
        step(net, optimizer, number)
    again = copy.deepcopy(optimizer)  # alone, so that no module marks its parameters
    assert str(again.memory()) == str(optimizer.memory())
    assert chosen(again)["0.weight"] == FLOATS
    for copied, param in zip(
        again.param_groups[0]["params"], optimizer.param_groups[0]["params"], strict=True
    ):
        copied.grad = param.grad = torch.ones_like(param)
    for stepped in (again, optimizer):
        stepped.step()
    assert stored(again) == stored(optimizer) == chosen(again)
    assert stored(again)["1.weight"] == EIGHT


def test_a_dtensor_counts_all_of_its_shards() -> None:
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not dist.is_available():
        pytest.skip("this torch is built without torch.distributed")
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=4)
    try:
        mesh = dist.init_device_mesh("cpu", (4,))
        sharded = nn.Parameter(distribute_tensor(torch.zeros(80, 64), mesh, [Shard(0)]))
        assert sharded.to_local().numel() == 1280
        optimizer = AdamW8bit([sharded])
        group = optimizer.param_groups[0]
        assert str(optimizer.quantizer_of("exp_avg", sharded, group)) == EIGHT[0]
    finally:
        dist.destroy_process_group()


LISTED = "tokens.weight, body.0.weight, body.0.bias, body.1.weight, body.1.bias and 2 more"


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"haed.*": None}, BadValueError,
         f"overrides names 'haed.*', which matches no parameter; there are {LISTED}; "
         "nearest match: head.bias"),
        ({"head.*": None, "qqq": "8bit"}, BadValueError,
         f"overrides names 'qqq', which matches no parameter; there are {LISTED}"),
        ({"head.*": "9bit"}, BadValueError,
         "overrides['head.*']='9bit' is not a preset; allowed are 32bit, 8bit, 4bit, 3bit, 2bit, "
         "paper-8bit, paper-4bit, 'SIGNED + UNSIGNED' of specs, or a dict from state names "
         "to specs; nearest match: 8bit"),
        ({"head.*": {"m": None}}, BadValueError,
         "overrides['head.*'] names the state 'm', but AdamW has exp_avg, exp_avg_sq"),
        ({"head.*": {"exp_avg": "B8/DE@8u"}}, BadValueError,
         "overrides['head.*'] sets 'exp_avg' to B8/DE@8u, which is unsigned; exp_avg has "
         "negative values and needs a signed map"),
        ({"head.*": 32}, BadTypeError,
         "overrides['head.*']=32 must be a preset's name, a dict from state names to specs, or "
         "None"),
        ({nn.Embedding: None}, BadTypeError,
         "overrides has the key Embedding; an optimizer accepts parameter names and "
         "patterns of names as keys; qmaps.optim.param_groups(model, overrides=...) accepts "
         "module types too"),
        (["head.*"], BadTypeError,
         "overrides=['head.*'] must be a dict from parameter names, or patterns of names, "
         "to quantizers"),
    ],
)  # fmt: skip
def test_bad_overrides(overrides, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        AdamW(Net().named_parameters(), overrides=overrides)
    assert str(caught.value) == message


def test_bad_overrides_of_a_group_change_nothing() -> None:
    net = Net()
    optimizer = AdamW(net.body.named_parameters("body"))
    for options, message in (
        ({"overrides": {"body.*": None}},
         "overrides names 'body.*', which matches no parameter; there are head.weight, head.bias"),
        ({"quantize": 0}, "quantize=0 must be True or False"),
    ):  # fmt: skip
        with pytest.raises((BadValueError, BadTypeError)) as caught:
            optimizer.add_param_group({"params": net.head.named_parameters("head"), **options})
        assert str(caught.value) == message
        assert len(optimizer.param_groups) == 1


def test_overrides_need_names() -> None:
    with pytest.raises(BadValueError) as caught:
        SGD(Net().parameters(), overrides={"head.*": None})
    assert str(caught.value) == (
        "overrides names 'head.*', but the parameters have no names; pass "
        "model.named_parameters() to the optimizer"
    )


def test_a_checkpoint_whose_overrides_match_nothing_here() -> None:
    net = Net()
    saved = AdamW(net.named_parameters(), overrides={"head.*": None}).state_dict()
    saved["param_groups"][0]["param_names"] = [f"module.{name}" for name in NAMES]
    optimizer = AdamW(net.named_parameters())
    before = str(optimizer.memory())
    with pytest.raises(BadValueError) as caught:
        optimizer.load_state_dict(saved)
    assert str(caught.value).startswith(
        "overrides names 'head.*', which matches no parameter; there are module.tokens.weight, "
    )
    assert str(optimizer.memory()) == before
