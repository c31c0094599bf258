"""Options of other libraries' optimizers, and their replacements in qmaps.

`docs/bitsandbytes-and-torchao.md` prints the table, and has one of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BITSANDBYTES, TORCHAO = "bitsandbytes", "torchao"

INSTEAD: Mapping[str, tuple[str, str]] = {
    "optim_bits": (BITSANDBYTES, "`state_quantizers='8bit'`, or classes such as `AdamW8bit`"),
    "min_8bit_size": (BITSANDBYTES, "`min_quantized_size`: above that size, not from it on"),
    "percentile_clipping": (BITSANDBYTES, "none; use `torch.nn.utils.clip_grad_norm_`"),
    "block_wise": (BITSANDBYTES, "the normalizer of a spec: `B256`, or `tensor` for one scale"),
    "is_paged": (BITSANDBYTES, "none; `CPUOffloadOptimizer` keeps states in the CPU's memory"),
    "args": (BITSANDBYTES, "none; pass the options themselves"),
    "adam_w_mode": (BITSANDBYTES, "none; trust ratios also scale weight decay, as in the paper"),
    "dampening": (BITSANDBYTES, "none; only `SGD` has it"),
    "bf16_stochastic_round": (TORCHAO, "`stochastic_rounding`"),
    "offload_gradients": (TORCHAO, "none; `release_gradients` frees gradients while training"),
    "minimal_size": (TORCHAO, "none; `CPUOffloadOptimizer` offloads all parameters"),
}  # fmt: skip
"""By option: the library that has it, and what qmaps has instead, as the documentation prints."""

NEUTRAL: Mapping[str, object] = {
    "min_8bit_size": 4096,
    "percentile_clipping": 100,
    "block_wise": True,
    "is_paged": False,
    "args": None,
    "adam_w_mode": True,
    "dampening": 0,
    "bf16_stochastic_round": False,
    "offload_gradients": False,
    "minimal_size": 0,
}
"""The value of an option of `INSTEAD` that asks for nothing; every optimizer accepts it."""


def instead_of(name: str) -> str:
    """The end of an error message about an unknown option; ``""`` if no other library has it."""
    if name not in INSTEAD:
        return ""
    return _hint(*INSTEAD[name])


IN_GROUPS: Mapping[str, tuple[str, str]] = {
    "optim_bits": (BITSANDBYTES, "`'state_quantizers': '8bit'`, or `'quantize': False` for 32 bits")
}
"""The same for options that are replaced by something else in a parameter group."""

TAGS = frozenset({"args", "dampening"})
"""Options of `INSTEAD` that are accepted in parameter groups, where other code may use the name."""


def instead_in_groups(name: str) -> str:
    """`instead_of`, for a key of a parameter group; ``""`` for accepted keys."""
    return (
        _hint(*IN_GROUPS[name]) if name in IN_GROUPS else "" if name in TAGS else instead_of(name)
    )


def writer_of(states: Mapping[Any, Any]) -> str:
    """The library of quantized states; ``""`` if there are none."""
    for state in states.values():
        if isinstance(state, Mapping):
            if not {"state1", "__bnb_optimizer_quant_state__"}.isdisjoint(state):
                return BITSANDBYTES
            if any(type(value).__module__.startswith("torchao.") for value in state.values()):
                return TORCHAO
    return ""


def _hint(library: str, here: str) -> str:
    return f"; {library} has it. In qmaps: {here.replace('`', '')}"
