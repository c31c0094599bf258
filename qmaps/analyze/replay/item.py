"""The items of a replay: one parameter each, which any process can replay that reads the states."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze._states import opened
from qmaps.analyze.replay.rows import rows
from qmaps.analyze.replay.source import source
from qmaps.capture import CapturedStates


@dataclass(frozen=True)
class Item:
    """A parameter to replay.

    Attributes:
        number: its place among the items, from 0 on.
        source: the file or folder of the states; empty for states in memory.
        position: the parameter's place among those of the source, for random numbers too.
        parameter: its name.
        numel: number of its elements.
        pairs: pairs of quantizers.
        steps, skip, rounds, share, seed: as for `qmaps.replay.run`.
    """

    number: int
    source: str
    position: int
    parameter: str
    numel: int
    pairs: tuple[Pair, ...] = field(repr=False)
    steps: int | None
    skip: int
    rounds: int
    share: float
    seed: int

    @property
    def work(self) -> int:
        """Elements times pairs."""
        return self.numel * len(self.pairs)

    def measure(self, states: CapturedStates | None = None) -> pd.DataFrame:
        """Replay the parameter in this process.

        Args:
            states: the states, if they are open already; by default they are read from `source`.

        Returns:
            Its rows of `qmaps.replay.run`; none if it has fewer than 2 gradients and others more.

        Raises:
            CaptureError: as in `qmaps.replay.run`.
        """
        name = self.parameter
        if states is None:
            states = opened(self.source)
            name = states.parameters()[self.position]  # names may have been given by the caller
        data = source(
            states,
            name,
            self.position,
            steps=self.steps,
            share=self.share,
            seed=self.seed,
            skip=self.skip,
            rounds=self.rounds,
        )
        if data is None:
            return pd.DataFrame()
        made = rows(states.step, data, list(self.pairs), self.seed)
        return pd.DataFrame([{**row, "parameter": self.parameter} for row in made])
