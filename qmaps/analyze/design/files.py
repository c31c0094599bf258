"""Designs on disk: codebooks that ``--codebook`` reads, the candidates, and a record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qmaps.algebra.pair import Pair
from qmaps.analyze.design.candidates import NAMES
from qmaps.analyze.design.run import BOTH, Design
from qmaps.errors import DAMAGE, OutputError
from qmaps.maps.codebook import Codebook
from qmaps.storage.files import read_record, write_frame, write_record, write_text
from qmaps.storage.locks import FolderLock

RECORD, FRAME = "design.json", "candidates.parquet"


def record_of(design: Design) -> dict[str, Any]:
    """What ``design.json`` says: the pair, its codebooks and figures, and how they came about."""
    frame = design.frame
    row = frame[(frame["moment"] == BOTH) & frame["chosen"]].iloc[0]
    measures = list(frame.columns[frame.columns.get_loc("selection_error") :])
    codebooks = {
        book.label: {"file": _file(book), "values": book.codebook().tolist()}
        for book in design.codebooks
    }
    return {
        "pair": design.pair.spec,
        "codebooks": codebooks,
        "bits_per_element": float(row["bits_per_element"]),
        "measures": {name: float(row[name]) for name in measures if name != "chosen"},
        "criterion": design.criterion,
        "gradients": design.gradients,
        "held_out": design.held_out,
        "step": design.step,
        "steps": design.steps,
        "elements": design.elements,
    }


@contextmanager
def writing(design: Design, out: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a design to a folder, and what the block adds to it.

    The codebooks of the pair, ``first.txt`` and ``second.txt``, have one value per line. The frame
    is ``candidates.parquet``. ``design.json`` is removed first and written last, after the block:
    where it is, all other files belong to it.

    Args:
        design: the design.
        out: the folder, created if need be.

    Raises:
        OutputError: the folder cannot be written, or another process writes a design there.
    """
    with FolderLock(out, "design"):
        folder = Path(out)
        (folder / RECORD).unlink(missing_ok=True)
        files = {_file(book): book for book in design.codebooks}
        for name in (f"{moment}.txt" for moment in NAMES):
            if name in files:
                values = files[name].codebook().tolist()
                write_text(folder / name, "".join(f"{value!r}\n" for value in values))
            else:
                (folder / name).unlink(missing_ok=True)
        write_frame(folder / FRAME, design.frame)
        yield folder
        write_record(folder / RECORD, record_of(design))


def write(design: Design, out: str | os.PathLike[str]) -> None:
    """Write a design to a folder; see `writing`."""
    with writing(design, out):
        pass


def load(out: str | os.PathLike[str]) -> Pair:
    """Read the pair that a design in a folder chose.

    Args:
        out: the folder that `write` or ``qmaps design`` wrote to.

    Raises:
        OutputError: ``design.json`` is missing or damaged.
    """
    path = Path(out) / RECORD
    record = read_record(path)
    try:
        books = [
            Codebook(given["values"], label=label) for label, given in record["codebooks"].items()
        ]
        return Pair.parse(record["pair"], books)
    except DAMAGE:
        raise OutputError(f"{str(path)!r} is damaged; make the design again") from None


def _file(book: Codebook) -> str:
    return f"{NAMES[not book.signed]}.txt"
