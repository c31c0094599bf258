"""The time to replay 100 pairs over 100 steps of a model of GPT-2-small's size, sampled at 1 %.

``python -m benchmarks.replay`` writes states and gradients of the sampled rows to a temporary
folder, and prints the seconds of reading and replaying them. The elements are random: their values
do not affect the time.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

import qmaps
from benchmarks.scale import processor_seconds
from qmaps.capture import Gradients, StateRecorder
from qmaps.capture.gradients import rows_of

LAYERS, WIDTH, TOKENS, CONTEXT = 12, 768, 50257, 1024


def shapes() -> dict[str, tuple[int, ...]]:
    """The shapes of GPT-2-small's parameters."""
    shape_of: dict[str, tuple[int, ...]] = {"wte": (TOKENS, WIDTH), "wpe": (CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        name = f"h.{layer}"
        shape_of |= {
            f"{name}.attn.c_attn": (WIDTH, 3 * WIDTH),
            f"{name}.attn.c_proj": (WIDTH, WIDTH),
            f"{name}.mlp.c_fc": (WIDTH, 4 * WIDTH),
            f"{name}.mlp.c_proj": (4 * WIDTH, WIDTH),
        }
    return shape_of


def distinct_pairs(count: int) -> list[str]:
    """Pairs without a common quantizer, the most expensive case."""
    blocks = (32, 64, 128, 256, 512, 1024, 2048)
    first = [f"B{b}/{m}@{w}s" for w in (8, 4, 5, 6, 3) for m in ("DE", "linear", "tree", "power2")
             for b in blocks]  # fmt: skip
    second = [f"B{b}/{m}@{w}u" for w in (8, 4, 5, 6, 3) for m in ("DE", "linear", "DE-0", "power2")
              for b in blocks]  # fmt: skip
    return [f"{a} + {b}" for a, b in zip(first[:count], second[:count], strict=True)]


def spent() -> float:
    """Processor seconds of this process and of its finished workers."""
    return processor_seconds() + processor_seconds(resource.RUSAGE_CHILDREN)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", choices=["standard", "distinct"], default="standard")
    parser.add_argument("--count", type=int, default=100, help="number of pairs")
    parser.add_argument("--steps", type=int, default=100, help="number of steps")
    parser.add_argument("--share", type=float, default=0.01, help="share of the elements")
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pairs = distinct_pairs(args.count)
    if args.pairs == "standard":
        pairs = list(dict.fromkeys([*qmaps.sweep.STANDARD, *pairs]))[: args.count]
    weights = {}
    for name, shape in shapes().items():
        rows = rows_of(shape, round(args.share * math.prod(shape)))
        count = shape[0] if rows is None else len(rows)
        weights[name] = torch.nn.Parameter(torch.zeros(count, *shape[1:]))
    with tempfile.TemporaryDirectory() as folder:
        optimizer = torch.optim.AdamW(weights.values())
        options = Gradients(args.steps, max_bytes=None)
        names = list(weights.items())
        with StateRecorder(optimizer, folder, names=names, steps=[1], gradients=options):
            for _ in range(args.steps + 1):
                for weight in weights.values():
                    weight.grad = torch.randn_like(weight) * 1e-3
                optimizer.step()
        began, used = time.perf_counter(), spent()
        frame = qmaps.replay.run(folder, pairs, min_quantized_size=0, workers=args.workers)
        seconds = time.perf_counter() - began
    elements = int(frame.drop_duplicates("parameter")["numel"].sum())
    measured = {
        "pairs": len(pairs),
        "quantizers": int(frame["first"].nunique() + frame["second"].nunique()),
        "steps": int(frame["steps"].max()),
        "elements": elements,
        "share": round(elements / sum(map(math.prod, shapes().values())), 4),
        "workers": args.workers,
        "seconds": round(seconds, 1),
        "processor_seconds": round(spent() - used, 1),
    }
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
