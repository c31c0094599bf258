"""The Trainer of transformers, on a small GPT-2 of random weights."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import capture, optim
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.analyze.recommend.snippets import snippets
from qmaps.capture.conversion import convert_file
from qmaps.engines.masters import MASTER
from tests.training.runs import assert_same

pytestmark = pytest.mark.slow

WHY = "the extra huggingface is not installed"
transformers = pytest.importorskip("transformers", reason=WHY)
pytest.importorskip("accelerate", reason=WHY)
ours = pytest.importorskip("qmaps.integrations.transformers")
CaptureCallback, MonitorCallback = ours.CaptureCallback, ours.MonitorCallback


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0.1
    )
    return transformers.GPT2LMHeadModel(config)


def data() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    starts = torch.randint(0, 48, (24,), generator=generator)
    return [{"input_ids": s + torch.arange(16), "labels": s + torch.arange(16)} for s in starts]


class StopAfter(transformers.TrainerCallback):
    """Ends a run early, like an interruption; the schedule stays that of the full run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def trainer(
    out: Path, net: nn.Module, callbacks: tuple = (), steps: int = 6, **options: Any
) -> Any:
    defaults = {"per_device_train_batch_size": 4, "save_steps": 3, "report_to": [], "use_cpu": True}
    defaults |= {"disable_tqdm": True, "logging_strategy": "no", "seed": 1, "max_steps": steps}
    training = {k: options.pop(k) for k in list(options) if k not in ("optimizer_cls_and_kwargs",)}
    args = transformers.TrainingArguments(str(out), **{**defaults, **training})
    return transformers.Trainer(
        model=net, args=args, train_dataset=data(), callbacks=list(callbacks), **options
    )


CHOSEN = (
    optim.AdamW,
    {
        "lr": 1e-2,
        "min_quantized_size": 0,
        "state_quantizers": {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "rank1/linear@4u+sr"},
        "seed": 4,
    },
)


def test_a_resumed_run_is_an_uninterrupted_one_with_its_capture(tmp_path: Path) -> None:
    def run(name: str, net: nn.Module, *callbacks: Any, resume: bool | str = False) -> Any:
        captured = CaptureCallback(tmp_path / f"{name}-states", every=2, gradients=2)
        monitored = MonitorCallback(tmp_path / f"{name}.csv", every=2, thresholds=None)
        built = trainer(
            tmp_path / name, net, (captured, monitored, *callbacks), optimizer_cls_and_kwargs=CHOSEN
        )
        built.train(resume_from_checkpoint=resume)
        return built

    uninterrupted = run("whole", model())
    run("cut", model(), StopAfter(5))
    resumed = run("cut", model(), resume=str(tmp_path / "cut" / "checkpoint-3"))
    again, theirs = resumed.optimizer.optimizer, uninterrupted.optimizer.optimizer
    assert type(again) is optim.AdamW
    assert_same(again, theirs)
    weight = uninterrupted.model.transformer.h[0].attn.c_attn.weight
    assert isinstance(theirs.state[weight]["exp_avg"], QuantizedTensor)

    measured = (tmp_path / "whole.csv").read_text()
    assert "\n6,transformer.h.0.attn.c_attn.weight,exp_avg,B128/DE@4s+sr,2048," in measured
    assert (tmp_path / "cut.csv").read_text() == measured
    first, second = (capture.load(tmp_path / f"{name}-states") for name in ("whole", "cut"))
    assert first.steps == second.steps == [2, 4, 6]
    # lm_head is tied to the embedding and has no name of its own.
    assert sorted(first.parameters()) == sorted(name for name, _ in model().named_parameters())
    for name in first.parameters():
        for state in first.states(name):
            expected, actual = (states.tensor(name, state) for states in (first, second))
            assert torch.equal(expected, actual)
    name = "transformer.h.0.attn.c_attn.weight"
    pairs = [
        dict(capture.load(tmp_path / f"{run}-states", step=2).gradients(name))
        for run in ("whole", "cut")
    ]
    assert list(pairs[0]) == list(pairs[1]) == [3, 4, 5, 6]
    assert all(torch.equal(pairs[0][step], pairs[1][step]) for step in pairs[0])
    assert all(bool(gradient.any()) for gradient in pairs[0].values())
    assert torch.equal(
        first.tensor(name, "exp_avg_sq"), theirs.state[weight]["exp_avg_sq"].dequantize()
    )


def test_groups_by_name_go_in_as_params(tmp_path: Path) -> None:
    net = model()
    groups = optim.param_groups(net, overrides={"transformer.wte.*": None}, weight_decay=0.1)
    kwargs = {"lr": 1e-2, "params": groups, "min_quantized_size": 0}
    built = trainer(tmp_path, net, steps=2, optimizer_cls_and_kwargs=(optim.AdamW8bit, kwargs))
    built.train()
    state = built.optimizer.optimizer.state
    assert isinstance(state[net.transformer.wte.weight]["exp_avg"], torch.Tensor)
    assert isinstance(state[net.transformer.wpe.weight]["exp_avg"], QuantizedTensor)
    decays = {g["weight_decay"] for g in built.optimizer.optimizer.param_groups}
    assert decays == {0.0, 0.1}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_bfloat16_with_master_copies_learns(tmp_path: Path, accumulate: int) -> None:
    net = model().to(torch.bfloat16)
    options = {"lr": 1e-2, "min_quantized_size": 0, "master_weights": True}
    built = trainer(
        tmp_path,
        net,
        steps=8,
        optimizer_cls_and_kwargs=(optim.AdamW8bit, options),
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.5,
        bf16=True,
        save_strategy="no",
    )
    before = built.evaluate(data())["eval_loss"]
    built.train()
    assert built.evaluate(data())["eval_loss"] < 0.9 * before
    optimizer = built.optimizer.optimizer
    for p in net.parameters():
        assert p.dtype == torch.bfloat16
        assert torch.equal(p, optimizer.state[p][MASTER].bfloat16())
        assert float(optimizer.state[p]["step"]) == 8


def test_captures_of_optimizers_that_do_not_count(tmp_path: Path) -> None:
    chosen = (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9})
    out = tmp_path / "run"
    recorded = CaptureCallback(steps=[1, 4], parameters="transformer.h.*")
    trainer(out, model(), (recorded, StopAfter(3)), optimizer_cls_and_kwargs=chosen).train()
    assert capture.load(out / "states").steps == [1]
    trainer(out, model(), (recorded,), optimizer_cls_and_kwargs=chosen).train(
        resume_from_checkpoint=True
    )
    states = capture.load(out / "states")
    assert states.steps == [1, 4]
    assert {name.split(".")[1] for name in states.parameters()} == {"h"}


def llama() -> nn.Module:
    """Four projections of one shape in each layer, weights of norms in no nn.LayerNorm, a tie."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("make", [model, llama])
def test_a_checkpoint_has_the_models_names(make: Any, tmp_path: Path) -> None:
    net = make()
    built = trainer(tmp_path, net, steps=1, save_steps=1, weight_decay=0.1)
    built.train()
    states = capture.load(tmp_path / "checkpoint-1")
    assert states.naming == "config.json and model.safetensors"
    named = dict(net.named_parameters())
    assert sorted(states.parameters()) == sorted(named)
    assert states.parameters() != list(named)  # the two groups
    for name, parameter in named.items():
        state = built.optimizer.optimizer.state[parameter]
        assert torch.equal(states.tensor(name, "exp_avg"), state["exp_avg"]), name

    config = tmp_path / "checkpoint-1" / "config.json"
    shards = tmp_path / "shards"
    net.save_pretrained(shards, max_shard_size="20KB")
    assert not (shards / "model.safetensors").exists()
    index = shards / "model.safetensors.index.json"
    sharded = capture.load(tmp_path / "checkpoint-1", names=index)
    assert sharded.naming == "config.json and model.safetensors.index.json"
    assert sharded.parameters() == states.parameters()

    text = config.read_text()
    for old, new, why in (
        ('_size": 64', '_size": 65', "model.safetensors does not hold '.*' of the model of config"),
        (type(net).__name__, "Nothing", "transformers has no model 'Nothing', which config.json n"),
        (type(net).__name__, "Trainer", "transformers has no model 'Trainer', which config.json n"),
    ):
        assert old in text
        config.write_text(text.replace(old, new))
        states = capture.load(tmp_path / "checkpoint-1")
        assert states.parameters()[0] == "group0.param0"
        reason = f"numbers: model.safetensors keeps no order of parameters, and {why}"
        assert re.match(reason, states.naming)


def test_a_checkpoint_with_frozen_parameters(tmp_path: Path) -> None:
    net = model()
    net.transformer.wte.weight.requires_grad_(False)
    trainer(tmp_path, net, steps=1, save_steps=1).train()
    states = capture.load(tmp_path / "checkpoint-1")
    assert sorted(states.parameters()) == sorted(
        name for name, parameter in net.named_parameters() if parameter.requires_grad
    )


def test_options_of_nobody_are_refused() -> None:
    with pytest.raises(TypeError) as caught:
        CaptureCallback("states", evry=3)
    assert str(caught.value) == (
        "evry is not an option of CaptureCallback; allowed are out, every, steps, "
        "parameters, gradients"
    )


@pytest.fixture
def names() -> Iterator[list[str]]:
    yield ours.register()
    ours.unregister()


def test_every_rule_has_a_name_in_every_preset(names: list[str], tmp_path: Path) -> None:
    rules = set(optim.rules().values())
    assert len(names) == len(rules) * (1 + len(optim.PRESETS))
    assert set(ours.register()) == set(names)  # again
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, weight_decay=0.1)
    group_of = {}
    for name in names:
        args.optim = transformers.training_args.OptimizerNames(name)
        cls, kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(args)
        groups = [{"params": [nn.Parameter(torch.zeros(80, 80))], "weight_decay": 0.1}]
        optimizer = cls(groups, **kwargs)
        group_of[name] = optimizer.param_groups[0]
        assert (group_of[name]["lr"], group_of[name].get("weight_decay")) == (5e-5, 0.1)
        preset = max(
            (p for p in optim.PRESETS if name.endswith("_" + p.replace("-", "_"))),
            key=len,
            default=None,
        )
        specs = cls.preset_specs(optim.PRESETS[preset or "32bit"])
        assert group_of[name]["state_quantizers"] == specs, name
        rules.discard(cls)
    assert not rules
    assert group_of["qmaps_lion_8bit"]["betas"] == (0.9, 0.99)  # the rule's own

    args.adam_beta2, args.adam_epsilon = 0.95, 1e-6
    for name, betas in {
        "adamw": (0.9, 0.95),
        "lion": (0.9, 0.95),
        "adan": (0.98, 0.95, 0.99),
    }.items():
        args.optim = f"qmaps_{name}"
        _, kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(args)
        assert (kwargs["betas"], kwargs.get("eps")) == (betas, None if name == "lion" else 1e-6)


def test_optim_args_take_a_choice_file(names: list[str], tmp_path: Path) -> None:
    choice = tmp_path / "choice.json"
    optim.Choice("B128/DE@4s+sr + B128/DE-0@4u", min_quantized_size=0).save(choice)
    text = f"state_quantizers={choice}"
    built = trainer(tmp_path, model(), steps=1, optim="qmaps_adamw", optim_args=text)
    optimizer = built.create_optimizer()
    assert {row.quantizer for row in optimizer.memory()} == {"B128/DE@4s+sr", "B128/DE-0@4u"}


def test_the_lines_of_a_recommendation_are_accepted(names: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "lr=1e-3, it's; new"
    folder.mkdir()
    optim.Choice("B128/DE@4s+sr + B128/DE-0@4u", min_quantized_size=0).save(folder / "choice.json")
    code = snippets("", str(folder / "choice.json"), by_name=False, single=None)
    arguments = partial(dict, output_dir=str(tmp_path))
    scope: dict[str, Any] = {"TrainingArguments": arguments}
    exec(code["Trainer of Hugging Face"], scope)
    options = {name: scope["args"][name] for name in ("optim", "optim_args")}
    optimizer = trainer(tmp_path, model(), steps=1, **options).create_optimizer()
    assert {row.quantizer for row in optimizer.memory()} == {"B128/DE@4s+sr", "B128/DE-0@4u"}


def test_a_named_optimizer_trains_as_its_class(names: list[str], tmp_path: Path) -> None:
    text = "state_quantizers=B128/DE@4s+sr + rank1/linear@4u+sr, min_quantized_size=0, seed=4"
    kinds = (
        {"optim": "qmaps_adamw_8bit", "optim_args": text, "learning_rate": 1e-2},
        {"optimizer_cls_and_kwargs": CHOSEN},
    )
    trainers = []
    for options in kinds:
        trainers.append(trainer(tmp_path, model(), steps=2, save_strategy="no", **options))
        trainers[-1].train()
    assert_same(*(built.optimizer.optimizer for built in trainers))
    (args,) = transformers.HfArgumentParser(
        transformers.TrainingArguments
    ).parse_args_into_dataclasses(
        ["--output_dir", str(tmp_path), "--optim", "qmaps_lion_4bit", "--use_cpu"]
    )
    assert args.to_dict()["optim"] == "qmaps_lion_4bit"


@pytest.mark.parametrize(("name", "states"), [("qmaps_adamw_4bit", "4bit"),
                                              ("qmaps_adamw", "32bit")])  # fmt: skip
def test_a_resumed_run_warns_that_it_keeps_its_quantizers(
    names: list[str], name: str, states: str, tmp_path: Path
) -> None:
    options = {"optim_args": "min_quantized_size=0"}
    trainer(tmp_path, model(), steps=3, optim="qmaps_adamw_8bit", **options).train()
    resumed = trainer(tmp_path, model(), steps=4, optim=name, **options)
    with pytest.warns(
        UserWarning, match=f"keeps states in B256/.* NEW --to qmaps --states {states}"
    ):
        resumed.train(resume_from_checkpoint=True)
    saved = tmp_path / "checkpoint-3/optimizer.pt"
    convert_file(saved, saved, to="qmaps", states=states, overwrite=True)
    changed = trainer(tmp_path, model(), steps=4, optim=name, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "state_dict keeps")
        changed.train(resume_from_checkpoint=str(saved.parent))
    (group, *_) = changed.optimizer.param_groups
    assert group["state_quantizers"] == optim.AdamW.preset_specs(optim.PRESETS[states])


def test_names_that_do_not_exist(names: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    def message(**options: Any) -> str:
        with pytest.raises((ValueError, TypeError)) as caught:
            trainer(tmp_path, model(), **options).create_optimizer()
        return str(caught.value)

    assert message(optim="qmaps_adamw_5bit") == (
        "optim='qmaps_adamw_5bit' is not a name of qmaps; allowed are qmaps_RULE and "
        "qmaps_RULE_PRESET, such as qmaps_adamw_8bit; nearest match: qmaps_adamw_8bit"
    )
    assert message(optim="adamx").startswith("adamx is not a valid OptimizerNames")
    assert message(optim="qmaps_adamw", optim_args="stochastic_rouding=true") == (
        "stochastic_rouding=True is not an option of AdamW; nearest match: stochastic_rounding"
    )
    assert message(optim="qmaps_muon_8bit").endswith(
        "Muon steps matrices only, or stacks of them in three dimensions; give it to AdamW "
        "(qmaps.optim.muon_groups separates them)"
    )
    ours.unregister()
    assert message(optim="qmaps_adamw_8bit").startswith("qmaps_adamw_8bit is not a valid Optim")
    ours.unregister()  # again
    monkeypatch.setitem(sys.modules, "transformers.trainer_optimizer", None)
    with pytest.raises(ValueError) as caught:
        ours.register()
    assert str(caught.value) == (
        f"transformers {transformers.__version__} has no table of optimizers, which begins with "
        "5.2; without names, pass optimizer_cls_and_kwargs=(qmaps.optim.AdamW8bit, "
        '{"lr": 1e-3}) to the Trainer'
    )
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("betas=(0.9; 0.95), seed=3", {"betas": (0.9, 0.95), "seed": 3}),
        ("betas=0.9;0.95, maximize=true", {"betas": (0.9, 0.95), "maximize": True}),
        ("overrides={'*.wte.*': None; 'a;b': \"4bit\"}, reset_every=none",
         {"overrides": {"*.wte.*": None, "a;b": "4bit"}, "reset_every": None}),
        ("state_quantizers='B128/DE@4s + rank1/linear@4u'",
         {"state_quantizers": "B128/DE@4s + rank1/linear@4u"}),
        ("state_quantizers=lowrank2(B64/DE@4s)+B64/DE@4s + 32-bit",
         {"state_quantizers": "lowrank2(B64/DE@4s)+B64/DE@4s + 32-bit"}),
        (r"state_quantizers='x\x2c y\x3d1.json'", {"state_quantizers": "x, y=1.json"}),
        ("state_quantizers=it's; 1.json", {"state_quantizers": "it's; 1.json"}),
    ],
)  # fmt: skip
def test_values_of_optim_args(
    text: str, options: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    """transformers itself splits the text at commas, with one equals sign in each part."""
    args = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, optim="qmaps_adamw", optim_args=text
    )
    _, kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(args)
    usual = {"lr": 5e-5, "state_quantizers": "32bit", "betas": (0.9, 0.999)}
    assert kwargs == usual | options


def test_entries_of_other_packages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers, kinds = ours._tables()
    name, later, foreign = "qmaps_adamw_8bit", "qmaps_lion_8bit", "theirs_adamw"
    before, after = (lambda _: "before"), (lambda _: "after")
    monkeypatch.setitem(handlers, name, before)
    monkeypatch.setitem(handlers, foreign, before)
    monkeypatch.setattr(
        kinds, "_missing_", classmethod(lambda _, value: kinds.SGD if value == "s" else None)
    )
    ours.register()
    ours.register()
    assert handlers[name] is not before
    assert kinds("s") is kinds.SGD
    handlers[later] = after
    ours.unregister()
    assert handlers[name] is handlers[foreign] is before
    assert handlers.pop(later) is after
    assert kinds("s") is kinds.SGD
    assert not [key for key in handlers if key.startswith("qmaps_") and key != name]

    ours.register()
    refusing = kinds.__dict__["_missing_"].__func__
    theirs = classmethod(lambda cls, value: kinds.SGD if value == "t" else refusing(cls, value))
    kinds._missing_ = theirs
    ours.unregister()
    assert vars(kinds)["_missing_"] is theirs
    assert (kinds("t"), kinds("s")) == (kinds.SGD, kinds.SGD)
    with pytest.raises(ValueError, match="is not a valid OptimizerNames"):
        kinds("qmaps_adamw_5bit")
    for extra in [member for member in kinds.__members__ if member.startswith("qmaps_")]:
        kinds._value2member_map_.pop(extra)
        kinds._member_map_.pop(extra)
        kinds._member_names_.remove(extra)
