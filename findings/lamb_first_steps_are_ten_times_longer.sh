#!/usr/bin/env bash
# Guess: LAMB's trust ratio makes every step lr times the parameter's norm, whatever package steps.
# Found: in pytorch-optimizer 4.1.0 the first step of a matrix is 10 times as long, the second 5.3 times:
# 1 / (1 - beta1^t). The first moment's bias is corrected after the trust ratio has set the length, where
# the ratio would have cancelled it. With a norm above 10, which it bounds, steps are shorter again.
# It matters to who moves a LAMB run between packages, or compares their losses: the warm-up differs by a
# factor of ten though lr, betas and eps are equal, and the states (exp_avg, exp_avg_sq) look alike.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q torch==2.13.0 pytorch-optimizer==4.1.0 numpy==2.4.6
"$place/venv/bin/python" - <<'PYTHON'
import importlib.metadata as metadata

import torch
from pytorch_optimizer import Lamb

print("torch", torch.__version__, "pytorch-optimizer", metadata.version("pytorch-optimizer"))
torch.manual_seed(0)
weight = torch.nn.Parameter(0.1 * torch.randn(32, 48))
optimizer = Lamb([weight], lr=1e-2, betas=(0.9, 0.999))
for step in range(1, 5):
    weight.grad = torch.randn(32, 48)
    before = weight.detach().clone()
    optimizer.step()
    length = float((weight.detach() - before).norm() / before.norm())
    expected = 1e-2 / (1 - 0.9**step)
    print(f"step {step}: {length:.4f} of the norm; lr is 0.01; lr / (1 - 0.9^{step}) = {expected:.4f}")
    assert abs(length / expected - 1) < 0.02, "the first steps are no longer lr / (1 - beta1^t)"
PYTHON
