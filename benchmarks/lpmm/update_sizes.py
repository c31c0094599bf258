"""Updates of low-precision parameters in units of the distance between codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.engines.step import ParameterStep
from qmaps.errors import BadValueError
from qmaps.maps.base import table
from qmaps.ops.backends import use_backend

Observer = Callable[[str, int, Tensor, Tensor, QuantizedTensor], None]

LOWEST, HIGHEST = -16, 8
"""Bins of the distribution: octaves from 2^-16 to 2^8 delta."""

EDGES: NDArray[np.float64] = np.r_[0.0, np.exp2(np.arange(LOWEST, HIGHEST + 1)), np.inf]
"""Their edges in units of delta; the first bin starts at 0, the last has no end."""

RATIOS = [
    "parameter",
    "step",
    "numel",
    "bin_change",
    "wanted_change",
    "updated",
    "underflow",
    "moved",
]
DISTRIBUTION = ["parameter", "bin_left", "bin_right", "count", "share", "cumulative"]


def spacing(wanted: Tensor, t: QuantizedTensor) -> Tensor:
    """delta: the distance between the two neighbouring codes of `t` that `wanted` lies between.

    Args:
        wanted: float32 values.
        t: what they became, of the same shape; its scales count.

    Returns:
        float32 distances in the unit of `wanted`, 0 under a scale of 0. Under a linear map they
        are equal under one scale.
    """
    q = t.quantizer
    book = table(q.map).to(wanted.device)
    upper = torch.searchsorted(book, q.normalizer.normalize(wanted, t.scales))
    upper = upper.clamp(1, book.numel() - 1)
    return q.normalizer.denormalize(book[upper] - book[upper - 1], t.scales)


@dataclass(frozen=True)
class _Seen:
    """One update of one parameter."""

    parameter: str
    step: int
    numel: int
    bin_change: float
    wanted_change: float
    updated: int
    underflowing: int
    moved: int
    counts: NDArray[np.int64]


@contextmanager
def watched(observer: Observer) -> Iterator[None]:
    """Within the block the reference steps, and an observer sees updates of codes.

    Args:
        observer: called with each update of a low-precision parameter: its label, the number of
            the step from 1 on, its float32 values before, those computed by the rule, and the new
            codes.
    """
    write = ReferencePlan._write

    def observed(plan: ReferencePlan, parameter: ParameterStep, step: int, values: Tensor) -> None:
        before = None if parameter.codes is None else parameter.codes.dequantize()
        write(plan, parameter, step, values)
        if before is not None:
            observer(parameter.label, step, before, values, parameter.codes)

    with use_backend("reference"), mock.patch.object(ReferencePlan, "_write", observed):
        yield


class Underflow:
    """Gathers how the updates of a converted model fare, as `watched` shows them.

    With the update v that the rule asks for, the update that becomes of it (from the old decoded
    values to the new ones), and delta, the distance between neighbouring codes under the new
    scales, a v of less than delta / 2 is lost where rounding is to nearest. Elements whose delta
    is 0 (blocks of zeros) are left out, and so are updates that are not finite.

    Args:
        every: look at one step in that many, the first among them; at least 1.

    Source: LPMM, section 3.2, figures 2 and 3.

    >>> import torch
    >>> from qmaps import lpmm
    >>> model = lpmm.convert(torch.nn.Linear(64, 64), params="B2048/linear0@8s")
    >>> optimizer = lpmm.LPMMSGD(model.named_parameters(), lr=1e-5)
    >>> underflow = Underflow()
    >>> with watched(underflow):
    ...     model(torch.ones(2, 64)).square().mean().backward()
    ...     optimizer.step()
    >>> underflow.ratios()["moved"].tolist()
    [0.0, 0.0]
    """

    def __init__(self, every: int = 1) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise BadValueError(f"every={every!r} must be an int of at least 1")
        self.every = every
        self._seen: list[_Seen] = []

    def __call__(
        self, name: str, step: int, before: Tensor, wanted: Tensor, after: QuantizedTensor
    ) -> None:
        """Look at one update; see `watched`."""
        if (step - 1) % self.every:
            return
        delta = spacing(wanted, after).double()
        asked = (wanted.double() - before.double()).abs() / delta
        became = (after.dequantize().double() - before.double()).abs() / delta
        finite = (delta > 0) & asked.isfinite() & became.isfinite()
        asked, became = asked[finite], became[finite]
        nonzero = asked > 0
        places = torch.bucketize(asked, torch.from_numpy(EDGES).to(asked.device), right=True) - 1
        counts = torch.bincount(places, minlength=EDGES.size - 1)
        self._seen.append(
            _Seen(
                parameter=name.removeprefix("parameter ").strip("'"),
                step=step,
                numel=asked.numel(),
                bin_change=float(became.mean()),
                wanted_change=float(asked.mean()),
                updated=int(nonzero.sum()),
                underflowing=int((nonzero & (asked < 0.5)).sum()),
                moved=int((nonzero & (became > 0.5)).sum()),
                counts=counts.cpu().numpy(),
            )
        )

    def ratios(self) -> pd.DataFrame:
        """Movement of parameters, one row per update.

        Returns:
            Columns `parameter`, `step`; `numel`, the elements that count; `bin_change`, the mean
            of the update that became in units of delta (the paper's bin change ratio) and
            `wanted_change`, that of the update asked for; `updated`, elements whose update is
            not 0; `underflow`, the share of those whose update is below delta / 2, and `moved`,
            the share that moved by more than delta / 2; NaN where there are none. A scale that
            changes moves all values under it, by more than delta / 2 where it changes much.
        """
        rows = [
            {
                "parameter": seen.parameter,
                "step": seen.step,
                "numel": seen.numel,
                "bin_change": seen.bin_change,
                "wanted_change": seen.wanted_change,
                "updated": seen.updated,
                "underflow": seen.underflowing / seen.updated if seen.updated else math.nan,
                "moved": seen.moved / seen.updated if seen.updated else math.nan,
            }
            for seen in self._seen
        ]
        return pd.DataFrame(rows, columns=RATIOS)

    def distribution(self, steps: Iterable[int] | None = None) -> pd.DataFrame:
        """Distribution of the magnitudes of updates in units of delta, per parameter.

        Args:
            steps: those to count, summed; all that were seen if left out.

        Returns:
            One row per parameter and bin: `parameter`; `bin_left` and `bin_right` in units of
            delta, left ends included, from 0 over powers of 2 to infinity;
            `count`, `share` of the parameter's elements, and `cumulative`, the share below
            `bin_right`. Updates of 0 count in the first bin.
        """
        chosen = None if steps is None else set(steps)
        total: dict[str, NDArray[np.int64]] = {}
        for seen in self._seen:
            if chosen is None or seen.step in chosen:
                total[seen.parameter] = total.get(seen.parameter, 0) + seen.counts
        frames = []
        for parameter, counts in total.items():
            share = counts / max(1, int(counts.sum()))
            frames.append(
                pd.DataFrame(
                    {
                        "parameter": parameter,
                        "bin_left": EDGES[:-1],
                        "bin_right": EDGES[1:],
                        "count": counts,
                        "share": share,
                        "cumulative": np.cumsum(share),
                    }
                )
            )
        if not frames:
            return pd.DataFrame(columns=DISTRIBUTION)
        return pd.concat(frames, ignore_index=True)
