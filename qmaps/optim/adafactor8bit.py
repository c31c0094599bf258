"""Adafactor with second moments in log2 space."""

from __future__ import annotations

from qmaps.optim.adafactor import Adafactor
from qmaps.optim.fixed_width import FixedWidth


class Adafactor8bit(FixedWidth, Adafactor):
    """`Adafactor` with 8-bit states: second moments in log2 space, ``logB256/log2@8u``.

    Blocks keep the range of log2 that their values take, and zero exactly. The first moment is
    ``B128/DE@8s``. Rows and columns are quantized where there are more than `min_quantized_size`
    of them; those of projected gradients stay in 32 bits.

    Takes the arguments of `Adafactor`, and `block_size` for `state_quantizers` (`FixedWidth`).

    Source: 8-bit Adafactor, project page and its later development.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adafactor8bit(layer.parameters(), factored=False)
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["variance"]
    QuantizedTensor('logB256/log2@8u', shape=(64, 128), 8448 bytes)
    """

    @classmethod
    def fixed_specs(cls, block_size: int | None) -> dict[str, str | None]:
        """The spec of each state; a block size of None is the class's own."""
        moment = f"logB{256 if block_size is None else block_size}/log2@8u"
        second = ("variance", "row_var", "col_var", "residual_row", "residual_col", "low_variance")
        first = dict.fromkeys(("exp_avg", "low_exp_avg"), "B128/DE@8s")
        return {**first, **dict.fromkeys(second, moment)}
