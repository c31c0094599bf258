#!/usr/bin/env bash
# Guess: Triton's interpreter (TRITON_INTERPRET=1) gives the bits that a compiled kernel gives.
#
# It does not where float32 becomes bfloat16: the interpreter cuts the lower 16 bits off, while the
# code compiled from the same line rounds to nearest (cvt.rn.bf16). It matters to whoever tests an
# optimizer's kernels without a GPU: in the interpreter, bfloat16 weights and scales are rounded
# towards zero, and updates below a whole unit in the last place are lost in one direction only.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 triton==3.9.0 numpy==2.4.6

cat >"$folder/kernel.py" <<'PY'
import os
import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile


@triton.jit
def narrow(x, y):
    at = tl.arange(0, 4)
    tl.store(y + at, tl.load(x + at).to(tl.bfloat16))


if os.environ.get("TRITON_INTERPRET"):
    x = torch.tensor([1 + 2**-8 + 2**-16, -(1 + 2**-8 + 2**-16), 1.0, 1.0078125 - 2**-20])
    y = torch.zeros(4, dtype=torch.bfloat16)
    narrow[(1,)](x, y)
    print("torch      ", x.bfloat16().tolist())
    print("interpreter", y.tolist())
    sys.exit(y.tolist() != [1.0, -1.0, 1.0, 1.0] or x.bfloat16().tolist()[0] != 1.0078125)
made = compile(ASTSource(narrow, {"x": "*fp32", "y": "*bf16"}, {}), target=GPUTarget("cuda", 90, 32))
lines = [line.strip() for line in made.asm["ptx"].splitlines() if "cvt" in line and "bf16" in line]
print("compiled   ", lines)
sys.exit(not lines or not all(line.startswith("cvt.rn.bf16") for line in lines))
PY
echo "triton 3.9.0, torch 2.13.0"
TRITON_INTERPRET=1 "$folder/venv/bin/python" "$folder/kernel.py"
"$folder/venv/bin/python" "$folder/kernel.py"
