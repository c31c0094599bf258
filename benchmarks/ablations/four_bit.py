"""Table 1 of the 4-bit optimizers: normalization, map and factorization of second moments."""

from __future__ import annotations

from itertools import product

from benchmarks.ablations.study import Point, Setting, Study
from qmaps import optim
from reproduction.claim import Claim

FIRST = "B128/DE@4s"
NONE = "32 bits"
FACTORED = "rank1/linear, factorized"
NORMALIZERS = ("B2048", "B128", "rank1")
MAPS = ("DE", "DE+sr", "DE-0", "linear")


def parts(second: str, first: str | None = FIRST, embedding: bool = False) -> tuple[str, str, str]:
    """The cells of a setting."""
    return first or NONE, second, "yes" if embedding else "no"


def name(second: str, first: str | None = FIRST, embedding: bool = False) -> str:
    """The name of a setting."""
    return " | ".join(parts(second, first, embedding))


def _spec(second: str) -> str | None:
    if second == NONE:
        return None
    plain, plus, rounding = second.partition("+")
    return f"{plain}@4u{plus}{rounding}"


def _settings() -> list[Setting]:
    seconds = [f"{norm}/{kind}" for norm, kind in product(NORMALIZERS, MAPS)]
    settings = []
    for first, embedding in product((FIRST, None), (False, True)):
        for second in (NONE, *seconds, FACTORED):
            kind = optim.AdamWFactor if second == FACTORED else optim.AdamW
            spec = _spec("rank1/linear" if second == FACTORED else second)
            cells = parts(second, first, embedding)
            # The paper's first moments are `FIRST`, but for its baseline's.
            in_paper = bool(first) == (second != NONE)
            settings.append(
                Setting(
                    cells,
                    {"exp_avg": first, "exp_avg_sq": spec},
                    kind,
                    embedding,
                    " | ".join(cells[1:]) if in_paper else "",
                )
            )
    return settings


def _worst(*seconds: str) -> list[str]:
    return [name(second, first) for second in seconds for first in (FIRST, None)]


STUDY = Study(
    name="four-bit",
    title="4-bit second moments: normalization, map, factorization, stable embedding",
    source="4-bit optimizers, table 1 (GPT-2 Medium on E2E)",
    exhibit=("4-bit-optimizers", "table-1"),
    columns=("first moment", "second moment", "stable embedding"),
    metric="BLEU",
    settings=tuple(_settings()),
    points=tuple(Point(lr=rate, seed=seed) for rate in (1e-3, 3e-3) for seed in range(5)),
    baseline=lambda setting: name(
        NONE, FIRST if setting.parts[0] == FIRST else None, setting.stable_embedding
    ),
    claims=lambda rows: (
        Claim(
            "With a zero in the map (DE) and blocks, some runs are unstable.",
            bool((rows.loc[_worst("B2048/DE", "B128/DE")].unstable > 0).all()),
        ),
        Claim(
            "Stochastic rounding does not mend that.",
            bool((rows.loc[_worst("B128/DE+sr")].unstable > 0).all()),
        ),
        Claim(
            "Without the zero (DE-0) no run is unstable, with any normalizer.",
            bool((rows.loc[_worst(*(f"{norm}/DE-0" for norm in NORMALIZERS))].unstable == 0).all()),
        ),
        Claim(
            "The stable embedding makes runs with DE stable.",
            bool(
                (
                    rows.loc[[name("B2048/DE", FIRST, True), name("B128/DE", FIRST, True)]].unstable
                    == 0
                ).all()
            ),
            "Here the embedding's states are in 32 bits then, and the runs fail all the same: "
            "second moments of the other tensors fall to 0.",
        ),
        Claim(
            "rank1/linear ends no worse than DE-0 with any normalizer.",
            bool(
                rows.difference[name("rank1/linear")]
                <= rows.difference[[name(f"{norm}/DE-0") for norm in NORMALIZERS]].min()
            ),
            "After 100 steps a lower loss is no smaller error: most second moments in 4 bits, "
            "and the factorized one above all, end below the one in 32 bits.",
        ),
        Claim(
            "Factorizing the second moment is stable and costs no more than rank1/linear "
            "(within 0.02 nats).",
            bool(
                rows.unstable[name(FACTORED)] == 0
                and rows.difference[name(FACTORED)] <= rows.difference[name("rank1/linear")] + 0.02
            ),
        ),
    ),
)
