"""`qmaps memory` of sizes and of files of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from qmaps import optim

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 96,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": 100, "dtype": "float16",
}  # fmt: skip


def table(call: Any, arguments: str) -> dict[str, dict[str, Any]]:
    code, out, err = call(f"memory {arguments} --json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    return {row["preset"]: {**row, "numel": found["numel"]} for row in found["presets"]}


def test_a_size(call: Any) -> None:
    rows = table(call, "7B")
    assert list(rows) == list(optim.PRESETS)
    assert {row["gradients"] for row in rows.values()} == {14 * 10**9}
    assert rows["32bit"]["states"] == 56 * 10**9
    assert rows["32bit"]["total"] == 84 * 10**9
    assert rows["4bit"]["states"] == pytest.approx(7e9 * 8.5 / 8, rel=1e-5)
    assert [rows[name]["fits"] for name in ("32bit", "8bit", "4bit")] == [
        "> 80 GB",
        "48 GB",
        "48 GB",
    ]
    code, out, _ = call("memory 1B --dtype float32")
    assert code == 0
    assert "1,000,000,000 parameters in float32, AdamW, GB" in out
    cells = [line.replace("│", " ").split() for line in out.splitlines()]
    assert [
        "32bit",
        "8.00",
        "4.00",
        "4.00",
        "16.00",
        "24",
        "GB",
    ] in cells  # more is needed than 16.00
    assert ["8bit", "2.03", "4.00", "4.00", "10.03", "16", "GB"] in cells
    assert "1 GB is 1,000,000,000 bytes. Activations, and what a GPU needs itself, come" in out
    assert "AdamW, MB" in call("memory 1M")[1]


def test_the_page_out_of_memory_has_the_numbers_of_the_command(call: Any) -> None:
    page = Path(__file__).parents[2] / "docs" / "out-of-memory.md"
    small, large = (table(call, size) for size in ("1B", "7B"))
    for preset in optim.PRESETS:
        cells = [f"`{preset}`"]
        for row in (small[preset], large[preset]):
            cells += [f"{row[part] / 1e9:.2f}" for part in ("states", "total")] + [row["fits"]]
        assert f"\n| {' | '.join(cells)} |\n" in page.read_text(encoding="utf-8")


def test_files_of_a_model(call: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra huggingface")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).half()
    numel = sum(param.numel() for param in model.parameters())
    exact = optim.AdamW8bit(model.parameters()).memory().nbytes
    expected = {"numel": numel, "states": exact, "gradients": 2 * numel, "parameters": 2 * numel}

    def check(name: str, **other: int) -> None:
        row = table(call, str(tmp_path / name))["8bit"]
        assert {key: row[key] for key in expected} == {**expected, **other}, name

    check("config.json")
    assert table(call, f"{tmp_path} --dtype float32")["8bit"]["gradients"] == 4 * numel
    weights = {name: param.detach() for name, param in model.named_parameters()}
    save_file({**weights, "count": torch.ones(3, dtype=torch.int64)}, tmp_path / "a.safetensors")
    index = {
        "weight_map": dict.fromkeys(weights, "a.safetensors"),
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").unlink()
    check("a.safetensors")
    check("model.safetensors.index.json")
    check(".")
    (tmp_path / "a.safetensors").unlink()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    check(".")


def test_what_is_refused(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, why in {
        "{": "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "{}": "config.json does not name the model's architecture",
        '{"weight_map": {}}': "neither the shards of config.json nor a config.json are beside it",
    }.items():
        path.write_text(text)
        assert call(f"memory {path}") == (
            2, "", f"error: model={str(path)!r} cannot be read ({why})\n"
        )  # fmt: skip
    assert call("memory 7B --dtype int8")[2] == (
        "error: dtype='int8' must be float32, bfloat16 or float16\n"
    )
    assert call("memory 7B --optimizer AdamW8bit")[2] == (
        f"error: optimizer='AdamW8bit' must be one of {', '.join(optim.rules())}; nearest match: "
        "AdamW\n"
    )


def test_parameters_that_a_rule_does_not_step_are_of_adamw(call: Any) -> None:
    muon = table(call, "10K --optimizer Muon")["32bit"]
    rest = 10_000 % 4096
    assert muon["states"] == 4 * 10_000 + 4 * rest
    out = call("memory 10K --optimizer Muon")[1]
    assert f"AdamW has {rest:,} of them, which Muon does not step.\n" in out
    assert call("memory 7B --optimizer SOAP") == (
        2,
        "",
        "error: model='7B' has a size only, and the states of SOAP depend on the shapes of "
        "parameters; give a config.json or a .safetensors file\n",
    )
