"""Figures 20 to 31: histograms of moments on their way through quantizers."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

import qmaps
from qmaps import analyze, figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.four_bit import _pretrained
from reproduction.four_bit._matrices import in_blocks, matrices
from reproduction.four_bit._names import renamed

SECOND = ("B128/DE@4u", "B128/DE-0@4u", "rank1/DE-0@4u", "B2048/DE-0@4u")
FIRST = ("B128/DE@4s", "B2048/DE@4s")
ZERO = "figures-20-to-22"
BETTER, WORSE = "figures-23-25-27", "figures-24-26-28"
BLOCKS, SECOND_BLOCKS = "figures-29-and-30", "figure-31"
CAPTIONS = {
    ZERO: "Second moment: B128/DE@4u above, B128/DE-0@4u below; the matrix with most zeros.",
    BETTER: "Second moment: B128/DE-0@4u above, rank1/DE-0@4u below; the matrix where Rank-1 gains "
    "most.",
    WORSE: "The same; the matrix where Rank-1 gains least, or loses.",
    BLOCKS: "First moment: B128/DE@4s above, B2048/DE@4s below; the matrix where small blocks gain "
    "most.",
    SECOND_BLOCKS: "Second moment: B128/DE-0@4u above, B2048/DE-0@4u below; the matrix where small "
    "blocks gain most.",
}


def build(context: Context) -> Frames:
    """Errors on every matrix, and histograms of the clearest ones."""
    first = in_blocks(matrices(context.states, "exp_avg"))
    second = in_blocks(matrices(context.states, "exp_avg_sq"))
    errors = _errors(first, second)
    relative = errors.pivot(index="tensor", columns="quantizer", values="mean_rel_error")
    zeros = errors.pivot(index="tensor", columns="quantizer", values="zeroed_share")
    rank = relative[SECOND[2]] / relative[SECOND[1]]
    chosen = {
        ZERO: (second, zeros[SECOND[0]].idxmax(), SECOND[:2]),
        BETTER: (second, rank.idxmin(), SECOND[1:3]),
        WORSE: (second, rank.idxmax(), SECOND[1:3]),
        BLOCKS: (first, (relative[FIRST[1]] / relative[FIRST[0]]).idxmax(), FIRST),
        SECOND_BLOCKS: (
            second,
            (relative[SECOND[3]] / relative[SECOND[1]]).idxmax(),
            (SECOND[1], SECOND[3]),
        ),
    }
    histograms = [
        analyze.histogram(moments[str(title)], specs).assign(figure=name, tensor=str(title))
        for name, (moments, title, specs) in chosen.items()
    ]
    frames = {"errors": errors, "histograms": pd.concat(histograms, ignore_index=True)}
    if context.pretrained is not None:
        moments_of = [
            in_blocks(matrices(context.pretrained, name)) for name in ("exp_avg", "exp_avg_sq")
        ]
        frames[_pretrained.PREFIX + "errors"] = _errors(*moments_of)
    return frames


def _errors(first: dict[str, Tensor], second: dict[str, Tensor]) -> pd.DataFrame:
    """Errors of every quantizer on every matrix of its moment."""
    return pd.DataFrame(
        {"tensor": title, "quantizer": spec, **_measured(tensor, spec)}
        for specs, moments in ((FIRST, first), (SECOND, second))
        for title, tensor in moments.items()
        for spec in specs
    )


def _measured(tensor: Tensor, spec: str) -> dict[str, float]:
    metrics = qmaps.quantizer(spec).error(tensor)
    return {name: metrics[name] for name in ("mean_rel_error", "zeroed_share", "sqnr_db")}


def find(frames: Frames) -> Finding:
    """Count the tensors with a smaller error under each quantizer."""
    pretrained = frames.get(_pretrained.PREFIX + "errors")
    statements = _of(frames["errors"], "")
    if pretrained is not None:
        statements += _of(pretrained, _pretrained.OF_IT)
    ranks = [] if pretrained is None else [_rank_1(pretrained)]
    return Finding(
        statements=statements,
        differences=[
            Difference(
                f"In matrices of pretrained weights rank-1 is better in {rank.sum()} and worse in "
                f"{(~rank).sum()}: which one is follows from the outliers of the model.",
                bool(rank.any() and not rank.all()),
                "^Rank-1 is better",
            )
            for rank in ranks
        ],
        why="Better means less mean relative error. Of each kind the matrix that shows it most is "
        "drawn; the table has all. Only matrices of blocks are counted: those of tokens have rows "
        "of tokens that hardly ever came, which rule their histograms.",
        why_ours=_pretrained.note(frames),
        tables={name: frames[name] for name in frames if name.endswith("errors")},
    )


def _rank_1(errors: pd.DataFrame) -> pd.Series[bool]:
    """Compare rank-1 with blocks of 128, by matrix."""
    relative = errors.pivot(index="tensor", columns="quantizer", values="mean_rel_error")
    better: pd.Series[bool] = (relative[SECOND[2]] < relative[SECOND[1]]).loc[
        relative[SECOND[2]].notna()
    ]
    return better


def _of(errors: pd.DataFrame, of_it: str) -> list[Claim]:
    """The paper's statements, on the matrices of one model."""
    relative = errors.pivot(index="tensor", columns="quantizer", values="mean_rel_error")
    zeros = errors.pivot(index="tensor", columns="quantizer", values="zeroed_share")
    total = len(relative)
    rank = _rank_1(errors)
    first = relative[FIRST[0]] < relative[FIRST[1]]
    second = relative[SECOND[1]] < relative[SECOND[3]]
    return [
        Claim(
            f"B128/DE sends second moments to zero, B128/DE-0 does not (figures 20 to 22){of_it}.",
            bool((zeros[SECOND[0]] > 0).any() and (zeros[SECOND[1]] == 0).all()),
            f"Zeros in {(zeros[SECOND[0]] > 0).sum()} of {total} matrices with B128/DE, in "
            f"{(zeros[SECOND[1]] > 0).sum()} with B128/DE-0.",
        ),
        Claim(
            "Rank-1 is better than blocks of 128 in some matrices and worse in others "
            f"(figures 23 to 28){of_it}.",
            bool(rank.any() and not rank.all()),
            f"Less mean relative error in {rank.sum()} of {total}.",
        ),
        Claim(
            f"Blocks of 128 are better than of 2048 for first moments (figures 29 and 30){of_it}.",
            bool(first.mean() > 0.5),
            f"In {first.sum()} of {total}.",
        ),
        Claim(
            f"And for second moments (figure 31){of_it}.",
            bool(second.mean() > 0.5),
            f"In {second.sum()} of {total}.",
        ),
    ]


def draw(frames: Frames) -> dict[str, Figure]:
    """A figure per kind."""
    drawn = {}
    for name, part in frames["histograms"].groupby("figure", sort=False):
        drawn[str(name)] = figures.histogram(renamed(part, "quantizer"))
        drawn[str(name)].suptitle(str(part["tensor"].iloc[0]), fontsize=10.5)
    return drawn


EXHIBIT = Exhibit(
    name="figures-20-to-31",
    covers=tuple(f"Figure {number}" for number in range(20, 32)),
    title="Histograms of moments on their way through quantizers",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=draw,
    captions=CAPTIONS,
    pretrained=True,
)
