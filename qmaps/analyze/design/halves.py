"""The two halves of a recorded window: one to choose by, one to measure on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze import replay
from qmaps.analyze.replay.source import Source, share_of, source
from qmaps.capture import CapturedStates
from qmaps.errors import CaptureError

ELEMENTS = 2**16
"""Elements that are replayed if the share is left out, about."""
SHORTEST = 10
"""Recorded steps from which on a window is halved."""

Progress = Callable[[str, int, int, str], None]


class Halves:
    """Replays of the two halves of a window, with the same elements.

    Gradients that are simulated make two windows of `steps` gradients.

    Args:
        states: the captured states.
        names: the parameters to replay.
        steps: steps of a replay, about: a half is replayed as many rounds as that takes.
        share: share of each parameter to replay; None for about `ELEMENTS` elements of all.
        min_quantized_size: parameters of at most this many elements are left out.
        seed: of stochastic rounding and of simulated gradients.
        progress: called with the name of a stage, the number of parameters done, the number of all,
            and the parameter's name.

    Attributes:
        held_out: whether there are two halves. A window of fewer than `SHORTEST` gradients is not
            halved: both halves are then the whole of it.
        half: gradients of a half.
        rounds: how many times a half is replayed.

    Raises:
        CaptureError: the gradients of a single step were recorded, or they are of another run.
    """

    def __init__(
        self,
        states: CapturedStates,
        names: Sequence[str],
        steps: int,
        share: float | None,
        min_quantized_size: int,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self._states, self._names, self._seed = states, names, seed
        self._least, self._progress = min_quantized_size, progress
        window = len(states.window())
        if window == 1:
            raise CaptureError(
                f"{states.source!r} has the gradients of 1 step after it; a design needs at least 2"
            )
        self.held_out = not window or window >= SHORTEST
        self.half = steps if not window else window // 2 if self.held_out else window
        self.rounds = max(1, -(-steps // max(1, self.half)))
        self._share = share_of(states, names, ELEMENTS) if share is None else float(share)

    def sources(self, *, held_out: bool = False) -> list[Source]:
        """What is replayed of each parameter in one round.

        Raises:
            CaptureError: no parameter has gradients, or one's moments are not Adam's.
        """
        numbers = {name: number for number, name in enumerate(self._states.parameters())}
        found = (
            source(
                self._states,
                name,
                numbers[name],
                steps=self.half,
                share=self._share,
                seed=self._seed,
                skip=self._skip(held_out),
            )
            for name in self._names
        )
        sources = [each for each in found if each is not None]
        if not sources:
            raise CaptureError(
                f"the gradients beside {self._states.source!r} are of none of the chosen "
                "parameters, or of fewer than 2 steps"
            )
        return sources

    def summary(self, pairs: Sequence[Pair], stage: str, *, held_out: bool) -> pd.DataFrame:
        """The summary of a replay by the pairs' specs."""
        report = self._progress
        frame = replay.run(
            self._states,
            pairs,
            steps=self.half,
            skip=self._skip(held_out),
            rounds=self.rounds,
            share=self._share,
            parameters=self._names,
            min_quantized_size=self._least,
            seed=self._seed,
            progress=report and (lambda done, total, note: report(stage, done, total, note)),
        )
        return replay.summarize(frame).set_index("quantizer")

    def _skip(self, held_out: bool) -> int:
        return self.half if held_out and self.held_out else 0
