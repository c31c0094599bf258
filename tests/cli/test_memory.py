"""`qmaps memory` of sizes and of files of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from qmaps import optim
from qmaps.capture import model_limits

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 96,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vocab_size": 100, "dtype": "float16",
}  # fmt: skip


def table(call: Any, arguments: str) -> dict[str, dict[str, Any]]:
    code, out, err = call(f"memory {arguments} --json")
    assert (code, err) == (0, "")
    loaded = json.loads(out)
    return {row["preset"]: {**row, "numel": loaded["numel"]} for row in loaded["presets"]}


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
    more_than_16 = ["32bit", "32.00", "8.00", "8.00", "4.00", "4.00", "16.00", "24", "GB"]
    assert more_than_16 in cells
    assert ["4bit", "4.25", "1.06", "1.06", "4.00", "4.00", "9.06", "16", "GB"] in cells
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

    def check(name: str, **changes: int) -> None:
        row = table(call, str(tmp_path / name))["8bit"]
        assert {key: row[key] for key in expected} == {**expected, **changes}, name

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


def test_bad_configs_are_refused(call: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, why in {
        "{": "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "[]": "config.json holds no JSON object",
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
    unquantized = 10_000 % 4096
    assert muon["states"] == 4 * 10_000 + 4 * unquantized
    out = call("memory 10K --optimizer Muon")[1]
    assert f"AdamW has {unquantized:,} of them, which Muon does not step.\n" in out
    assert call("memory 7B --optimizer SOAP") == (
        2,
        "",
        "error: model='7B' has a size only, and the states of SOAP depend on the shapes of "
        "parameters; give a config.json or a .safetensors file\n",
    )


def test_adapters_of_lora_are_all_that_is_trained(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    base = table(call, str(tmp_path))["32bit"]
    # Shapes as peft 0.21 makes them: A of r rows, B of r columns, both in float32.
    hidden, inner, layers = 96, 128, LLAMA["num_hidden_layers"]
    shapes = {"q_proj": 2 * hidden, "k_proj": 2 * hidden, "v_proj": 2 * hidden,
              "o_proj": 2 * hidden, "gate_proj": hidden + inner, "up_proj": hidden + inner,
              "down_proj": hidden + inner}  # fmt: skip
    for targets, names in (("all-linear", shapes), ("q_proj,v_proj", ("q_proj", "v_proj"))):
        numel = 8 * layers * sum(shapes[name] for name in names)
        row = table(call, f"{tmp_path} --lora-rank 8 --lora-targets {targets}")["32bit"]
        assert (row["gradients"], row["states"]) == (4 * numel, 8 * numel)
        assert row["parameters"] == base["parameters"] + 4 * numel
    out = call(f"memory {tmp_path}/config.json --lora-rank 8 --dtype bfloat16")[1]
    assert "parameters in bfloat16, AdamW, MB" in out
    assert "LoRA of rank 8 in 14 linear layers: only its 23,040 parameters, in float32," in out


def test_lora_that_is_refused(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for arguments, why in {
        "7B --lora-rank 8": "model='7B' must be a config.json, or lie beside one, for "
        "lora_rank=8; it tells the linear layers",
        "7B --lora-targets q_proj": "lora_targets='q_proj' needs --lora-rank",
        f"{tmp_path} --lora-rank 8 --lora-targets q_proj,": "lora_targets='q_proj,' must be "
        "all-linear or names of linear layers with commas between them: down_proj, gate_proj, "
        "k_proj, o_proj, q_proj, up_proj, v_proj",
    }.items():
        assert call(f"memory {arguments}") == (2, "", f"error: {why}\n")


HIDDEN, INNER, GROUP = LLAMA["hidden_size"], LLAMA["intermediate_size"], 32
PROJECTIONS = {
    **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (HIDDEN, HIDDEN)),
    **{"self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)},
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), (INNER, HIDDEN)),
}
"""Shapes (out, in) of the linear layers of a layer of Llama."""

Layout = Callable[[int, int], dict[str, tuple[torch.dtype, tuple[int, ...]]]]


def bitsandbytes_4bit(storage: torch.dtype) -> Layout:
    return lambda out, size: {
        "weight": (storage, (out * size // 2 // storage.itemsize, 1)),
        "weight.absmax": (torch.float32, (out * size // 64,)),
        "weight.quant_map": (torch.float32, (16,)),
        "weight.quant_state.bitsandbytes__nf4": (torch.uint8, (78,)),
    }


LAYOUTS: dict[str, Layout] = {
    "bitsandbytes nf4": bitsandbytes_4bit(torch.uint8),
    "bitsandbytes nf4 as bfloat16": bitsandbytes_4bit(torch.bfloat16),
    "bitsandbytes int8": lambda out, size: {
        "weight": (torch.int8, (out, size)),
        "SCB": (torch.float32, (out,)),
        "weight_format": (torch.uint8, ()),
    },
    "GPTQ": lambda out, size: {
        "qweight": (torch.int32, (size // 8, out)),
        "qzeros": (torch.int32, (size // GROUP, out // 8)),
        "scales": (torch.float16, (size // GROUP, out)),
        "g_idx": (torch.int32, (size,)),
    },
    "AWQ": lambda out, size: {
        "qweight": (torch.int32, (size, out // 8)),
        "qzeros": (torch.int32, (size // GROUP, out // 8)),
        "scales": (torch.float16, (size // GROUP, out)),
    },
    "FP8": lambda out, size: {
        "weight": (torch.float8_e4m3fn, (out, size)),
        "weight_scale_inv": (torch.float32, (1, 1)),
    },
    "compressed-tensors, 4 bits": lambda out, size: {
        "weight_packed": (torch.int32, (out, size // 8)),
        "weight_scale": (torch.bfloat16, (out, size // GROUP)),
        "weight_shape": (torch.int64, (2,)),
    },
    "compressed-tensors, int8": lambda out, size: {
        "weight": (torch.int8, (out, size)),
        "weight_scale": (torch.bfloat16, (out, 1)),
    },
}
"""Tensors of a linear layer as libraries store them, from its numbers of outputs and inputs."""


def packed_llama(folder: Path, layout: Layout) -> None:
    """Write the weights of `LLAMA` with packed linear layers."""
    tensors = {"model.embed_tokens.weight": torch.zeros(100, HIDDEN, dtype=torch.float16)}
    tensors["lm_head.weight"] = torch.zeros(100, HIDDEN, dtype=torch.float16)
    tensors["model.norm.weight"] = torch.zeros(HIDDEN, dtype=torch.float16)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.zeros(HIDDEN, dtype=torch.float16)
        for name, shape in PROJECTIONS.items():
            for part, (dtype, size) in layout(*shape).items():
                tensors[f"{prefix}{name}.{part}"] = torch.zeros(size, dtype=dtype)
    save_file(tensors, folder / "model.safetensors")


LLAMA_NUMEL = 2 * 100 * HIDDEN + HIDDEN + 2 * (4 * HIDDEN**2 + 3 * HIDDEN * INNER + 2 * HIDDEN)


@pytest.mark.parametrize("name", LAYOUTS)
def test_packed_weights_count_as_the_config_says(name: str, call: Any, tmp_path: Path) -> None:
    packed_llama(tmp_path, LAYOUTS[name])
    code, out, err = call(f"memory {tmp_path}")
    assert (code, out) == (2, "")
    codes = next(iter(LAYOUTS[name](32, 32)))
    assert f"'model.layers.0.mlp.down_proj.{codes}' in model.safetensors holds packed" in err
    assert err.endswith("), and there is no config.json beside it)\n")
    pytest.importorskip("transformers", reason="the extra huggingface")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for place in (tmp_path, tmp_path / "model.safetensors"):
        row = table(call, str(place))["8bit"]
        expected = (LLAMA_NUMEL, 2 * LLAMA_NUMEL, 2 * LLAMA_NUMEL)
        assert (row["numel"], row["gradients"], row["parameters"]) == expected
    without = {key: value for key, value in LLAMA.items() if key != "dtype"}
    (tmp_path / "config.json").write_text(json.dumps(without))
    assert table(call, str(tmp_path))["8bit"]["gradients"] == 2 * LLAMA_NUMEL  # as embeddings
    (tmp_path / "config.json").write_text("{}")
    assert call(f"memory {tmp_path}")[2].endswith(
        "), and config.json does not name the model's architecture)\n"
    )


def test_packed_experts_of_gpt_oss(call: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra huggingface")
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_local_experts": 4, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 100,
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**config))
    tensors = {}
    for name, param in model.bfloat16().state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, size, out = param.shape
            tensors[f"{name}_blocks"] = torch.zeros(experts, out, size // 32, 16, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.zeros(experts, out, size // 32, dtype=torch.uint8)
        else:
            tensors[name] = param
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    row = table(call, str(tmp_path))["8bit"]
    numel = sum(param.numel() for param in model.parameters())
    assert (row["numel"], row["gradients"]) == (numel, 2 * numel)


def test_buffers_are_no_parameters(call: Any, tmp_path: Path) -> None:
    tensors = {
        "h.0.attn.bias": torch.zeros(1, 1, 64, 64),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
        "h.0.attn.c_attn.bias": torch.zeros(24),
        "h.1.attn.bias": torch.zeros(1, 1, 64, 64, dtype=torch.uint8),
        "attention.bias": torch.zeros(24),
        "layers.0.rotary_emb.inv_freq": torch.zeros(16),
        "norm.running_mean": torch.zeros(8),
        "norm.running_var": torch.zeros(8),
        "norm.num_batches_tracked": torch.tensor(3),
        "position_ids": torch.arange(64)[None],
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert table(call, str(tmp_path))["8bit"]["numel"] == 48


def test_the_dtype_of_a_config(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface")
    path = tmp_path / "config.json"
    without = {key: value for key, value in LLAMA.items() if key != "dtype"}
    for entry, nbytes in (
        ({"torch_dtype": "bfloat16"}, 2),
        ({"dtype": "float32"}, 4),
        ({}, 4),
        ({"quantization_config": {"quant_method": "mxfp4", "dtype": "int4"}}, 4),
    ):
        path.write_text(json.dumps({**without, **entry}))
        row = table(call, str(path))["8bit"]
        assert row["gradients"] == nbytes * row["numel"], entry
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    parts = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {**LLAMA, "dtype": "bfloat16"},
        "vision_config": {"model_type": "clip_vision_model", "num_attention_heads": 2, **vision},
    }
    for name in ("dtype", "torch_dtype"):
        parts["text_config"] = {**without, name: "bfloat16"}
        path.write_text(json.dumps(parts))
        row = table(call, str(path))["8bit"]
        assert row["gradients"] == 2 * row["numel"]
    for name in ("__name__", "int8", "tensor", 5):
        path.write_text(json.dumps({**LLAMA, "dtype": name}))
        why = f"dtype={name!r} of config.json is no dtype of floating point"
        assert call(f"memory {path}") == (
            *(2, ""),
            f"error: model={str(path)!r} cannot be read ({why})\n",
        )


def test_a_path_of_any_length(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    folder = tmp_path / ("a" * 150) / ("b" * 150)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 1}))
    per_layer = (LLAMA_NUMEL - 2 * 100 * HIDDEN - HIDDEN) // 2
    assert table(call, str(folder))["8bit"]["numel"] == LLAMA_NUMEL - per_layer
    for text in (f"{tmp_path}/{'c' * 300}", "d" * 5000):
        code, out, err = call(f"memory {text}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.endswith(
            " must be a size such as 7B, a config.json, a .safetensors file or its index, or a "
            "folder of them\n"
        )


def test_enormous_sizes_are_refused(call: Any, tmp_path: Path) -> None:
    assert call("memory 9008T") == (
        *(2, ""),
        "error: model='9008T' must be a size of at most 2**53 parameters\n",
    )
    path = tmp_path / "config.json"
    for text, why in {
        "[" * 100_000 + "]" * 100_000: "its JSON is nested too deeply",
        json.dumps({**LLAMA, "num_hidden_layers": 2001}):
            "num_hidden_layers=2001 of config.json must be at most 2,000",
        json.dumps({**LLAMA, "text_config": {"num_experts": 10_001}}):
            "num_experts=10001 of config.json must be at most 10,000",
    }.items():  # fmt: skip
        path.write_text(text)
        assert call(f"memory {path}") == (
            *(2, ""),
            f"error: model={str(path)!r} cannot be read ({why})\n",
        )


def test_a_model_of_too_many_parameters_is_refused(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface")
    monkeypatch.setattr(model_limits, "PARAMETERS", 20)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert call(f"memory {path}")[2] == (
        f"error: model={str(path)!r} cannot be read (the model of config.json has more than 20 "
        "parameters)\n"
    )
    monkeypatch.setattr(model_limits, "PARAMETERS", 21)
    assert table(call, str(path))["8bit"]["numel"] == LLAMA_NUMEL
