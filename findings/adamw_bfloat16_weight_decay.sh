#!/usr/bin/env bash
# Guess: torch.optim.AdamW trains the same weights, up to rounding noise, with foreach=True, foreach=False and fused=True.
# What happens: with bfloat16 weights and lr * weight_decay below 1/512 the loops round the decay alone, so no weight ever
# decays. The fused kernel rounds decay and update together: small weights decay as in float32, large ones do not. A flag
# that is documented as a matter of speed, with a default that depends on the device, decides about regularization.
# Why it matters: quantized optimizers have fused kernels (decay kept) and are compared with torch's default (decay lost)
# at equal options; a difference in losses may come from the decay and not from the states.
set -euo pipefail
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
python3 -m venv "$top/venv"
"$top/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$top/venv/bin/python" - <<'PY'
import torch

torch.set_num_threads(1)
LR, DECAY, STEPS = 1e-3, 1.0, 300


def left(dtype, weight, **options):
    """Share of the weights left after steps under random gradients."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.full((4096,), weight, dtype=dtype))
    optimizer = torch.optim.AdamW([p], lr=LR, weight_decay=DECAY, **options)
    for _ in range(STEPS):
        p.grad = torch.randn(4096).to(dtype)
        optimizer.step()
    return float(p.detach().float().mean() / weight)


print("torch", torch.__version__, "exact", round((1 - LR * DECAY) ** STEPS, 3))
rows = {}
for weight in (0.02, 1.0):
    rows[weight] = {
        "float32": left(torch.float32, weight),
        "bfloat16, loop": left(torch.bfloat16, weight, foreach=False),
        "bfloat16, foreach": left(torch.bfloat16, weight, foreach=True),
        "bfloat16, fused": left(torch.bfloat16, weight, fused=True),
    }
    print("weights of", weight, {name: round(share, 3) for name, share in rows[weight].items()})
for weight, row in rows.items():
    assert abs(row["float32"] - 0.741) < 0.02, "float32 weights now decay in another way"
    loops = row["bfloat16, loop"], row["bfloat16, foreach"]
    assert min(loops) > 0.98, "the loops now decay bfloat16 weights"
    assert (row["bfloat16, fused"] < 0.8) == (weight < 0.1), "the fused kernel now rounds in another way"
PY
# Output seen (torch 2.13.0, CPU):
# torch 2.13.0+cpu exact 0.741
# weights of 0.02 {'float32': 0.755, 'bfloat16, loop': 1.019, 'bfloat16, foreach': 1.019, 'bfloat16, fused': 0.756}
# weights of 1.0 {'float32': 0.741, 'bfloat16, loop': 1.0, 'bfloat16, foreach': 1.0, 'bfloat16, fused': 0.998}
