"""Log-space quantization: its effect on training."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from qmaps import figures
from qmaps.lab import Contender, loss_frame, summarize_losses, workloads
from reproduction import committed, tuned_losses
from reproduction.adafactor_8bit._maps import DYNAMIC, LINEAR, LOG, NAMES
from reproduction.claim import Claim
from reproduction.context import BASE, Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number

METHODS = {
    name: Contender(f"AdamW, second moment {spec}", {"exp_avg": None, "exp_avg_sq": spec})
    for name, spec in (("log", LOG), ("dynamic", DYNAMIC), ("linear", LINEAR))
}
"""The first moment stays in 32 bits; only the second moment differs."""
STUDY, GROUP = "parity", "docstring-lm, optim.Adafactor"
"""Adafactor with its own statistics in 32 and 8 bits, whatever their size."""
UNSTABLE = "log-space-quantization-unstable"


def build(context: Context) -> Frames:
    """Losses of AdamW with one second moment or another, and of Adafactor in 32 and 8 bits."""
    name = context.size.grid
    runs = context.trained(name, [BASE, *METHODS.values()], range(context.size.seeds))
    parity = tuned_losses.runs(context, STUDY)
    return {
        "curves": loss_frame(runs).assign(unit=workloads.get(name).unit),
        "losses": summarize_losses(runs),
        "adafactor": parity[parity["group"] == GROUP].reset_index(drop=True),
    }


def find(frames: Frames) -> Finding:
    """Compare final losses with that of 32 bits."""
    losses = frames["losses"].set_index("run")
    means = losses["mean"]
    base = float(means[BASE.label])
    loss = {name: float(means[run.label]) for name, run in METHODS.items()}
    low, high = committed.from_summary(losses.to_dict("index")[METHODS["log"].label])
    margin = committed.margin(base)
    statements = [
        Claim(
            "With second moments in log space training is as stable as in 32 bits.",
            high < margin if high < margin or low > margin else (),
            f"Final validation loss {loss['log']:.4f} against {base:.4f} ({low:+.4f} to "
            f"{high:+.4f}); {loss['dynamic']:.4f} with dynamic quantization.",
        ),
        Claim(
            "Second moments that are truncated to zero make it unstable.",
            not loss["linear"] < 2 * base,  # NaN is unstable too
            f"Linear quantization ends at {number(loss['linear'])}.",
        ),
    ]
    adafactor = tuned_losses.beside(
        tuned_losses.by_seed(frames["adafactor"], GROUP, "8bit"),
        tuned_losses.by_seed(frames["adafactor"], GROUP),
    )
    statements.append(adafactor.alike("8-bit Adafactor", GROUP.partition(", ")[0]))
    return Finding(
        statements=statements,
        why="AdamW in 32 bits but for its second moment, in blocks of 256; its rate was not tuned. "
        "As stable: the whole 95 % interval over seeds ends less than the margin behind. Adafactor "
        f"(`{tuned_losses.command(STUDY)}`) keeps its statistics of rows and columns in 8 bits at "
        "every size, at the rate that is best for it in 32 bits; the interval is one at 95 % over "
        f"seeds. A difference of {adafactor.apart.detectable:.4f} is seen with a probability of 80 "
        "%.",
        tables={
            "losses": frames["losses"],
            "adafactor": tuned_losses.table({"8-bit Adafactor": adafactor}),
        },
    )


def shown(curves: pd.DataFrame) -> pd.DataFrame:
    """All but linear quantization; its large losses would hide the other curves."""
    return named(curves[curves["run"] != METHODS["linear"].label])


def named(curves: pd.DataFrame) -> pd.DataFrame:
    """Runs by the format of their second moment."""
    specs = (LOG, DYNAMIC, LINEAR)
    labels = (run.label for run in METHODS.values())
    return curves.replace(
        {"run": {label: NAMES[spec] for label, spec in zip(labels, specs, strict=True)}}
    )


def unstable(curves: pd.DataFrame) -> Figure:
    """All runs, on a logarithmic scale; without the signed differences."""
    figure = figures.loss_curves(named(curves).drop(columns="difference"))
    for axis in figure.axes:
        axis.set_yscale("log")
    return figure


EXHIBIT = Exhibit(
    name="log-space-quantization",
    covers=("Log-Space Quantization",),
    title="Training with second moments in log space, and cut to zero",
    needs=Needs.TRAINING,
    source="training runs of {grid}",
    build=build,
    find=find,
    draw=lambda frames: {
        "log-space-quantization": figures.loss_curves(shown(frames["curves"])),
        UNSTABLE: unstable(frames["curves"]),
    },
    captions={
        "log-space-quantization": f"AdamW with the second moment in {LOG} (log space), in "
        f"{DYNAMIC} (dynamic) and in 32 bits; the first stays in 32 bits. Same weights and "
        "batches. Lines are "
        "means over seeds, bands reach from the lowest to the highest.",
        UNSTABLE: f"The same with {LINEAR} (linear), whose losses need a logarithmic scale.",
    },
    place=2,
)
