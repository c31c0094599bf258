"""Lines to paste that train with a choice, and names in sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from qmaps.errors import printable

CHOICE = "choice.json"
"""Name of the file of a choice in the folder of a recommendation."""
NAMED = 3
"""Names in a note, where not all are given."""

TRAINER = """\
from qmaps.integrations.transformers import register

register()
args = TrainingArguments(
    optim="qmaps_adamw",
    optim_args={quoted},
    # and the other arguments as before
)"""
TRAINER_BY_NAME = "trainer = Trainer(..., optimizers=(optimizer, None))  # the optimizer above"
LLAMA_FACTORY = """\
optim: qmaps_adamw
optim_args: {quoted}"""
AXOLOTL = """\
optimizer: qmaps_adamw
optim_args:
  state_quantizers: {value}"""


def snippets(code: str, file: str, *, by_name: bool, single: str | None) -> dict[str, str]:
    """Lines to paste that train with a choice, by the place where they go.

    Trainers pass no parameter names. With a choice by names, the Trainer gets the optimizer, and
    configurations get one pair for all parameters.

    Args:
        code: the lines of a training loop, which make the optimizer.
        file: path of the choice file.
        by_name: True if the choice has overrides.
        single: a pair for all parameters, None if there is no harmless one.
    """
    value = _escaped(single or "" if by_name else file)
    option, argument = (
        json.dumps(text, ensure_ascii=False) for text in (value, f"state_quantizers={value}")
    )
    trainer = TRAINER_BY_NAME if by_name else TRAINER.format(quoted=argument)
    lines = {"Training loop": code, "Trainer of Hugging Face": trainer}
    if value:
        about = ", one pair for all parameters" * by_name
        lines |= {
            f"YAML of LLaMA-Factory{about}": LLAMA_FACTORY.format(quoted=argument),
            f"YAML of axolotl{about}": AXOLOTL.format(value=option),
        }
    return lines


def _escaped(value: str) -> str:
    """A value for `optim_args` of transformers, which splits them at commas and equals signs."""
    if not re.search(r"[,;='\"\\\\]", value):
        return value
    return "'" + re.sub(r"[,;='\"\\\\]", lambda each: f"\\x{ord(each[0]):02x}", value) + "'"


def brief(names: Iterable[str], count: int = NAMED) -> str:
    """The first names, with escapes for control characters; of more only the number is given."""
    listed = [printable(name) for name in names]
    more = f" and {len(listed) - count} more tensors" * (len(listed) > count)
    return ", ".join(listed[:count]) + more
