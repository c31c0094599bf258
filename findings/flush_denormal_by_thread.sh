#!/usr/bin/env bash
# Guess: torch.set_flush_denormal(True) makes every CPU operation of the process treat subnormal
# numbers as 0. What happens: the mode belongs to a thread. Threads of torch's pool that run already
# keep subnormal numbers, so of one elementwise product over two threads one half is flushed and the
# other is not; with one thread all of it is. Second moments of small gradients are such numbers (a
# gradient below 1e-19 has a subnormal square), so an optimizer's states depend on the number of
# threads and on what ran before, within one tensor.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cat >"$folder/shown.py" <<'PYTHON'
import torch

print("torch", torch.__version__)


def flushed(threads: int, begun: bool) -> int:
    """Elements of 2**20 whose product is 0, where the pool has run before the mode is set."""
    torch.set_flush_denormal(False)
    torch.set_num_threads(threads)
    x = torch.full((2**20,), 1e-39)
    if begun:
        x * 1.0
    torch.set_flush_denormal(True)
    y = x * 1.0
    torch.set_flush_denormal(False)
    return int((y == 0).sum())


one, two = flushed(1, True), flushed(2, True)
print(f"elements of 1048576 that became 0: {one} with one thread, {two} with two")
assert one == 2**20, one
assert two == 2**19, two
PYTHON
"$folder/venv/bin/python" "$folder/shown.py"
