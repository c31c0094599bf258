#!/usr/bin/env bash
# Guess: as load_state_dict does, resuming through torch.distributed.checkpoint brings the options and all states of the
# checkpoint, whatever options the new optimizer was made with.
# dcp.load reads only the keys of the new optimizer's state, which get_optimizer_state_dict makes by a hidden first
# step under its own options. SGD made without momentum gets momentum=0.9 from the checkpoint, but no momentum buffers,
# without a warning: the next step is not the uninterrupted run's. load_state_dict of the same dict resumes exactly.
# Users of optimizer states: make the optimizer with all options of the checkpoint before dcp.load, or states are lost.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import copy, warnings
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
print("torch", torch.__version__)

def train(model, optimizer, steps):
    for number in steps:
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()

def distance(one, other):
    return max(float((p - q).detach().abs().max()) for p, q in zip(one.parameters(), other.parameters()))

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
train(model, optimizer, range(5))
dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id="saved", no_dist=True)
plain, resumed = copy.deepcopy(model), copy.deepcopy(model)
for each in (plain, resumed):
    each.zero_grad()
by_dict = torch.optim.SGD(plain.parameters(), lr=0.1)
by_dict.load_state_dict(copy.deepcopy(optimizer.state_dict()))
by_dcp = torch.optim.SGD(resumed.parameters(), lr=0.1)
state = {"optimizer": get_optimizer_state_dict(resumed, by_dcp)}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    dcp.load(state, checkpoint_id="saved", no_dist=True)
    set_optimizer_state_dict(resumed, by_dcp, state["optimizer"])
about = [str(w.message) for w in told if "uninitialized" not in str(w.message)]
buffers = [by_dcp.state[p].get("momentum_buffer") for p in resumed.parameters()]
print("momentum after dcp.load:", by_dcp.param_groups[0]["momentum"], "buffers:", buffers, "warnings:", about)
for each, of in ((model, optimizer), (plain, by_dict), (resumed, by_dcp)):
    train(each, of, range(5, 8))
print("distance from the uninterrupted run: load_state_dict", distance(model, plain), "dcp", distance(model, resumed))
assert by_dcp.param_groups[0]["momentum"] == 0.9
assert buffers == [None, None] and not about, "dcp.load now brings or reports the buffers"
assert distance(model, plain) == 0 and distance(model, resumed) > 1e-4
PY
