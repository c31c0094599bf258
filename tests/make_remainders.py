"""Make tests/remainders.py: two packages' remainders of float32 values beside bfloat16.

Install flashoptim 0.1.4, heavyball 3.2.1 and triton into a folder without their dependencies
(``pip install --no-deps --target FOLDER flashoptim==0.1.4 heavyball==3.2.1 triton``), then
``PYTHONPATH=FOLDER TRITON_INTERPRET=1 python -P tests/make_remainders.py > tests/remainders.py``.
FlashOptim's kernels run in Triton's interpreter, which lacks ``copysign``. HeavyBall's random
numbers are replaced by 1/2, so that it rounds to the nearest.
"""

from __future__ import annotations

import textwrap
from unittest import mock

import torch
from torch import Tensor

DTYPES = (torch.int8, torch.int16)


def values() -> Tensor:
    """88 values: of many exponents, beside powers of two, and large ones."""
    x = [((i * 7919 % 2003 - 1001) / 1001) * 2.0 ** (i * 31 % 61 - 30) for i in range(64)]
    x += [2.0 ** (i - 8) * (1 - 2.0**-9 * (i % 5) / 2 - 2.0**-17 * (i % 7)) for i in range(16)]
    return torch.tensor([*x, *((1 - i / 9) * 3.3e38 for i in range(8))])


def flashoptim(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """FlashOptim's remainders, and the values restored from them."""
    from flashoptim import optimizers

    narrow, actual, back = x.bfloat16(), torch.empty(len(x), dtype=dtype), torch.empty_like(x)
    largest = torch.iinfo(dtype).max
    common = {"BLOCK_SIZE": 128, "NUM_MANTISSA_BITS": 7, "SIGNED_MAX_VAL": largest}
    kind = {torch.int8: optimizers.tl.int8, torch.int16: optimizers.tl.int16}[dtype]
    signed = lambda size, like: optimizers.tl.where(like < 0, -size, size)  # noqa: E731
    with mock.patch.object(optimizers.libdevice, "copysign", signed):
        optimizers._compute_ecc_bits_kernel[(1,)](
            x, narrow, actual, len(x), SIGNED_ERROR_T=kind, **common
        )
    optimizers._reconstruct_fp32_kernel[(1,)](narrow, actual, back, len(x), **common)
    return actual, back


def heavyball(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """HeavyBall's remainders, and the values restored from them."""
    from heavyball import utils

    state = utils._ULPState(torch.empty(len(x), dtype=dtype), utils._ULPState._SMAX[dtype])
    narrow = x.bfloat16()
    with mock.patch("torch.rand_like", lambda y: torch.full_like(y, 0.5)):
        state.compute_correction(x, narrow)
    return state.correction, state.decode(narrow)


def main() -> None:
    """Write the module."""
    title = "Two packages' remainders of float32 values beside bfloat16; see make_remainders.py."
    print(f'"""{title}"""\n')
    for name, of in (("FLASHOPTIM", flashoptim), ("HEAVYBALL", heavyball)):
        print(f"{name} = {{")
        for dtype in DTYPES:
            print(f'    "{str(dtype).removeprefix("torch.")}": (')
            for tensor in of(values(), dtype):
                numbers = ", ".join(f"{number:.9g}" for number in tensor.tolist())
                print(8 * " " + "[")
                print(
                    textwrap.fill(numbers, 96, initial_indent=" " * 12, subsequent_indent=" " * 12)
                )
                print(8 * " " + "],")
            print("    ),")
        print("}  # fmt: skip")


if __name__ == "__main__":
    main()
