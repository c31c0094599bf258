#!/usr/bin/env bash
# Guess: adafactor8bit 0.1.8 stores its variances in 8 bits, evenly spaced in their logarithm, so each decodes to
# within a step (a factor of about 1.5) of what was stored.
# What happens: the scale is divided by 255 when it is stored and again when it is decoded, in PyTorch and in the CUDA
# kernel. Every variance decodes to less than 2^-125, so a step sees the last gradient alone, and trains the same
# whether or not the variances are replaced by zeros before it. Version 0.4.6 decodes to within its step.
# Why it matters: a state_dict of that version holds no second moments to analyze or to convert, although it has
# codes, scales and shapes for them, and a loss that falls does not show it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy setuptools
for version in 0.1.8 0.4.6; do
    "$folder/venv/bin/pip" install --quiet --no-deps "adafactor8bit==$version"
    "$folder/venv/bin/python" - "$version" <<'PYTHON'
import sys

import adafactor8bit.optimizer as package
import torch

version = sys.argv[1]
print("torch", torch.__version__, "adafactor8bit", version)


def decoded(state):
    parts = ["q", "scale", "shape", "pad"]
    if version == "0.4.6":
        parts.insert(2, "min_log")
    return package._log_dequantize_nonneg(*(state[f"variance_{part}"] for part in parts))


def trained(forget):
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(8192))
    optimizer = package.Adafactor8Bit([param], lr=1e-3, beta2=0.999, use_cuda_kernel=False)
    exact = torch.zeros(8192)
    for _ in range(20):
        param.grad = torch.randn(8192)
        exact.lerp_(param.grad**2, 0.001)
        if forget and param in optimizer.state:
            for name in ("variance_q", "variance_scale"):
                optimizer.state[param][name].zero_()
        optimizer.step()
    return param.detach(), decoded(optimizer.state[param]), exact


param, found, exact = trained(forget=False)
without, _, _ = trained(forget=True)
ratio = (found / exact).log2()
print(f"decoded / exact variance: 2^{ratio.min():.1f} to 2^{ratio.max():.1f}")
print(f"largest decoded variance: {found.max():.3g}, exact {exact.max():.3g}")
same = torch.allclose(param, without, rtol=1e-6)
print("the same weights after zeroing variances before every step:", same)
if version == "0.1.8":
    assert found.max() < 2**-125 and exact.max() > 1e-3
    assert same
else:
    assert ratio.abs().max() < 1
    assert not same
PYTHON
done
# Output seen:
# torch 2.13.0+cpu adafactor8bit 0.1.8
# decoded / exact variance: 2^-121.1 to 2^-117.3
# largest decoded variance: 1.63e-38, exact 0.0466
# the same weights after zeroing variances before every step: True
# torch 2.13.0+cpu adafactor8bit 0.4.6
# decoded / exact variance: 2^-0.1 to 2^0.1
# largest decoded variance: 0.0467, exact 0.0466
# the same weights after zeroing variances before every step: False
