"""The code of docs/trainers.md, run in its order."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from qmaps import optim
from qmaps.algebra.quantizer import QuantizedTensor

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")


def block(section: str, language: str = "python") -> str:
    """The first block of code below a heading."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)[0]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Names assumed by the page: a model, its data and its tokenizer."""
    transformers = pytest.importorskip("transformers", reason="the extra huggingface")
    tokenizers = pytest.importorskip("tokenizers", reason="the extra huggingface")
    integration = pytest.importorskip("qmaps.integrations.transformers")
    monkeypatch.chdir(tmp_path)
    for name, value in {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=64, n_layer=1, n_head=2)
    words = tokenizers.models.WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0")
    texts = [
        {"input_ids": list(range(n, n + 16)), "labels": list(range(n, n + 16))} for n in range(8)
    ]
    yield {
        "__name__": __name__,  # Lightning looks for the source of classes
        "model": transformers.GPT2LMHeadModel(config),
        "dataset": texts,
        "tokenizer": transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer(words), pad_token="w1", eos_token="w2"
        ),
        "loader": [{name: torch.tensor([row[name]]) for name in row} for row in texts[:2]],
    }
    integration.unregister()


@pytest.fixture
def stepped() -> Iterator[list[Any]]:
    """The stepped optimizers, in order."""
    optimizers: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: optimizers.append(optimizer))
    yield optimizers
    handle.remove()


def fit(scene: dict[str, Any]) -> None:
    """Train the module of the section on Lightning."""
    lightning = pytest.importorskip("lightning.pytorch")
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(scene["loader"], batch_size=None)
    trainer.fit(scene["Mine"](), loader)


NEEDED = {
    "transformers": "transformers", "TRL": "trl", "Lightning": "lightning",
    "accelerate": "accelerate", "Your own loop": "torch",
}  # fmt: skip


@pytest.mark.parametrize("section", NEEDED)
def test_the_line_trains(section: str, scene: dict[str, Any], stepped: list[Any]) -> None:
    pytest.importorskip(NEEDED[section], reason=f"{NEEDED[section]} is not installed")
    if section == "TRL":
        scene["dataset"] = pytest.importorskip("datasets").Dataset.from_list(scene["dataset"])
    code = block(section).replace('"runs/sft", ', '"runs/sft", use_cpu=True, ')
    exec(compile(code, section, "exec"), scene)
    if section == "Lightning":
        fit(scene)
    weight = next(p for name, p in scene["model"].named_parameters() if "c_fc.weight" in name)
    assert len(stepped) > 1
    assert isinstance(stepped[-1].state[weight]["exp_avg"], QuantizedTensor)
    assert stepped[-1].state[weight]["exp_avg"].quantizer.spec == "B256/DE-sym@8s"


def test_the_plugin_for_axolotl_and_the_names_in_files(scene: Any, monkeypatch: Any) -> None:
    transformers, yaml = pytest.importorskip("transformers"), pytest.importorskip("yaml")
    base = ModuleType("axolotl.integrations.base")
    base.BasePlugin = object  # type: ignore[attr-defined]
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    exec(block("axolotl"), scene)
    scene["Qmaps"]().register({})
    for section, key in {"axolotl": "optimizer", "LLaMA-Factory": "optim"}.items():
        options = yaml.safe_load(block(section, "yaml"))
        text = options["optim_args"]
        if isinstance(text, dict):  # axolotl writes it as one text
            text = ",".join(f"{name}={value}" for name, value in text.items())
        args = transformers.TrainingArguments(
            "x", optim=options[key], optim_args=text, use_cpu=True
        )
        cls, kwargs = transformers.Trainer.get_optimizer_cls_and_kwargs(args)
        assert cls is optim.AdamW
        assert (kwargs["state_quantizers"], kwargs["stochastic_rounding"]) == ("8bit", True)


def test_the_table_marks_the_tested_trainers() -> None:
    rows = dict(re.findall(r"^\| \[(.+?)\]\(.+\| (.+?) \|$", PAGE, re.MULTILINE))
    run = {name.lower() for name, where in rows.items() if not where.startswith("not ")}
    assert run == {name.lower() for name in NEEDED} | {"hydra"}
