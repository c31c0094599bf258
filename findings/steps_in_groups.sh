#!/usr/bin/env bash
# Guess: libraries that count steps in a parameter group have there the number of steps taken, so that a
# converter can read group["step"] for any of their optimizers.
# What happens after 3 steps: pytorch-optimizer 4.1.0 has 3 for ADOPT, Yogi and Lion, but 4 for Prodigy, and 0 for
# MADGRAD, which counts under a string key of the state; heavyball 3.2.1 has step=None and step_count=3.
# Why it matters: a reader of foreign optimizer states that trusts one key starts bias corrections one step late,
# or at 0, where Adam's first update is 1 / (1 - beta) times as long; and None must not be taken for a count.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6 pytorch-optimizer==4.1.0 heavyball==3.2.1 opt-einsum==3.4.0
cat > "$folder/run.py" <<'PY'
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
import heavyball
import pytorch_optimizer
import torch

for package in ("torch", "pytorch-optimizer", "heavyball"):
    print(package, version(package))
found = {}
for library, name in [
    (pytorch_optimizer, "ADOPT"), (pytorch_optimizer, "Yogi"), (pytorch_optimizer, "Lion"),
    (pytorch_optimizer, "Prodigy"), (pytorch_optimizer, "MADGRAD"), (heavyball, "AdamW"),
]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 6, bias=False)
    optimizer = getattr(library, name)(layer.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    saved = optimizer.state_dict()
    (group,) = saved["param_groups"]
    counts = {key: group[key] for key in ("step", "step_count") if key in group}
    counts = {key: None if value is None else int(value) for key, value in counts.items()}
    found[name] = counts
    print(f"{library.__name__}.{name} after 3 steps: {counts}, keys of state: {list(saved['state'])}")
expected = {
    "ADOPT": {"step": 3}, "Yogi": {"step": 3}, "Lion": {"step": 3}, "Prodigy": {"step": 4},
    "MADGRAD": {"step": 0}, "AdamW": {"step": None, "step_count": 3},
}
changed = {name: found[name] for name in expected if found[name] != expected[name]}
assert not changed, f"these groups now have other counts: {changed}"
PY
"$folder/venv/bin/python" "$folder/run.py"
