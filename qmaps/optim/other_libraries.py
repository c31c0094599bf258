"""Options of other libraries' optimizers, and their replacements in qmaps.

`docs/bitsandbytes-and-torchao.md` prints the table, and has one of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BITSANDBYTES, TORCHAO = BNB, AO = "bitsandbytes", "torchao"
Row = tuple[str, object, str]

INSTEAD: Mapping[str, Row] = {
    "optim_bits": (BNB, ..., "`state_quantizers='8bit'`, or classes such as `AdamW8bit`"),
    "min_8bit_size": (BNB, 4096, "`min_quantized_size`: above that size, not from it on"),
    "percentile_clipping": (BNB, 100, "none; use `torch.nn.utils.clip_grad_norm_`"),
    "block_wise": (BNB, True, "the normalizer of a spec: `B256`, or `tensor` for one scale"),
    "is_paged": (BNB, False, "none; `CPUOffloadOptimizer` keeps states in the CPU's memory"),
    "args": (BNB, None, "none; pass the options themselves"),
    "adam_w_mode": (BNB, True, "none; trust ratios also scale weight decay, as in the paper"),
    "dampening": (BNB, 0, "none; only `SGD` has it"),
    "bf16_stochastic_round": (AO, False, "`stochastic_rounding`"),
    "offload_gradients": (AO, False, "none; `release_gradients` frees gradients while training"),
    "minimal_size": (AO, 0, "none; `CPUOffloadOptimizer` offloads all parameters"),
}
"""By option: the library that has it; the value that asks for nothing, ``...`` if there is none;
and what qmaps has instead, as the documentation prints."""

NEUTRAL = {name: value for name, (_, value, _) in INSTEAD.items() if value is not ...}
"""Options of `INSTEAD` with the value that asks for nothing; every optimizer accepts it."""

TAGS = frozenset({"args", "dampening"})
"""Options of `INSTEAD` that are accepted in parameter groups, where other code may use the name."""

IN_GROUPS: Mapping[str, Row] = {
    **{name: row for name, row in INSTEAD.items() if name not in TAGS},
    "optim_bits": (BNB, ..., "`'state_quantizers': '8bit'`, or `'quantize': False` for 32 bits"),
}
"""`INSTEAD` for parameter groups."""


def instead_of(name: str, replacements: Mapping[str, Row] = INSTEAD) -> str:
    """The end of an error message about an unknown option; ``""`` if no other library has it."""
    if name not in replacements:
        return ""
    library, _, here = replacements[name]
    return f"; {library} has it. In qmaps: {here.replace('`', '')}"


def writer_of(states: Mapping[Any, Any]) -> str:
    """The library of quantized states; ``""`` if there are none."""
    for state in states.values():
        if isinstance(state, Mapping):
            if not {"state1", "__bnb_optimizer_quant_state__"}.isdisjoint(state):
                return BITSANDBYTES
            if any(type(value).__module__.startswith("torchao.") for value in state.values()):
                return TORCHAO
    return ""
