#!/usr/bin/env bash
# Guess: step hooks registered on timm's Lookahead, whose constructor does not call that of torch.optim.Optimizer,
# either run in every step or in none.
# What happens: they run in none until the first zero_grad() of any instance, and in every step after it:
# Optimizer.zero_grad wraps the class's step if the constructor did not.
# Why it matters: whatever counts steps or reads states in a hook (recorders, schedulers, profilers) sees nothing in a
# loop that calls zero_grad on the model, and misses the first step in a loop that calls it on the optimizer after
# the step; two loops that train alike record different steps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install -q --no-deps timm==1.0.31
cat > "$folder/look.py" <<'PY'
import importlib.metadata, importlib.util, pathlib
import torch
print("torch", torch.__version__, "timm", importlib.metadata.version("timm"))
top = pathlib.Path(importlib.util.find_spec("timm").submodule_search_locations[0])  # without its models
spec = importlib.util.spec_from_file_location("lookahead", top / "optim" / "lookahead.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def hooked_steps(zero_grad):
    model = torch.nn.Linear(4, 4)
    optimizer = module.Lookahead(torch.optim.AdamW(model.parameters()))
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(number))
    for number in range(1, 5):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        zero_grad(model, optimizer)
    return seen

on_model = hooked_steps(lambda model, optimizer: model.zero_grad())
on_optimizer = hooked_steps(lambda model, optimizer: optimizer.zero_grad())
again = hooked_steps(lambda model, optimizer: model.zero_grad())
print("4 steps, model.zero_grad():              hooks ran in", on_model)
print("4 steps, optimizer.zero_grad() at the end: hooks ran in", on_optimizer)
print("4 steps, model.zero_grad() once more:    hooks ran in", again)
ran = (on_model, on_optimizer, again)
assert ran == ([], [2, 3, 4], [1, 2, 3, 4]), f"hooks of Lookahead now run in other steps: {ran}"
PY
"$folder/venv/bin/python" "$folder/look.py"
