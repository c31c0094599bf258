"""Checks for every optimizer: training, checkpoints, sizes, bad options."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import qmaps
from qmaps.optim import QuantizedOptimizer
from qmaps.optim.presets import PRESETS
from qmaps.optim.records import states_of
from tests.optim.families import (
    CASES,
    FAMILIES,
    Family,
    Options,
    floats,
    give,
    label,
    model,
    run,
    train,
)

EVERY = pytest.mark.parametrize("family", FAMILIES, ids=label)
WITH_REFERENCE = [case for case in CASES if case[0].reference is not None]


def quantizers(family: Family, signed: str, unsigned: str) -> dict[str, str]:
    names = [name for name in family.full.state_names if name not in family.full.exact_states]
    return {name: signed if name in family.full.signed_states else unsigned for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("width", ["eight", "four"])
@EVERY
def test_low_bits_learn_as_32_bits_do(family: Family, width: str) -> None:
    exact, net = model(), model()
    options = {"lr": family.rate, **family.learns}
    start = train(model(), family.full(exact.parameters(), lr=0.0), range(1))
    target = train(
        exact, family.full(exact.parameters(), state_quantizers=None, **options), range(120)
    )
    optimizer = getattr(family, width)(net.parameters(), **options)
    loss = train(net, optimizer, range(120))
    names = set(states_of(optimizer, optimizer.param_groups[0])) - optimizer.exact_states
    kinds = {type(optimizer.state[net[0].weight][name]) for name in names}
    assert kinds == {qmaps.QuantizedTensor}
    assert target < 0.6 * start
    assert loss < 1.2 * target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", ["eight", "four", "stochastic", "fitted", "32"])
@EVERY
def test_save_load_and_resume_is_bit_for_bit(
    family: Family, width: str, dtype: torch.dtype
) -> None:
    # The last options use every state; the checkpoint brings them along.
    options = {**family.options[-1], "refit_every": 4, "stochastic_rounding": True, "seed": 5}
    specs = {
        "stochastic": quantizers(family, "B128/DE@4s+sr", "B128x8/linear@8u+sr"),
        "fitted": quantizers(family, "B128/quantile@4s", "tensor/lloyd@4u"),
        "32": None,
    }

    def make(net: nn.Module) -> QuantizedOptimizer:
        if width in specs:
            return family.full(net.parameters(), state_quantizers=specs[width], **options)
        return getattr(family, width)(net.parameters(), **options)

    uninterrupted = model(dtype)
    train(uninterrupted, make(uninterrupted), range(9))
    net = model(dtype)
    optimizer = make(net)
    train(net, optimizer, range(6))
    buffer = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = model(dtype)
    resumed.load_state_dict(saved["net"])
    again = family.full(resumed.parameters())
    again.load_state_dict(saved["optimizer"])
    assert again.state_nbytes == optimizer.state_nbytes > 0
    train(resumed, again, range(6, 9))
    for p, q in zip(uninterrupted.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(("family", "options"), WITH_REFERENCE, ids=label)
def test_a_torch_checkpoint_goes_on(family: Family, options: Options) -> None:
    theirs, reference, _ = run(family.reference, {**options, "lr": 0.05}, steps=5)
    ours = [nn.Parameter(p.detach().clone()) for p in theirs]
    optimizer = family.full(ours, state_quantizers=None)
    optimizer.load_state_dict(reference.state_dict())
    group = optimizer.param_groups[0]
    assert {name: group[name] for name in options} == options
    assert not {"foreach", "fused", "differentiable"} & set(group)
    generator = torch.Generator().manual_seed(6)
    for _ in range(5):
        give(theirs, generator)
        for p, q in zip(ours, theirs, strict=True):
            p.grad = q.grad
        reference.step()
        optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("family", "options"), WITH_REFERENCE, ids=label)
def test_a_torch_checkpoint_is_quantized(family: Family, options: Options) -> None:
    theirs, reference, _ = run(family.reference, options, steps=5, shapes=((30, 20),))
    specs = quantizers(family, "B64/DE@5s+sr", "B64/DE-0@6u+sr")
    ours = [nn.Parameter(p.detach().clone()) for p in theirs]
    optimizer = family.full(ours, state_quantizers=specs, min_quantized_size=0, seed=4)
    optimizer.load_state_dict(reference.state_dict())
    actual, expected = optimizer.state[ours[0]], reference.state[theirs[0]]
    # torch's SGD counts no steps: one at least has been taken.
    steps = int(expected.get("step", 1))
    saved = optimizer.state_dict()["state"].get(0, {})
    assert set(saved) == ({"step", *expected} if expected else set())
    for index, name in enumerate(family.full.state_names):
        if name in actual:
            key = qmaps.RoundingKey(seed=4, step=steps, state=index)
            quantized = qmaps.quantizer(specs[name]).quantize(expected[name], key=key)
            assert torch.equal(actual[name].packed, quantized.packed)
    assert int(actual.get("step", 1)) == steps


@EVERY
def test_groups_differ_in_options_and_states(family: Family) -> None:
    first, last = family.options[0], family.options[-1]
    a, b = (nn.Parameter(torch.ones(30, 4)) for _ in range(2))
    together = family.full(
        [{"params": [a], **first}, {"params": [b], **last, "state_quantizers": None}],
        state_quantizers="8bit",
        min_quantized_size=0,
    )
    alone = []
    for p, options in ((a, first), (b, last)):
        q = nn.Parameter(p.detach().clone())
        specs = None if options is last else "8bit"
        alone.append((q, family.full([q], state_quantizers=specs, min_quantized_size=0, **options)))
    for seed in range(3):
        give([a, b], torch.Generator().manual_seed(seed))
        together.step()
        for p, (q, optimizer) in zip((a, b), alone, strict=True):
            q.grad = p.grad.clone()
            optimizer.step()
    for p, (q, optimizer) in zip((a, b), alone, strict=True):
        assert torch.equal(p, q)
        assert together.state[p].keys() == optimizer.state[q].keys()
        for name, value in optimizer.state[q].items():
            assert torch.equal(floats(together.state[p][name]), floats(value))


@pytest.mark.parametrize("specs", [None, "8bit", "4bit", "paper-4bit"], ids=str)
@pytest.mark.parametrize(("family", "options"), CASES, ids=label)
def test_propagate_lets_no_nan_become_finite(
    family: Family, options: Options, specs: str | None
) -> None:
    params, optimizer, _ = run(
        family.full,
        {**options, "state_quantizers": specs, "min_quantized_size": 0},
        steps=2,
        shapes=((30, 10),),
    )
    p = params[0]
    give(params, torch.Generator().manual_seed(0))
    p.grad[3, 4] = float("nan")
    optimizer.step()
    for name in ("p", *states_of(optimizer, optimizer.param_groups[0])):
        assert bool(floats(p if name == "p" else optimizer.state[p][name])[3, 4].isnan()), name


@EVERY
def test_fixed_widths_take_positional_options_and_a_block_size(family: Family) -> None:
    p = [torch.zeros(3)]
    for cls, preset in ((family.eight, "8bit"), (family.four, "4bit")):
        chosen = PRESETS[preset]
        size, specs = chosen.block_size, (chosen.signed, chosen.unsigned)
        names = [name for name in family.full.state_names if name not in family.full.exact_states]
        if 2 * sum(name in family.full.signed_states for name in names) == len(names):
            specs = chosen.paired or specs
        signed, unsigned = specs
        for options, block in (({}, size), ({"block_size": 64}, 64), ({"blocksize": 32}, 32)):
            optimizer = cls(p, 0.25, seed=3, maximize=True, **options)
            group = optimizer.param_groups[0]
            assert (group["lr"], group["seed"], group["maximize"]) == (0.25, 3, True)
            expected = quantizers(family, signed.format(block=block), unsigned.format(block=block))
            assert group["state_quantizers"] == expected
        assert isinstance(optimizer, family.full)
        for options, message in (
            ({"block_size": 0}, "block_size=0 must be at least 1"),
            ({"block_size": 64, "blocksize": 32},
             "block_size=64 and blocksize=32 are the same option; set only one of them"),
            ({"state_quantizers": "8bit"},
             "state_quantizers='8bit' does not fit an optimizer of fixed width; use "
             f"qmaps.optim.{family.name}"),
        ):  # fmt: skip
            with pytest.raises(ValueError) as caught:
                cls(p, **options)
            assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be at least 0"),
        ({"lr": float("nan")}, "lr=nan must be at least 0"),
        ({"weight_decay": -0.5}, "weight_decay=-0.5 must be at least 0"),
        ({"min_quantized_size": 1.5}, "min_quantized_size=1.5 must be an int of at least 0"),
        ({"stochastic_rounding": 1}, "stochastic_rounding=1 must be True or False"),
        ({"seed": 2**32}, "seed=4294967296 must be between 0 and 2**32 - 1"),
        ({"state_quantizers": {"m": "B64/DE@4s"}},
         "state_quantizers names the state 'm', but {name} has {states}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_group", [False, True])
@EVERY
def test_bad_options_that_all_share(
    family: Family, in_group: bool, options: Options, message: str
) -> None:
    p = torch.zeros(1)
    params, keywords = ([{"params": p, **options}], {}) if in_group else ([p], options)
    with pytest.raises((ValueError, TypeError)) as caught:
        family.full(params, **keywords)
    states = ", ".join(family.full.state_names)
    assert str(caught.value) == message.format(name=family.name, states=states)


@EVERY
def test_signed_states_refuse_unsigned_maps(family: Family) -> None:
    for name in family.full.signed_states:
        with pytest.raises(ValueError) as caught:
            family.full([torch.zeros(1)], state_quantizers={name: "B64/DE@4u"})
        assert str(caught.value) == (
            f"state_quantizers sets {name!r} to B64/DE@4u, which is unsigned; {name} has "
            "negative values and needs a signed map"
        )
