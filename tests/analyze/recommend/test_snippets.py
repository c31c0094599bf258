"""Lines to paste load the choice from any path, where the trainer allows it."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from qmaps.analyze.recommend.snippets import snippets
from qmaps.optim import AdamW

PATHS = ("runs/mine/recommend/choice.json", "runs, 2/lr=1e-3;x/it's \\ new/choice.json")
SINGLE = "B16x8/linear0(full=true)@2s+sr + B32x8/power3@2u"


def parsed(optim_args: str) -> dict[str, Any]:
    """Options as transformers splits them, and qmaps reads them."""
    options = {}
    for part in optim_args.split(","):
        key, value = part.split("=")
        options[key] = ast.literal_eval(value) if value[:1] == "'" else value
    return options


def values_of(code: dict[str, str]) -> tuple[str, str, str]:
    """The value of `state_quantizers` in the lines of Trainer, LLaMA-Factory and axolotl."""
    _, trainer, llama, axolotl = code.values()
    match = re.search(r"optim_args=(.*),$", trainer, re.MULTILINE)
    assert llama.startswith("optim: qmaps_adamw\noptim_args: ")
    assert axolotl.startswith("optimizer: qmaps_adamw\noptim_args:\n  state_quantizers: ")
    ours = ast.literal_eval(match[1]) if match else ""
    # A double-quoted scalar of YAML with these escapes is a str of Python, too.
    theirs = ast.literal_eval(llama.partition("optim_args: ")[2])
    dictionary = ast.literal_eval(axolotl.partition("state_quantizers: ")[2])
    return ours, theirs, f"state_quantizers={dictionary}"


@pytest.mark.parametrize("path", PATHS)
def test_every_trainer_gets_the_file(path: str) -> None:
    code = snippets("optimizer = AdamW(...)", path, by_name=False, single=None)
    assert list(code) == [
        *("Training loop", "Trainer of Hugging Face", "YAML of LLaMA-Factory", "YAML of axolotl"),
    ]
    assert code["Training loop"] == "optimizer = AdamW(...)"
    for text in values_of(code):
        assert parsed(text) == {"state_quantizers": path}


def test_quantizers_by_name_go_to_trainers_in_an_optimizer() -> None:
    code = snippets("optimizer = AdamW(...)", "choice.json", by_name=True, single=SINGLE)
    assert "optimizers=(optimizer, None)" in code["Trainer of Hugging Face"]
    llama, axolotl = values_of(code)[1:]
    for text in (llama, axolotl):
        assert parsed(text) == {"state_quantizers": SINGLE}
    assert list(code)[2:] == [
        "YAML of LLaMA-Factory, one pair for all parameters",
        "YAML of axolotl, one pair for all parameters",
    ]
    assert list(snippets("", "choice.json", by_name=True, single=None)) == [
        "Training loop",
        "Trainer of Hugging Face",
    ]
    assert AdamW.__module__.endswith(".adamw")  # the name qmaps_adamw
