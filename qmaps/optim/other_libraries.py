"""Options of other libraries' optimizers that are none here, and what stands for each.

`docs/bitsandbytes-and-torchao.md` prints this table.
"""

from __future__ import annotations

from collections.abc import Mapping

BITSANDBYTES, TORCHAO = "bitsandbytes", "torchao"

INSTEAD: Mapping[str, tuple[str, str]] = {
    "optim_bits": (BITSANDBYTES, "`state_quantizers='8bit'`, or classes such as `AdamW8bit`"),
    "min_8bit_size": (BITSANDBYTES, "`min_quantized_size`: above that size, not from it on"),
    "percentile_clipping": (BITSANDBYTES, "none; `torch.nn.utils.clip_grad_norm_` clips gradients"),
    "block_wise": (BITSANDBYTES, "the normalizer of a spec: `B256`, or `tensor` for one scale"),
    "is_paged": (BITSANDBYTES, "none; states stay on the parameter's device"),
    "args": (BITSANDBYTES, "none; name the options themselves"),
    "adam_w_mode": (BITSANDBYTES, "none; the trust ratio scales weight decay too, as in the paper"),
    "dampening": (BITSANDBYTES, "none; `SGD` has it"),
    "bf16_stochastic_round": (TORCHAO, "`stochastic_rounding`"),
    "offload_gradients": (TORCHAO, "none; gradients stay on the parameter's device"),
    "minimal_size": (TORCHAO, "none; states stay on the parameter's device"),
}  # fmt: skip
"""By name: whose option it is, and what qmaps has instead, as the documentation prints it."""


def instead_of(name: str) -> str:
    """What a message adds about an unknown option: ``""`` if nobody has it."""
    if name not in INSTEAD:
        return ""
    library, here = INSTEAD[name]
    return f", but of {library}; here: {here.replace('`', '')}"
