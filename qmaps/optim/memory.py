"""Memory of an optimizer's states, with the reason for each quantizer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.masters import MASTER, REMAINDER, master_dtypes
from qmaps.engines.sharding.shards import local
from qmaps.optim.records import Parameters, StateRecord
from qmaps.storage.units import of_states

LONGEST = 40
"""Parameters that a table shows one by one; of more, alike layers share a row."""

COLUMNS = ("parameter", "shape", "dtype", "state", "kept as", "why", "bytes")


@dataclass(frozen=True)
class StateMemory:
    """One state of one parameter.

    Attributes:
        parameter: its name, or ``group 0, number 3`` where parameters have none.
        shape: of the parameter, all shards together.
        dtype: of the parameter.
        state: the state's name.
        quantizer: the spec, or None for 32 bits; of remainders of master weights the dtype.
        why: the reason.
        nbytes: codes, scales and codebook.
        predicted: whether the state is not there yet; it then appears with the next step that
            finds a gradient, of that size.
        count: how many parameters a row of a summarized table stands for; `nbytes` is their sum.
    """

    parameter: str
    shape: tuple[int, ...]
    dtype: str
    state: str
    quantizer: str | None
    why: str
    nbytes: int
    predicted: bool
    count: int = 1


@dataclass(frozen=True)
class Memory:
    """Memory of states, one row for each parameter and state; prints as a table.

    Step counters, of 4 bytes each, are left out, as they are in `state_nbytes`. So are frozen
    parameters without states.

    Attributes:
        rows: in the order of the parameter groups.
        numel: elements of all parameters with states, now or later; of shards, the local ones.
        nbytes: of all states.
        nbytes_in_32_bits: bytes of the same states in 32 bits.
    """

    rows: tuple[StateMemory, ...]
    numel: int
    nbytes: int
    nbytes_in_32_bits: int

    @property
    def bits_per_state_element(self) -> float:
        """Mean bits of an element of the states, scales included; 0 without states."""
        return 32 * self.nbytes / self.nbytes_in_32_bits if self.nbytes_in_32_bits else 0.0

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes of all states for one element of a parameter; 0 without parameters."""
        return self.nbytes / self.numel if self.numel else 0.0

    @property
    def predicted(self) -> bool:
        """True if some of the states are not there yet."""
        return any(row.predicted for row in self.rows)

    def __iter__(self) -> Iterator[StateMemory]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        """The rows as aligned text, with totals below.

        Of a model with more than 40 parameters, layers that differ in nothing but their number
        share a row.
        """
        blocks = [list(rows) for _, rows in groupby(self.rows, key=lambda row: row.parameter)]
        if len(blocks) > LONGEST:
            blocks = _merged(blocks)
        lines: list[tuple[str, ...]] = [COLUMNS]
        for block in blocks:
            lines += [_cells(row, first=row is block[0]) for row in block]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = []
        for line in lines:
            # Numbers end in one column, words begin in one.
            padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            texts.append("  ".join([*padded[:-1], line[-1].rjust(widths[-1])]))
        return "\n".join([*texts, "", self._totals()])

    __repr__ = __str__

    def _totals(self) -> str:
        kind = "predicted bytes" if self.predicted else "bytes"
        unquantized = self.nbytes_in_32_bits

        def per_element(nbytes: int) -> str:
            return of_states(nbytes, unquantized, self.numel) if unquantized else "no states"

        return (
            f"{self.nbytes:,} {kind} of states for {self.numel:,} parameters: "
            f"{per_element(self.nbytes)}\n"
            f"{unquantized:,} bytes in 32 bits: {per_element(unquantized)}"
        )


def memory(parameters: Parameters) -> Memory:
    """Memory of the states of an optimizer, also before the first step."""
    rows = []
    numel = unquantized = 0
    seen: set[Tensor] = set()
    for record in parameters.records():
        param, group = record.param, record.group
        if param in seen:  # a parameter that is listed twice has its states once
            continue
        seen.add(param)
        state = parameters.state.get(param, {})
        stored = [name for name in parameters.rule.states if name in state]
        # What never gets a gradient never gets a state.
        if not (stored or MASTER in state or REMAINDER in state) and not param.requires_grad:
            continue
        numel += local(param).numel()
        label = record.name or "group {}, number {}".format(*record.place)
        shape, dtype = tuple(param.shape), str(param.dtype).removeprefix("torch.")
        planned = {state_record.name: state_record for state_record in record.states()}
        for name in parameters.rule.states:
            if name in planned or name in stored:
                cells = _state_cells(planned.get(name), state.get(name))
                rows.append(StateMemory(label, shape, dtype, name, *cells))
                size = planned[name].shape if name in planned else local(param).shape
                unquantized += 4 * math.prod(size)
        for name, kept_as, why, nbytes, missing in _master_cells(param, group, state):
            row = StateMemory(label, shape, dtype, name, kept_as, why, nbytes, missing)
            rows.append(row)
            unquantized += 4 * local(param).numel()
    return Memory(tuple(rows), numel, sum(row.nbytes for row in rows), unquantized)


def _state_cells(
    planned: StateRecord | None, value: Tensor | QuantizedTensor | None
) -> tuple[str | None, str, int, bool]:
    """Columns from `quantizer` on; `planned` is None if the next step does not use the state."""
    spec, why = None, "no longer used"
    if planned is not None:
        spec = None if planned.quantizer is None else planned.quantizer.spec
        why = planned.why
    if value is None:
        assert planned is not None
        q = planned.quantizer
        nbytes = 4 * math.prod(planned.shape) if q is None else q.nbytes(planned.shape)
        return spec, why, nbytes, True
    stored = value.quantizer.spec if isinstance(value, QuantizedTensor) else None
    if planned is not None and stored != spec:
        why = f"{spec or '32 bits'} from the next step: {why}"
    return stored, why, value.nbytes, False


def _master_cells(
    param: Tensor, group: dict[str, Any], state: Mapping[str, Any]
) -> Iterator[tuple[str, str | None, str, int, bool]]:
    """Columns from `state` on of master weights, present or created by the next step."""
    wanted = master_dtypes(param, group)
    for kind in (MASTER, REMAINDER):
        stored: Tensor | None = state.get(kind)
        dtype = wanted.get(kind) if stored is None else stored.dtype
        if dtype is not None:
            form = group["master_weights"]
            why = f"master_weights={form!r}" if kind in wanted else "no longer used"
            shown = None if kind == MASTER else str(dtype).removeprefix("torch.")
            yield kind, shown, why, dtype.itemsize * local(param).numel(), stored is None


def _merged(blocks: Sequence[list[StateMemory]]) -> list[list[StateMemory]]:
    """One block for parameters with equal states and names that differ only in numbers."""
    alike: dict[Any, list[list[StateMemory]]] = {}
    for block in blocks:
        pattern = re.sub(r"\d+", "*", block[0].parameter)
        kind = [(r.shape, r.dtype, r.state, r.quantizer, r.why, r.predicted) for r in block]
        alike.setdefault((pattern, tuple(kind)), []).append(block)
    return [
        [
            replace(
                rows[0],
                parameter=pattern if len(same) > 1 else rows[0].parameter,
                nbytes=sum(row.nbytes for row in rows),
                count=len(same),
            )
            for rows in zip(*same, strict=True)
        ]
        for (pattern, _), same in alike.items()
    ]


def _cells(row: StateMemory, *, first: bool) -> tuple[str, ...]:
    """A line of the table; the columns of the parameter are filled in its first line."""
    count = f" (x{row.count})" if row.count > 1 else ""
    shape = " x ".join(map(str, row.shape)) if row.shape else "scalar"
    parameter = (row.parameter + count, shape, row.dtype) if first else ("", "", "")
    return *parameter, row.state, row.quantizer or "32 bits", row.why, f"{row.nbytes:,}"
