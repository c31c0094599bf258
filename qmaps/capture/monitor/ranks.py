"""One report for all processes that train together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from qmaps.capture.monitor.measures import SUMS, added, measures_of
from qmaps.capture.monitor.window import Row
from qmaps.engines.sharding.shards import shard_of
from qmaps.errors import BadTypeError, BadValueError, CommunicationError, QmapsError, shown
from qmaps.storage import __version__

NAMES = ("parameter", "state", "quantizer", "shard")
"""Columns that identify a row of one rank."""

UNNAMED = re.compile(r"group\d+\.param\d+'*")
"""Labels of parameters without names."""

Key = tuple[str | None, ...]


class NoStatesError(BadValueError):
    """An optimizer has no quantized states to measure."""


class Ranks:
    """The processes of a group, or this one alone if it is None.

    `number` is the rank of this process, `together` is True if there is a group, and `terms` is
    what the monitor of each has told the others.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if group is not None and not isinstance(group, getattr(dist, "ProcessGroup", ())):
            raise BadTypeError(
                f"process_group={shown(group)} must be a ProcessGroup of this process or None"
            )
        self._group = group
        self.together = group is not None
        self.number = 0 if group is None else dist.get_rank(group)
        count = 1 if group is None else dist.get_world_size(group)
        self.terms: list[dict[str, Any]] = []
        self._keys: list[list[Key]] = [[] for _ in range(count)]
        self._error: Exception | None = None

    @contextmanager
    def agreement(self) -> Iterator[dict[str, Any]]:
        """Make a monitor within the block, on all ranks or on none.

        The block fills the yielded dict with the terms of this rank: in `same`, options that must
        be equal on all ranks, `labels` of its parameters, `shapes` of those with quantized states,
        whole and by label, and `skips`, True if it may skip steps.

        Raises:
            Exception: the error of the block; BadValueError if another rank has one, or other
                options, or if parameters without names differ; or NoStatesError.
        """
        terms: dict[str, Any] = {"same": {"qmaps": __version__}}
        error = None
        try:
            yield terms
        except Exception as caught:
            error = caught
        told = None if error is None else _told(error)
        self.terms = self._objects({**terms, "error": told})
        if error is not None:
            raise error
        first = self.terms[0]
        for rank, other in enumerate(self.terms):
            if other["error"] is not None:
                raise BadValueError(f"rank {rank}: {other['error']}")
        for rank, other in enumerate(self.terms):
            for name, value in other["same"].items():
                if value != (expected := first["same"].get(name)):
                    raise BadValueError(
                        f"{name}={value} on rank {rank} must be {expected}, as on rank 0"
                    )
        if not any(other["shapes"] for other in self.terms):
            raise NoStatesError(first["lacking"])
        self._check_shapes()
        skips = any(other["skips"] for other in self.terms)
        if skips and any(other["labels"] != first["labels"] for other in self.terms):
            raise BadValueError(
                "nonfinite='skip' may skip steps on some ranks only, since their parameters "
                "differ; a monitor of all ranks needs nonfinite='propagate' or 'raise'"
            )

    def _check_shapes(self) -> None:
        """Raise if a label without a name stands for different parameters."""
        seen: dict[str, tuple[int, tuple[int, ...]]] = {}
        for rank, other in enumerate(self.terms):
            for label, shape in other["shapes"].items():
                first, expected = seen.setdefault(label, (rank, shape))
                if shape != expected and UNNAMED.fullmatch(label):
                    raise BadValueError(
                        f"{label} has shape {shape} on rank {rank} and {expected} on rank {first}; "
                        "parameters that differ over ranks need names (names=model)"
                    )

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep an error of the block for the next `report`, in which all ranks raise it."""
        try:
            yield
        except Exception as error:
            if self._group is None:
                raise
            self._error = self._error or error

    def close(self) -> None:
        """Raise an error since the last report; closing twice is allowed."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def report(
        self,
        rows: Callable[[], Sequence[Row]],
        chosen: Iterable[tuple[str, Tensor, Any]],
        whole: Container[str] = (),
    ) -> list[dict[str, Any]]:
        """Return the measures of each state of all ranks together.

        `rows` returns the sums of this rank, `chosen` are its names and parameters, and `whole` the
        names of the states that one rank has whole. Equal rows of the same shard are those of
        replicas, and count once.

        Raises:
            CommunicationError: `rows` or a block of `holding` has raised on a rank; with its error.
        """
        if self._group is None:
            return [_finished([row]) for row in rows()]
        measured: list[Row] = []
        with self.holding():
            boxes = {label: _box(parameter) for label, parameter, _ in chosen}
            for row in rows():
                box = None if row["state"] in whole else boxes.get(row["parameter"])
                measured.append({**row, "shard": box})
        parts: dict[Key, dict[Key, Row]] = defaultdict(dict)
        for row in self._gathered(measured):
            content = repr([row[name] for name in SUMS])
            parts[row["parameter"], row["state"]].setdefault((row["shard"], content), row)
        return [_finished(list(by_content.values())) for by_content in parts.values()]

    def _gathered(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of all ranks, by one collective unless a rank has new ones or an error."""
        mine = {tuple(row[name] for name in NAMES): row for row in rows}
        error, self._error = self._error, None
        while True:
            keys = self._keys[self.number]
            added_keys = [key for key in mine if key not in keys]
            table = torch.zeros(max(map(len, self._keys)) + 1, len(SUMS), dtype=torch.float64)
            for line, key in zip(table, keys, strict=False):
                if key in mine:
                    line[:] = torch.tensor([mine[key][name] for name in SUMS], dtype=table.dtype)
            table[-1, 0] = bool(added_keys) or error is not None
            tables = self._all(table)
            if not any(values[-1, 0] for values in tables):
                break
            told = None if error is None else _told(error)
            news = self._objects((told, [*keys, *added_keys]))
            for rank, (text, _) in enumerate(news):
                if text is not None:
                    raise CommunicationError(f"rank {rank}: {text}") from error
            self._keys = [rank_keys for _, rank_keys in news]
        return [
            {**dict(zip(NAMES, key, strict=True)), **sums}
            for known, values in zip(self._keys, tables, strict=True)
            for key, line in zip(known, values.tolist(), strict=False)
            if (sums := dict(zip(SUMS, line, strict=True)))["numel"]
        ]

    def _all(self, table: Tensor) -> list[Tensor]:
        """The tables of all ranks."""
        if "cpu" not in dist.get_backend_config(self._group):
            table = table.to(torch.accelerator.current_accelerator())
        tables = [torch.empty_like(table) for _ in self._keys]
        dist.all_gather(tables, table, group=self._group)
        return [other.cpu() for other in tables]

    def _objects(self, value: Any) -> list[Any]:
        """A picklable value of each rank."""
        if self._group is None:
            return [value]
        values = [None] * len(self._keys)
        dist.all_gather_object(values, value, group=self._group)
        return values


def everyone() -> dist.ProcessGroup | None:
    """The group of all processes; None if there is only this one."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return dist.group.WORLD


def _told(error: Exception) -> str:
    """The error as the other ranks show it."""
    return str(error) if isinstance(error, QmapsError) else f"{type(error).__name__}: {error}"


def _box(parameter: Tensor) -> str | None:
    """The shard of a parameter as a slice, ``[64:128, 0:32]``; None if it is whole."""
    if (shard := shard_of(parameter)) is None:
        return None
    ends = zip(shard.offsets, shard.local_shape, strict=True)
    return f"[{', '.join(f'{begin}:{begin + size}' for begin, size in ends)}]"


def _finished(rows: Sequence[Row]) -> dict[str, Any]:
    """The measures of rows together."""
    sums = rows[0] if len(rows) == 1 else added(rows)
    about = {name: rows[0][name] for name in ("parameter", "state", "quantizer")}
    return {**about, "numel": int(sums["numel"]), **measures_of(sums)}
