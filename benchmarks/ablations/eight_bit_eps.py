"""Linear maps of Table 3 of the 8-bit optimizers with larger eps."""

from __future__ import annotations

import pandas as pd

from benchmarks.ablations import eight_bit
from benchmarks.ablations.study import Setting, Study
from reproduction.claim import Claim

FACTORS = (1, 10, 100, 1_000)
"""By which the paper's eps are multiplied."""
EMBEDDINGS = (False, True)


def name(width: str, embedding: bool, factor: int) -> str:
    """The name of a setting; those of 8 bits have the linear map and one scale a tensor."""
    return " | ".join(_parts(width, embedding, factor))


def _parts(width: str, embedding: bool, factor: int) -> tuple[str, ...]:
    return *eight_bit.parts(width, False, False, embedding), f"{factor:,}"


def _settings() -> list[Setting]:
    specs = {"exp_avg": "tensor/linear0@8s", "exp_avg_sq": "tensor/linear0@8u"}
    return [
        Setting(
            _parts(width, embedding, factor),
            quantizers,
            stable_embedding=embedding,
            row=eight_bit.name(width, embedding=embedding),
            eps=factor,
        )
        for embedding in EMBEDDINGS
        for width, quantizers in (("32", None), ("8", specs))
        for factor in FACTORS
    ]


def _falls(shares: pd.Series[float]) -> bool:
    return bool(shares.is_monotonic_decreasing and shares.iloc[0] > shares.iloc[-1])


STUDY = Study(
    name="eight-bit-eps",
    title="8-bit Adam with the linear map: eps beside the size of gradients",
    source="8-bit optimizers, table 3 (209 million parameters)",
    exhibit=eight_bit.STUDY.exhibit,
    columns=(*eight_bit.STUDY.columns, "eps, times the paper's"),
    metric="perplexity",
    settings=tuple(_settings()),
    points=tuple(
        one
        for one in eight_bit.STUDY.points
        if (one.lr, one.betas[0]) == (eight_bit.BASE_RATE, 0.9)
    ),
    baseline=lambda setting: " | ".join(("32", "-", "-", *setting.parts[3:])),
    claims=lambda rows: (
        Claim(
            "With the paper's eps every run with the linear map is unstable.",
            bool((rows.loc[[name("8", one, 1) for one in EMBEDDINGS]].unstable == 100).all()),
        ),
        Claim(
            "The larger eps is, the fewer runs with the linear map are unstable.",
            all(_falls(rows.unstable[[name("8", one, each) for each in FACTORS]])
                for one in EMBEDDINGS),
        ),
    ),
)  # fmt: skip
