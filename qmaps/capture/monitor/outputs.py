"""Outputs of a monitor: a CSV file of whole steps, loggers, and warnings."""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from qmaps.algebra.spec import parse
from qmaps.capture.monitor.measures import MEASURES
from qmaps.errors import (
    BadTypeError,
    BadValueError,
    OutputError,
    QmapsError,
    StateWarning,
    printable,
    shown,
)
from qmaps.storage.files import output_file, writable
from qmaps.storage.locks import FolderLock

ROWS = "rows"
"""The last column of the file: number of rows of the step."""


class CsvFile:
    """Appends the rows of a step in one write. `last` is the last step in the file, else 0.

    An existing file is continued. A step that a kill has cut off is removed, to be written again:
    it has fewer rows than its last column, `ROWS`, says.

    Raises:
        OutputError: the file cannot be written, is something else, or has another writer.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self.path = output_file(path)
        self._columns = (*columns, ROWS)
        # A lock for each file: other writers use the folder, too.
        self._lock = FolderLock(self.path.parent, self.path.name)
        try:
            self.last = self._read()
        except BaseException:
            self._lock.release()
            raise

    @property
    def inherited(self) -> bool:
        """True in a forked child, which must not write."""
        return self._lock.inherited

    def close(self) -> None:
        """Let others write the file; closing twice is allowed."""
        self._lock.release()

    def append(self, rows: Sequence[dict[str, Any]], step: int) -> None:
        """Write the rows of a step."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                writer.writeheader()
            for row in rows:
                texts = {name: printable(x) for name, x in row.items() if isinstance(x, str)}
                writer.writerow(row | texts | {ROWS: len(rows)})
            content = text.getvalue().encode()
            try:
                if file.write(content) != len(content):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise
        self.last = step

    def _read(self) -> int:
        """Return the last step of the file, without one that was cut off."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise OutputError(
                f"out={str(self.path)!r} cannot be read ({error.strerror}); give another file"
            ) from None
        header = ",".join(self._columns).encode()
        if header.startswith(content):  # empty, or cut off within the header
            self._truncate(0)
            return 0
        *lines, _ = content.split(b"\n")  # there are no line breaks in cells
        if not lines or lines[0] != header:
            raise OutputError(
                f"out={str(self.path)!r} exists and is no file of a monitor with these columns; "
                "give another file"
            )
        del lines[0]
        steps = [line.partition(b",")[0] for line in lines]
        try:
            if steps and steps.count(steps[-1]) < int(lines[-1].rpartition(b",")[2]):
                steps = steps[: steps.index(steps[-1])]
            last = int(steps[-1]) if steps else 0
        except ValueError:
            raise OutputError(
                f"out={str(self.path)!r} is damaged: its last row has no step; give another file"
            ) from None
        self._truncate(sum(len(line) + 1 for line in (header, *lines[: len(steps)])))
        return last

    def _truncate(self, size: int) -> None:
        with writable(self.path, "file"):
            os.truncate(self.path, size)


Log = Callable[[dict[str, float], int], object]
"""Takes values by name and the number of the step, as ``wandb.log`` and ``trackio.log`` do."""


def logs_of(log: Any) -> list[Log]:
    """Return the functions behind the argument `log` of a monitor, or raise BadTypeError."""
    if log is None:
        return []
    members = log if isinstance(log, Sequence) and not isinstance(log, str) else [log]
    return [_log_of(member) for member in members]


def _log_of(logger: Any) -> Log:
    if hasattr(logger, "add_scalar"):

        def add(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                logger.add_scalar(name, value, step)

        return add
    # A run of W&B has a method, and so has each module.
    if callable(log := getattr(logger, "log", None)):
        return lambda values, step: log(values, step=step)
    if callable(logger):
        function: Log = logger
        return function
    raise BadTypeError(
        f"log={shown(logger)} must be a function of values and step, a SummaryWriter, or an object "
        "with a method log(values, step=...)"
    )


def scalars(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Measures by name, ``sqnr_db/0.weight.exp_avg``; non-finite ones are left out."""
    return {
        f"{measure}/{printable(row['parameter'])}.{row['state']}": row[measure]
        for row in rows
        for measure in MEASURES
        if math.isfinite(row[measure])
    }


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits of the measures of `qmaps.capture.Monitor`; None turns a warning off.

    Attributes:
        stalled_share: largest allowed share of stalled elements among moved ones, if at
            least a tenth of all moved. Nearest rounding at a beta of 0.999 stalls in 8 bits too
            without harm, so only the loss of nearly all movement is reported.
        stuck_share: largest allowed share of second moments that are far above their squared
            gradients and cannot fall. Rare large gradients, as of the last layer of a language
            model, leave some there as well.
        zero_point_share: largest allowed share of zero points. One of them is enough for an update
            of m / eps, so none is allowed by default.
        saturated_share: largest allowed share of saturated elements. A 4-bit map with every code
            equally often (`quantile`) has 2 / 16 of them at the ends.
        sqnr_db: smallest allowed SQNR in dB. At 10 dB the noise has a tenth of the power of the
            state.
        update_median_rel_error: largest allowed median relative error of the update. At 1 half of
            the updates are as wrong as no update.

    Raises:
        BadTypeError, BadValueError: a limit is not a finite number or None.
    """

    stalled_share: float | None = 0.9
    stuck_share: float | None = 0.25
    zero_point_share: float | None = 0.0
    saturated_share: float | None = 0.2
    sqnr_db: float | None = 10.0
    update_median_rel_error: float | None = 0.5

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise BadTypeError(f"{name}={shown(limit)} must be a number or None")
            if not math.isfinite(limit):
                raise BadValueError(f"{name}={shown(limit)} must be a finite number or None")


LIMITED = tuple(option.name for option in fields(Thresholds))
"""Measures with limits."""


MOVERS = 0.1
"""Share of moved elements below which a share of them says little about the state."""

ADVICE = {
    "stalled_share": "use more bits or stochastic rounding (+sr)",
    "stuck_share": "round with +qsr, as in B256/geometric@8u+qsr",
    "zero_point_share": "an update may be m / eps; use a map without 0, such as DE-0 or linear",
    "saturated_share": "use smaller blocks",
    "sqnr_db": "use more bits or smaller blocks",
    "update_median_rel_error": "use more bits or smaller blocks",
}


REFIT = "refit the map more often (refit_every), or "


def advice(measure: str, spec: str) -> str:
    """Return what helps a state with this quantizer."""
    try:
        fitted = measure == "saturated_share" and parse(spec)[1].fitted
    except QmapsError:  # a codebook of the user's own has no name in specs
        fitted = False
    return REFIT * fitted + ADVICE[measure]


class Warner:
    """Warns once about each state and cause, whatever the number of steps and parameters."""

    def __init__(self, thresholds: Thresholds) -> None:
        limits = asdict(thresholds).items()
        self._limits = {measure: limit for measure, limit in limits if limit is not None}
        self._told: set[tuple[str, str]] = set()

    def look(self, rows: Sequence[dict[str, Any]], step: int) -> None:
        """Warn about new problems in these rows."""
        for state in dict.fromkeys(row["state"] for row in rows):
            of_state = [row for row in rows if row["state"] == state]
            for measure, limit in self._limits.items():
                if (state, measure) not in self._told:
                    self._compare(of_state, measure, limit, step)

    def _compare(
        self, rows: Sequence[dict[str, Any]], measure: str, limit: float, step: int
    ) -> None:
        sign = -1 if measure == "sqnr_db" else 1
        bad = [row for row in rows if sign * row[measure] > sign * limit]  # NaN is never beyond
        if measure == "stalled_share":
            bad = [row for row in bad if row["moved_share"] >= MOVERS]
        if not bad:
            return
        worst = max(bad, key=lambda row: sign * row[measure])
        self._told.add((worst["state"], measure))
        parameter, side = shown(worst["parameter"]), "below" if measure == "sqnr_db" else "above"
        counts = [len({row["parameter"] for row in some}) for some in (bad, rows)]
        warnings.warn(
            f"{measure}={worst[measure]:.3g} of state {worst['state']!r} ({worst['quantizer']}) of "
            f"{parameter} at step {step} is {side} {limit:g}, as in {counts[0]} of {counts[1]} "
            f"parameters; {advice(measure, worst['quantizer'])}",
            StateWarning,
            stacklevel=2,
        )
