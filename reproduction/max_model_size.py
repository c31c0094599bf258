"""The largest model for a memory size: table 2 of the 8-bit paper, table 5 of the 4-bit paper."""

from __future__ import annotations

import pandas as pd
import torch

from qmaps.lab import workloads
from qmaps.optim import AdamW
from reproduction.claim import Claim, rows
from reproduction.context import Context
from reproduction.exhibit import Finding, Frames
from reproduction.memory import (
    GIB,
    RESERVE,
    STATES,
    architectures,
    max_model,
    quantizers,
    state_bytes,
)

TOKENS = 512
CHECKED = ("digits", "stdlib-lm-tiny", "stdlib-lm")


def build(paper: str, exhibit: str, preset: str, context: Context) -> Frames:
    """Predicted largest models, predicted totals, and the prediction beside live tensors."""
    table = rows(paper, exhibit, ("memory_gb", "family", "paper_32bit", "paper_low"))
    full, low = quantizers("32bit"), quantizers(preset)
    for column, specs in (("ours_32bit", full), ("ours_low", low)):
        table[column] = [
            max_model(str(family), float(memory), specs, TOKENS)
            for family, memory in zip(table["family"], table["memory_gb"], strict=True)
        ]
    families = tuple(set(table["family"]))
    totals = pd.DataFrame(
        {
            "model": name,
            "parameters": model.parameters,
            "gib_32bit": model.training(full, TOKENS) / GIB,
            "gib_low": model.training(low, TOKENS) / GIB,
        }
        for name, model in architectures().items()
        if name.startswith(families)
    )
    return {
        "largest": table,
        "totals": totals,
        "checked": pd.DataFrame(
            _checked(name, preset) for name in CHECKED[: 2 + (not context.quick)]
        ),
    }


def _checked(name: str, preset: str) -> dict[str, object]:
    """Weights, gradients and states after a step, as predicted from shapes and as they are."""
    work = workloads.get(name)
    model = work.model(0)
    optimizer = AdamW(model.named_parameters(), lr=work.lr, state_quantizers=preset)
    batch = tuple(part[:1] for part in work.batch(1, 0))
    work.loss(model, (batch[0], batch[1])).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    live = sum(
        value.nbytes
        for state in optimizer.state.values()
        for key, value in state.items()
        if key in STATES
    )
    parameters = list(model.parameters())
    live += sum(p.nbytes + (0 if p.grad is None else p.grad.nbytes) for p in parameters)
    specs = quantizers(preset)
    predicted = sum(
        8 * p.numel() + sum(state_bytes(tuple(p.shape), specs[state]) for state in STATES)
        for p in parameters
    )
    assert isinstance(parameters[0], torch.Tensor)
    return {"model": name, "predicted_bytes": predicted, "measured_bytes": live}


def find(frames: Frames) -> Finding:
    """Model by model, and the check."""
    statements = [
        Claim(
            f"{row.memory_gb} GB, {row.family}: {row.paper_32bit} with 32 bits, {row.paper_low} "
            "with fewer.",
            bool((row.paper_32bit, row.paper_low) == (row.ours_32bit, row.ours_low)),
            f"Here {row.ours_32bit} and {row.ours_low}.",
        )
        for row in frames["largest"].itertuples()
    ]
    checked = frames["checked"]
    same = checked["predicted_bytes"] == checked["measured_bytes"]
    statements.append(
        Claim(
            "The computed bytes of weights, gradients and states are those of live tensors.",
            bool(same.all()),
            f"In {same.sum()} of {len(same)} models.",
        )
    )
    return Finding(
        statements=statements,
        why="Mixed precision: weights in 32 and 16 bits, gradients in 32, both moments, and the "
        f"activations of one sequence of {TOKENS} tokens in 16 bits by a published formula; GB are "
        f"2^30 bytes, of which the device itself takes {RESERVE:g}: a context of CUDA, and what "
        f"the allocator rounds up. {_close(frames)}",
        tables={"largest": frames["largest"], "totals": frames["totals"], "checked": checked},
    )


def _close(frames: Frames) -> str:
    """The models left out only by the reserve, or within the reserve of the limit."""
    near = [
        f"{row['model']} with {name} needs {row[column]:.2f} of {asked['memory_gb']}"
        for asked in frames["largest"].to_dict("records")
        for row in frames["totals"].to_dict("records")
        for column, name in (("gib_32bit", "32 bits"), ("gib_low", "fewer"))
        if row["model"].startswith(asked["family"])
        and 0 <= asked["memory_gb"] - row[column] < 2 * RESERVE
    ]
    return f"Near a limit: {'; '.join(near)}." if near else "No model is near a limit."
