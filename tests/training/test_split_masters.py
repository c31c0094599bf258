"""Split master weights: bfloat16 parameters with remainders step like more precise ones."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qmaps
from qmaps.capture.conversion import convert_state_dict
from qmaps.engines.bfloat16 import SPLITS, join
from qmaps.engines.masters import MASTER, REMAINDER
from qmaps.optim import AdamW8bit, QuantizedOptimizer
from tests.engines.test_bfloat16 import in_24_bits
from tests.training.runs import EVERY, assert_same, gradients, loss_of, make, net, parts

pytestmark = pytest.mark.slow

FORMS = pytest.mark.parametrize("form", SPLITS)


def params_of(optimizer: QuantizedOptimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def as_stored(values: torch.Tensor, form: str) -> torch.Tensor:
    """Float32 values in the precision of a form."""
    if form == "bf16+16":
        return values
    return torch.from_numpy(in_24_bits(values.detach().contiguous().numpy()))


def step_both(narrow: QuantizedOptimizer, wide: QuantizedOptimizer, form: str, number: int) -> None:
    """One step of bfloat16 parameters, and one of rounded float32 ones."""
    gradients(params_of(narrow), number)
    for p, q in zip(params_of(narrow), params_of(wide), strict=True):
        q.grad = p.grad.float()
    narrow.step()
    wide.step()
    for q in params_of(wide):
        q.data = as_stored(q.data, form)


def assert_split(narrow: QuantizedOptimizer, wide: QuantizedOptimizer, form: str) -> None:
    """Joined values and states equal those of the float32 run."""
    for p, q in zip(params_of(narrow), params_of(wide), strict=True):
        state = dict(narrow.state[p])
        remainder = state.pop(REMAINDER)
        assert remainder.dtype == SPLITS[form]
        assert remainder.is_contiguous()
        assert torch.equal(join(p, remainder), q)
        assert bool((p.float() - q).abs().le((p - q.bfloat16()).abs() + q.abs() / 256).all())
        assert state.keys() == wide.state[q].keys()
        for name, value in state.items():
            for x, y in zip(parts(value), parts(wide.state[q][name]), strict=True):
                assert torch.equal(x, y), name


@FORMS
@EVERY
def test_values_go_as_those_of_more_precise_parameters(kind: str, form: str, engine: str) -> None:
    model, exact = net(torch.bfloat16), net(torch.bfloat16).float()
    narrow = make(kind, model.parameters(), master_weights=form)
    wide = make(kind, exact.parameters())
    for number in range(4):
        step_both(narrow, wide, form, number)
        assert_split(narrow, wide, form)


@FORMS
def test_any_strides(form: str, engine: str) -> None:
    dense = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    p = nn.Parameter(dense.to(memory_format=torch.channels_last))
    q = nn.Parameter(dense.float())
    narrow = make("AdamW8bit", [p], master_weights=form)
    wide = make("AdamW8bit", [q])
    for number in range(3):
        gradients([q], number)
        p.grad = torch.empty_like(p).copy_(q.grad)
        q.grad = p.grad.float().contiguous()
        narrow.step()
        wide.step()
        q.data = as_stored(q.data, form)
    assert p.is_contiguous(memory_format=torch.channels_last)
    assert_split(narrow, wide, form)


def test_a_parameter_that_is_changed_between_steps_keeps_the_change(engine: str) -> None:
    p = nn.Parameter(torch.full((300,), 1.25, dtype=torch.bfloat16))
    optimizer = AdamW8bit([p], lr=1e-3, min_quantized_size=0, master_weights="bf16+8")
    gradients([p], 0)
    optimizer.step()
    assert bool(optimizer.state[p][REMAINDER].any())
    with torch.no_grad():
        p[:100] = 0
        p[100:200] = torch.nan
    p.grad.zero_()
    optimizer.step()
    assert bool((p[:100].abs() < 1e-2).all())
    assert bool(p[100:200].isnan().all())
    assert not bool(p[200:].isnan().any())


def train(model: nn.Module, optimizer: QuantizedOptimizer, steps: range) -> None:
    for number in steps:
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()


@FORMS
@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW+sr", "LAMB8bit"])
def test_saved_and_resumed_bit_for_bit(kind: str, form: str, engine: str) -> None:
    def begin(**options: Any) -> tuple[nn.Module, QuantizedOptimizer]:
        model = net(torch.bfloat16)
        return model, make(kind, model.parameters(), **options)

    uninterrupted = begin(master_weights=form)
    train(*uninterrupted, range(6))
    first = begin(master_weights=form)
    train(*first, range(3))
    buffer = io.BytesIO()
    torch.save([part.state_dict() for part in first], buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    second = begin()  # the option comes from the checkpoint
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    assert {s[REMAINDER].dtype for s in second[1].state.values()} == {SPLITS[form]}
    copied = copy.deepcopy(second)
    for part in (second, copied):
        train(*part, range(3, 6))
        assert_same(part[1], uninterrupted[1])
    # Without the remainders it would have gone otherwise.
    third = begin(master_weights=form)
    for state in saved[1]["state"].values():
        del state[REMAINDER]
    for part, state in zip(third, saved, strict=True):
        part.load_state_dict(state)
    train(*third, range(3, 6))
    pairs = zip(params_of(third[1]), params_of(uninterrupted[1]), strict=True)
    assert any(not torch.equal(third[1].state[p][REMAINDER], uninterrupted[1].state[q][REMAINDER])
               for p, q in pairs)  # fmt: skip


def test_a_form_that_changes_between_steps(engine: str) -> None:
    model, exact = net(torch.bfloat16), net(torch.bfloat16).float()
    narrow, wide = make("AdamW8bit", model.parameters()), make("AdamW8bit", exact.parameters())
    forms = [True, "bf16+16", True, "bf16+8", "bf16+16", "bf16+8", True, False, "bf16+8"]
    for number, form in enumerate(forms):
        narrow.param_groups[0]["master_weights"] = form
        if form == "bf16+8":  # values are rounded first
            for q in params_of(wide):
                q.data = as_stored(q.data, form)
        elif form is False:
            for p, q in zip(params_of(narrow), params_of(wide), strict=True):
                q.data = p.detach().float()
        step_both(narrow, wide, form if form == "bf16+8" else "bf16+16", number)
        for p, q in zip(params_of(narrow), params_of(wide), strict=True):
            state = narrow.state[p]
            assert (MASTER in state, REMAINDER in state) == (form is True, form in SPLITS)
            if form is False:
                assert torch.equal(p, q.to(torch.bfloat16))
                q.data = p.detach().float()
            elif form is True:
                assert torch.equal(state[MASTER], q)
            else:
                assert torch.equal(join(p, state[REMAINDER]), q)


@FORMS
def test_memory_counts_remainders(form: str) -> None:
    model = net(torch.bfloat16)
    optimizer = make("AdamW8bit", model.named_parameters(), master_weights=form)
    plain = make("AdamW8bit", net(torch.bfloat16).named_parameters())
    before = optimizer.memory()
    numel, size = sum(p.numel() for p in model.parameters()), SPLITS[form].itemsize
    assert before.nbytes == plain.memory().nbytes + size * numel
    assert before.nbytes_in_32_bits == 12 * numel
    rows = [row for row in before if row.state == REMAINDER]
    assert [row.nbytes for row in rows] == [size * p.numel() for p in model.parameters()]
    assert {(row.quantizer, row.why, row.predicted) for row in rows} == {
        (f"int{8 * size}", f"master_weights='{form}'", True)
    }
    train(model, optimizer, range(1))
    after = optimizer.memory()
    assert after.nbytes == before.nbytes == optimizer.state_nbytes
    assert not after.predicted
    optimizer.param_groups[0]["master_weights"] = False
    assert {row.why for row in optimizer.memory() if row.state == REMAINDER} == {"no longer used"}


def test_wide_parameters_ignore_the_option(engine: str) -> None:
    model, plain = net(), net()
    optimizer = make("AdamW8bit", model.parameters(), master_weights="bf16+8")
    plain_optimizer = make("AdamW8bit", plain.parameters())
    for number in range(2):
        gradients(params_of(optimizer), number)
        gradients(params_of(plain_optimizer), number)
        optimizer.step()
        plain_optimizer.step()
    assert_same(optimizer, plain_optimizer)


def test_float16_is_refused() -> None:
    def message(place: str) -> str:
        return (
            f"master_weights='bf16+8' stores remainders of bfloat16 parameters, but {place} is "
            "float16; master_weights=True stores float32 copies of both"
        )

    model = net(torch.float16)
    with pytest.raises(ValueError) as caught:
        AdamW8bit(model.named_parameters(), master_weights="bf16+8")
    assert str(caught.value) == message("parameter '0.weight'")
    optimizer = AdamW8bit(model.named_parameters())
    optimizer.param_groups[0]["master_weights"] = "bf16+8"
    gradients(params_of(optimizer), 0)
    with pytest.raises(ValueError) as caught:
        optimizer.step()
    assert str(caught.value) == message("parameter '0.weight'")


@FORMS
def test_rounding_and_remainders_exclude_each_other(form: str) -> None:
    p = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(ValueError) as caught:
        AdamW8bit([p], stochastic_rounding=True, master_weights=form)
    assert str(caught.value) == (
        f"stochastic_rounding=True cannot be combined with master_weights='{form}': master weights "
        "already keep small updates"
    )


@pytest.mark.parametrize(
    ("before", "after"), [(True, "bf16+8"), ("bf16+8", True), ("bf16+16", True)]
)
def test_a_checkpoint_between_a_change_of_form_and_the_next_step(
    before: bool | str, after: bool | str
) -> None:
    model = net(torch.bfloat16)
    optimizer = make("AdamW8bit", model.parameters(), master_weights=before)
    train(model, optimizer, range(2))
    optimizer.param_groups[0]["master_weights"] = after
    saved = copy.deepcopy(optimizer.state_dict())
    copied = copy.deepcopy(model)
    resumed = make("AdamW8bit", copied.parameters())
    resumed.load_state_dict(saved)
    for stepped, its in ((optimizer, model), (resumed, copied)):
        train(its, stepped, range(2, 4))
    assert_same(optimizer, resumed)
    for p, q in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.equal(p, q)


def test_remainders_are_no_states_to_measure_or_convert(tmp_path: Path) -> None:
    model = nn.Linear(80, 64, bias=False).bfloat16()
    optimizer = AdamW8bit(model.named_parameters(), master_weights="bf16+8")
    gradients(params_of(optimizer), 0)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    states = qmaps.capture.load(tmp_path / "optimizer.pt")
    (name,) = states.parameters()
    assert sorted(states.states(name)) == ["exp_avg", "exp_avg_sq"]
    with pytest.raises(qmaps.errors.CaptureError) as caught:
        convert_state_dict(optimizer.state_dict(), to="torch")
    assert str(caught.value) == (
        "'weight' has master_remainder, bits of the parameter that no other format holds; resume "
        "with master_weights=True, take a step, and save again"
    )


def test_checkpoints_that_do_not_fit_change_nothing() -> None:
    model = net(torch.bfloat16)
    optimizer = make("AdamW8bit", model.named_parameters(), master_weights="bf16+8")
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()

    def message(target: QuantizedOptimizer, state: dict[str, Any]) -> str:
        before = copy.deepcopy(target.state_dict())
        with pytest.raises((ValueError, TypeError)) as caught:
            target.load_state_dict(state)
        assert str(before) == str(target.state_dict())
        return str(caught.value)

    wide = make("AdamW8bit", net().named_parameters())
    assert message(wide, saved) == (
        "state_dict has a remainder of master weights of parameter '0.weight', which is float32 "
        "with master_weights='bf16+8' in this optimizer; only bfloat16 parameters with "
        "master_weights='bf16+8' or 'bf16+16' have remainders"
    )
    narrow = make("AdamW8bit", net(torch.bfloat16).named_parameters())
    for bad, text in (
        (torch.zeros(7, dtype=torch.int8),
         "state_dict has master_remainder of shape (7,) for parameter '0.bias' of shape (40,)"),
        (torch.zeros(40),
         "master_remainder of parameter '0.bias' in state_dict must be int8, got float32"),
        (torch.zeros(40, dtype=torch.int16),
         "master_remainder of parameter '0.bias' in state_dict must be int8, got int16"),
        ("none", "master_remainder of parameter '0.bias' in state_dict must be int8, got str"),
        (torch.full((40,), 128, dtype=torch.int32),
         "master_remainder of parameter '0.bias' in state_dict has numbers outside int8"),
    ):  # fmt: skip
        cut = copy.deepcopy(saved)
        cut["state"][1][REMAINDER] = bad
        assert message(narrow, cut) == text
