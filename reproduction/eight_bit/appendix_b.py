"""Appendix B: gradients of the embedding."""

from __future__ import annotations

import pandas as pd

from qmaps.capture import CapturedStates
from qmaps.lab.report.published import published
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number
from reproduction.verdict import beside

EMBEDDINGS = ("tokens", "words", "wte", "embed_tokens", "word_embeddings")
"""What models call the table of their words."""
QUANTITY = "largest gradient, times that of other layers"


def build(context: Context) -> Frames:
    """Largest second moments, whose root is the size of a gradient."""
    named = {"grid": context.several[0], "headline": context.states}
    if context.pretrained is not None:
        named["pretrained"] = context.pretrained
    return {"gradients": pd.DataFrame(_largest(*pair) for pair in named.items())}


def _largest(title: str, states: CapturedStates) -> dict[str, object]:
    """`states`, `words` (rows of the embedding, 0 without one), `embedding`, `others`."""
    found: dict[bool, float] = {True: 0.0, False: 0.0}
    words = 0
    for name in states.parameters():
        if "exp_avg_sq" not in states.states(name):
            continue
        v = states.tensor(name, "exp_avg_sq")
        embedding = any(part in EMBEDDINGS for part in name.split("."))
        words = max(words, v.shape[0] if embedding else 0)
        found[embedding] = max(found[embedding], float(v.max()) ** 0.5)
    return {"states": title, "words": words, "embedding": found[True], "others": found[False]}


def find(frames: Frames) -> Finding:
    """The embedding's largest gradient beside the others', and whether it grows with the words."""
    table = frames["gradients"]
    table = table[table["words"] > 0].sort_values("words", kind="stable")
    ratios = (table["embedding"] / table["others"]).tolist()
    words = table["words"].tolist()
    ours = {("embedding", QUANTITY): max(ratios)} if ratios else {}
    said = ", ".join(f"{number(r)} of {n:,} words" for r, n in zip(ratios, words, strict=True))
    return Finding(
        numbers=beside(published("8-bit-optimizers", EXHIBIT.name), ours),
        differences=[
            Difference(
                f"Times that of other layers, by the words of the embedding: {said}; the paper's "
                "has 50,000. Neither for bytes nor for the words of a pretrained encoder do "
                "gradients come near 100 times those of other layers here.",
                len(ratios) > 1 and words[-1] > 2 * words[0] and ratios[-1] > 2 * ratios[0],
            )
        ],
        why="The size of a gradient is taken as the root of the largest second moment, a mean over "
        "recent steps, which evens out a single large gradient. The paper says that they can be "
        "100 times as large, and does not say where.",
        tables={"gradients": frames["gradients"]},
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
