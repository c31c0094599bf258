#!/usr/bin/env bash
# Guess: options of torch.distributed.checkpoint.state_dict.StateDictOptions combine: a state_dict of an
# optimizer taken with flatten_optimizer_state_dict=True and full_state_dict=True loads with the same options.
# What happens: taking it works, and set_optimizer_state_dict raises KeyError('param_groups.0.params.0'),
# because the full one is flattened once more. The same dict loads with flatten_optimizer_state_dict=True alone.
# Why it matters: a flat file on one rank, as for torchtitan's layout without shards, is written for a whole
# run before anyone notices that it cannot be loaded the way it was saved.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cat > "$folder/run.py" <<'PY'
import sys
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict)

print("torch", torch.__version__)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
both = StateDictOptions(flatten_optimizer_state_dict=True, full_state_dict=True)
saved = get_optimizer_state_dict(model, optimizer, options=both)
print("saved:", list(saved)[:3])
error = None
try:
    set_optimizer_state_dict(model, optimizer, saved, options=both)
except KeyError as caught:
    error = caught
print("loading with the same options:", repr(error))
set_optimizer_state_dict(
    model, optimizer, saved, options=StateDictOptions(flatten_optimizer_state_dict=True))
print("loading with flatten_optimizer_state_dict alone: works")
dist.destroy_process_group()
assert error is not None, "a full flattened state_dict now loads with the options of its save"
assert error.args == ("param_groups.0.params.0",), f"loading now fails on another key: {error!r}"
PY
"$folder/venv/bin/python" "$folder/run.py" "$folder"
