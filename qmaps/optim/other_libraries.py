"""Options of other libraries' optimizers that qmaps lacks, and what replaces each.

`docs/bitsandbytes-and-torchao.md` prints this table.
"""

from __future__ import annotations

from collections.abc import Mapping

BITSANDBYTES, TORCHAO = "bitsandbytes", "torchao"

INSTEAD: Mapping[str, tuple[str, str]] = {
    "optim_bits": (BITSANDBYTES, "`state_quantizers='8bit'`, or classes such as `AdamW8bit`"),
    "min_8bit_size": (BITSANDBYTES, "`min_quantized_size`: above that size, not from it on"),
    "percentile_clipping": (BITSANDBYTES, "none; use `torch.nn.utils.clip_grad_norm_`"),
    "block_wise": (BITSANDBYTES, "the normalizer of a spec: `B256`, or `tensor` for one scale"),
    "is_paged": (BITSANDBYTES, "none; states stay on the parameter's device"),
    "args": (BITSANDBYTES, "none; pass the options themselves"),
    "adam_w_mode": (BITSANDBYTES, "none; trust ratios also scale weight decay, as in the paper"),
    "dampening": (BITSANDBYTES, "none; only `SGD` has it"),
    "bf16_stochastic_round": (TORCHAO, "`stochastic_rounding`"),
    "offload_gradients": (TORCHAO, "none; gradients stay on the parameter's device"),
    "minimal_size": (TORCHAO, "none; states stay on the parameter's device"),
}  # fmt: skip
"""By option: the library that has it, and what qmaps has instead, as the documentation prints."""


def instead_of(name: str) -> str:
    """The end of an error message about an unknown option; ``""`` if no other library has it."""
    if name not in INSTEAD:
        return ""
    library, here = INSTEAD[name]
    return f"; {library} has it. In qmaps: {here.replace('`', '')}"
