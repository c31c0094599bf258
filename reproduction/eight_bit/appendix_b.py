"""Appendix B: gradients of the embedding."""

from __future__ import annotations

import pandas as pd

from qmaps.capture import CapturedStates
from reproduction.claim import published
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.eight_bit import _vocabulary
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import mean_and_error, number
from reproduction.verdict import beside

EMBEDDINGS = ("tokens", "words", "wte", "embed_tokens", "word_embeddings")
"""Parameter names of embedding tables."""
QUANTITY = "largest gradient, times that of other layers"
SEEDS = 3
"""Seeds of first steps."""


def build(context: Context) -> Frames:
    """Largest second moments; their roots are the sizes of gradients."""
    named = {"grid": context.several[0], "headline": context.states}
    if context.pretrained is not None:
        named["pretrained"] = context.pretrained
    frames = {"gradients": pd.DataFrame(_largest(*pair) for pair in named.items())}
    if not context.user_states:
        frames["first-step"] = _vocabulary.gradients(1 if context.quick else SEEDS)
    return frames


def _largest(title: str, states: CapturedStates) -> dict[str, object]:
    """`states`, `words` (rows of the embedding, 0 without one), `embedding`, `others`."""
    maxima: dict[bool, float] = {True: 0.0, False: 0.0}
    words = 0
    for name in states.parameters():
        if "exp_avg_sq" not in states.states(name):
            continue
        v = states.tensor(name, "exp_avg_sq")
        embedding = any(part in EMBEDDINGS for part in name.split("."))
        words = max(words, v.shape[0] if embedding else 0)
        maxima[embedding] = max(maxima[embedding], float(v.max()) ** 0.5)
    return {"states": title, "words": words, "embedding": maxima[True], "others": maxima[False]}


def find(frames: Frames) -> Finding:
    """The embedding's largest gradient beside the others', in training and in a first step."""
    table = frames["gradients"]
    table = table[table["words"] > 0].sort_values("words", kind="stable")
    ratios = (table["embedding"] / table["others"]).tolist()
    ours: dict[tuple[str, str], float | tuple[float, float]] = {}
    if ratios:
        ours["embedding", QUANTITY] = ratios[-1]  # of the most words
    said = ", ".join(
        f"{number(ratio)} of {words:,} words"
        for ratio, words in zip(ratios, table["words"].tolist(), strict=True)
    )
    paper = published("8-bit-optimizers", EXHIBIT.name)
    states = f"Times that of other layers, by the words of the embedding: {said}."
    steps = frames.get("first-step")
    if steps is not None:
        first = by_initialization(steps)
        ours["embedding", QUANTITY] = first[_vocabulary.SCALED]
        states += _conditions(first, steps)
    return Finding(
        numbers=beside(paper, ours),
        differences=[
            Difference(
                f"{states} No case of ours comes near the paper's number, whose models are wider, "
                "deeper and trained.",
                elsewhere=False,
            )
        ],
        why="In states, the size of a gradient is taken as the root of the largest second moment, "
        "a mean over recent steps, which evens out a single large gradient. The paper says that "
        "they can be 100 times as large, and does not say where.",
        why_ours="Our number is of the first step of a small model of words with the "
        "initialization that the paper names, beside the matrices of its other layers, ± the "
        "standard error over seeds. The largest of several cases would be no comparison.",
        tables=dict(frames),
    )


def by_initialization(steps: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Means and standard errors over seeds of the ratio in the widest model."""
    widest = steps[steps["width"] == steps["width"].max()]
    ratios = widest["embedding"] / widest["weights"]
    return {
        str(name): mean_and_error(part.tolist())
        for name, part in ratios.groupby(widest["initialization"], sort=False)
    }


def _conditions(ratios: dict[str, tuple[float, float]], steps: pd.DataFrame) -> str:
    """The first steps of every initialization, in a sentence."""
    plain, scaled, tied = (
        number(ratios[name][0])
        for name in (_vocabulary.PLAIN, _vocabulary.SCALED, _vocabulary.TIED)
    )
    words, width = int(steps["words"].iloc[0]), int(steps["width"].max())
    return (
        f" In the first step of a model of {words:,} words with their frequencies in source code, "
        f"{width} wide, the embedding's largest gradient is {plain} times that of the other "
        f"layers' matrices where it starts small, {scaled} times with the initialization that the "
        f"paper names, N(0, 1/√k) times √k, and {tied} times where the output layer has the same "
        "weights."
    )


EXHIBIT = Exhibit(
    name="appendix-b",
    covers=("Appendix B",),
    title="Gradients of the embedding beside those of other layers",
    needs=Needs.STATES,
    source="states of {headline}, and of {grid}",
    build=build,
    find=find,
    pretrained=True,
)
