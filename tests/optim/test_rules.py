"""Checks for every optimizer's update rule."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qmaps
from qmaps.optim import AdamW
from qmaps.optim.records import states_of
from tests.optim.families import (
    CASES,
    FAMILIES,
    Family,
    Options,
    floats,
    give,
    label,
    run,
    same_bits,
)

EVERY = pytest.mark.parametrize("family", FAMILIES, ids=label)
EVERY_OPTION = pytest.mark.parametrize(("family", "options"), CASES, ids=label)
WITH_REFERENCE = [case for case in CASES if case[0].reference is not None]
IMPLEMENTATION = {"amsgrad", "capturable", "decoupled_weight_decay", "differentiable", "foreach",
                  "fused"}  # fmt: skip
SHARED = {"maximize", "state_quantizers", "overrides", "quantize", "min_quantized_size",
          "refit_every", "reset_every", "nonfinite", "seed", "stochastic_rounding",
          "master_weights"}  # fmt: skip


def complete(family: Family, options: Options) -> Options:
    return {**family.full([torch.zeros(1)]).defaults, **options}


@EVERY
def test_names_and_defaults_are_those_of_torch(family: Family) -> None:
    ours = family.full([torch.zeros(1)]).defaults
    defaults = {name: value for name, value in ours.items() if name not in SHARED}
    if family.reference is None:
        assert defaults == family.defaults
    else:
        theirs = family.reference([torch.zeros(1)]).defaults
        assert {**defaults, "maximize": False} == {
            name: value
            for name, value in theirs.items()
            if name in defaults or name not in IMPLEMENTATION
        }
    assert set(ours) - set(defaults) == SHARED
    assert {name: ours[name] for name in SHARED - {"state_quantizers"}} == {
        "maximize": False, "overrides": {}, "quantize": True, "min_quantized_size": 4096,
        "refit_every": 100, "reset_every": None,
        "nonfinite": "propagate", "seed": 0, "stochastic_rounding": False,
        "master_weights": False,
    }  # fmt: skip
    assert ours["state_quantizers"] == {}


@pytest.mark.parametrize(("family", "options"), WITH_REFERENCE, ids=label)
def test_in_32_bits_it_is_torch_over_20_steps(family: Family, options: Options) -> None:
    ours, a, _ = run(family.full, {**options, "lr": 0.05})
    theirs, b, _ = run(family.reference, {**options, "lr": 0.05})
    states, wanted = a.state_dict()["state"], b.state_dict()["state"]
    for number, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)
        # torch's SGD counts no steps.
        assert set(states[number]) == {"step", *wanted.get(number, ())}
        for name, value in wanted.get(number, {}).items():
            same_dtype = name != "step"  # its count continues where torch's float32 stops
            torch.testing.assert_close(
                states[number][name], value, rtol=2e-6, atol=1e-6, check_dtype=same_dtype
            )
    assert [int(a.state[p]["step"]) for p in ours] == [19, 20, 20]


@EVERY_OPTION
def test_in_32_bits_it_is_the_textbook_rule(family: Family, options: Options) -> None:
    options = {**options, "lr": 0.05}
    start, _, _ = run(family.full, options, steps=0)
    ours, optimizer, grads = run(family.full, options)
    for before, p, history in zip(start, ours, grads, strict=True):
        expected = family.expected(before, history, complete(family, options))
        tensors = {"p": p.detach(), **optimizer.state[p]}
        tensors |= {name: tensors[name].expand_as(p) for name in optimizer._numbers}
        del tensors["step"]
        assert expected.keys() == tensors.keys()
        for name, value in tensors.items():
            actual = value.reshape(-1).double()
            exact = torch.tensor(expected[name], dtype=torch.float64)
            torch.testing.assert_close(actual, exact, rtol=5e-6, atol=1e-6)


@EVERY_OPTION
def test_the_states_and_constants_of_a_group_are_known(family: Family, options: Options) -> None:
    params, optimizer, _ = run(family.full, options, steps=2)
    group = optimizer.param_groups[0]
    used = states_of(optimizer, group)
    assert tuple(name for name in optimizer.state_names if name in used) == used
    for p in params:
        assert set(optimizer.state[p]) == {"step", *optimizer._numbers, *used}
    # An engine takes the scalars in their order, whatever the options and the step.
    names = list(family.full([torch.zeros(1)]).scalars(complete(family, {}), 7))
    for step in (1, 2, 1000):
        scalars = optimizer.scalars(group, step)
        assert list(scalars) == names
        assert {type(value) for value in scalars.values()} <= {float, int}


@EVERY_OPTION
def test_the_rule_is_element_wise_and_leaves_the_gradient(family: Family, options: Options) -> None:
    params, optimizer, _ = run(family.full, options, steps=3, shapes=((6, 50),))
    group = optimizer.param_groups[0]
    scalars = optimizer.scalars(group, 4)
    states = {name: optimizer.state[params[0]][name] for name in states_of(optimizer, group)}
    param, grad = params[0].detach(), torch.randn(6, 50)
    order = torch.randperm(300)

    def update(pick) -> list[torch.Tensor]:
        p, g, *values = (pick(x).clone() for x in (param, grad, *states.values()))
        named = dict(zip(states, values, strict=True))
        before = g.clone()
        optimizer.update(p, g, named, scalars)
        assert torch.equal(g, before)
        return [p, *named.values()]

    full = update(lambda x: x)
    shuffled = update(lambda x: x.reshape(-1)[order])
    strided = update(lambda x: x.t())
    assert not torch.equal(full[0], param)
    # In another order norms are rounded otherwise, and their ratio with them.
    rtol = 1e-6 if family.full.takes_norms else 0
    for x, y, z in zip(full, shuffled, strided, strict=True):
        torch.testing.assert_close(x.reshape(-1)[order], y, rtol=rtol, atol=rtol)
        torch.testing.assert_close(x, z.t(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.reference is not None], ids=label)
def test_an_empty_weight_decay_is_left_out(family: Family) -> None:
    """Odd values show that our formula has the same branches as torch's."""
    odd = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-42])
    results = []
    for cls in (family.full, family.reference):
        p = nn.Parameter(odd.repeat_interleave(8))
        options = {"lr": 0.5, "weight_decay": 0.0}
        extra = {} if cls is family.full else {"foreach": False}
        optimizer = cls([p], **options, **extra)
        p.grad = odd.repeat(8)
        optimizer.step()
        results.append(p.detach())
    ours, theirs = results
    infinite = p.grad.isinf()  # ours has no infinite second moment: no inf / inf
    assert not bool((ours.isfinite() & infinite).any())
    assert torch.equal(ours.isnan()[~infinite], theirs.isnan()[~infinite])
    assert torch.equal(ours.isinf()[~infinite], theirs.isinf()[~infinite])


@EVERY_OPTION
def test_a_step_decodes_updates_and_encodes(family: Family, options: Options) -> None:
    """The rule gets decoded states; the parameter uses new states before their encoding."""
    quantizers = {
        name: "B64/DE@5s+sr" if name in family.full.signed_states else "B64/DE-0@6u+sr"
        for name in family.full.state_names
    }
    params, optimizer, _ = run(
        family.full,
        {**options, "state_quantizers": quantizers, "min_quantized_size": 20, "seed": 3},
        steps=2,
        shapes=((30, 10), (200,), (5,)),
    )
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    exact = family.full(twins, **options, state_quantizers=None)
    for p, twin in zip(params, twins, strict=True):
        for name, value in optimizer.state[p].items():
            exact.state[twin][name] = floats(value).clone()
    generator = torch.Generator().manual_seed(8)
    give(params, generator)
    for p, twin in zip(params, twins, strict=True):
        twin.grad = p.grad.clone()
    optimizer.step()
    exact.step()
    for number, (p, twin) in enumerate(zip(params, twins, strict=True)):
        assert torch.equal(p, twin)
        for index, name in enumerate(family.full.state_names):
            if name not in optimizer.state[p]:
                continue
            value, actual = exact.state[twin][name], optimizer.state[p][name]
            if p.numel() <= 20:
                assert torch.equal(actual, value)
                continue
            key = qmaps.RoundingKey(seed=3, step=3, tensor=number, state=index)
            expected = qmaps.quantizer(quantizers[name]).quantize(value, key=key)
            assert torch.equal(actual.packed, expected.packed)


@EVERY
def test_a_constant_below_float32_counts_as_zero(family: Family) -> None:
    """The rule compares float32 scalars with 0, like an engine with float32 scalars."""
    runs = []
    for decay in (0.0, 1e-60):
        p = nn.Parameter(torch.tensor([float("inf"), 1.0]))
        optimizer = family.full([p], weight_decay=decay)
        p.grad = torch.tensor([1.0, -0.0])
        optimizer.step()
        runs.append(p.detach())
    assert same_bits(*runs)


def test_presets_follow_the_sign_of_a_state() -> None:
    for name, preset in qmaps.optim.PRESETS.items():
        for family in FAMILIES:
            actual = family.full([torch.zeros(1)], state_quantizers=name).defaults
            names = [n for n in family.full.state_names if n not in family.full.exact_states]
            signed = [state in family.full.signed_states for state in names]
            specs = preset.signed, preset.unsigned
            if preset.paired and 2 * sum(signed) == len(names):
                specs = preset.paired
            expected = {n: specs[0] if s else specs[1] for n, s in zip(names, signed, strict=True)}
            expected = {s: e and e.format(block=preset.block_size) for s, e in expected.items()}
            assert actual["state_quantizers"] == expected
    assert AdamW([torch.zeros(1)], state_quantizers="paper-8bit").defaults["state_quantizers"] == {
        "exp_avg": "B2048/DE@8s", "exp_avg_sq": "B2048/DE@8u",
    }  # fmt: skip
