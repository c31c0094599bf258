"""Whole optimizer steps on the CUDA engine: a few launches for all parameters.

The host waits for nothing. Step counts and step scalars are computed on the device
(``src/prologue.cuh``). Changed addresses of gradients and changed hyper-parameters are arguments of
launches. A step can therefore be recorded in a CUDA graph, after one step outside it. `reset_every`
is an exception, because `qmaps.optim.resets` reads the step counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.cuda import layout
from qmaps.cuda.codebooks import DeviceCodebook, codebook
from qmaps.cuda.compiler import kernel
from qmaps.cuda.engine import Engine, recording
from qmaps.cuda.factored import Statistics, slices, work_of
from qmaps.cuda.tensors import (
    DTYPES,
    ScaleLayout,
    Workspace,
    describe_noise,
    describe_scales,
    format_name,
    layout_of,
    tiles,
)
from qmaps.engines.addresses import address, in_memory
from qmaps.engines.masters import REMAINDER
from qmaps.engines.plan import FusedPlan
from qmaps.engines.rules import Factoring, KernelRule, ordered, rules
from qmaps.engines.sharding.exchange import SharedScales
from qmaps.engines.step import (
    NONE_SHARED,
    PRODUCT,
    RESET,
    Inputs,
    ParameterStep,
    Rule,
    Scalars,
    Scaled,
    StepEngine,
    StepPlan,
)
from qmaps.engines.step_scalars import StepScalar
from qmaps.engines.support import CUDA
from qmaps.errors import BackendError

SPLIT_TYPES = {torch.int8: "Split<std::int8_t>", torch.int16: "Split<std::int16_t>"}
"""The C++ types of bfloat16 parameters with remainders, by the dtype of the remainders."""


class CudaSteps(StepEngine):
    """Steps of one optimizer on one CUDA device."""

    name = "cuda"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._skipped = torch.zeros((), dtype=torch.int64, device=engine.device)

    @property
    def skipped(self) -> int:
        """The number of steps skipped for gradients that are not finite; waits for the device."""
        return int(self._skipped)

    def unsupported_reason(self, rule: Rule, parameter: ParameterStep) -> str:
        return next(CUDA.of_parameter(rule, parameter, self._engine.device), "")

    def plan(self, rule: Rule, parameters: Sequence[ParameterStep]) -> StepPlan:
        if recording():
            raise BackendError(
                "step() cannot be recorded in a CUDA graph yet; first take one step with the same "
                "parameters outside the graph"
            )
        return CudaPlan(rule, parameters, self._engine, self._skipped)


@dataclass
class Batch:
    """Parameters of one kind, stepped by one launch.

    Attributes:
        rule: the update rule.
        kind: the ``Kind`` of ``src/step.cuh``.
        codebooks: the codebook of each state; None for a state in float32.
        gradients: the C++ type of the gradients.
        multi_block: whether some states have scales over more than one block.
        members: the parameters, as rows of the table of parameters.
    """

    rule: KernelRule
    kind: str
    codebooks: tuple[DeviceCodebook | None, ...]
    gradients: str
    multi_block: bool
    members: list[int] = field(default_factory=list)


class Spans(Workspace):
    """Multi-block scales of states, in the table of parameters.

    Attributes:
        grids: whether some are codes of grids.
        rounds: whether some are stored in another form than their maxima.
        pieces: rows of ``MultiBlockItem``: parameter, state, part and chunk.
    """

    def __init__(self) -> None:
        super().__init__()
        self.grids = self.rounds = False
        self.pieces: list[tuple[int, int, int, int]] = []

    def add_state(
        self,
        target: np.ndarray,
        index: int,
        state: int,
        scale_layout: ScaleLayout,
        scales: Sequence[Tensor],
    ) -> None:
        """Add the scales of a state; `index` is the row of its parameter in the table.

        `state` is its number within the rule, or ``MAX_STATES`` for maxima over slices.
        """
        self.add(target, scale_layout, scales, fresh_floats=True)
        self.grids = self.grids or scale_layout.grids
        self.rounds = self.rounds or scale_layout.rounds
        for number, part in enumerate(scale_layout.geometry.parts):
            chunks = -(-part.count // layout.SCALES_CHUNK)
            self.pieces += [(index, state, number, chunk) for chunk in range(chunks)]


class CudaPlan(FusedPlan):
    """Parameters and their states, described in the memory of the device."""

    def __init__(
        self, rule: Rule, parameters: Sequence[ParameterStep], engine: Engine, skipped: Tensor
    ) -> None:
        self._engine = engine
        self._skipped = skipped
        # The values that the device received last.
        self._pairs: list[list[int]] = []
        self._words = b""
        self._resets: list[int] = []
        super().__init__(rule, parameters)

    def run(
        self,
        inputs: Inputs,
        shared: Mapping[Scaled, SharedScales] = NONE_SHARED,
    ) -> None:
        if not self._parameters:
            return
        scale, found_inf = _on(self._engine, inputs.grad_scale), _on(self._engine, inputs.found_inf)
        gradients_at, copies = self._gradients_at()
        self._write_addresses([self._targets_at(), gradients_at])
        self._write_scalars(inputs.scalars)
        self._write_resets()
        self._begin(found_inf)
        self._take_factored(scale)
        if self._takes_norms:  # new states may depend on them
            self._launch("step_norms", scale)
            self._launch("finish_norms", scale)
        if self._multi_block_count:
            self._workspace.zero_()
            self._make_scales(scale)
        self._launch("step", scale)
        self._over_scales("commit_step_scales")
        del copies  # the kernels read them until here
        self._round_masters()

    def _begin(self, found_inf: Tensor | None) -> None:
        if self._policed:
            self._bad.zero_()
            task = np.zeros((), dtype=layout.GRADIENT_CHECK)
            task["parameters"] = address(self._table)
            task["addresses"] = address(self._address_table)
            task["bad"] = address(self._bad)
            for batch, (items, count) in zip(self._batches, self._items, strict=True):
                task["items"], task["count"] = address(items), count
                entry = kernel("check_gradients", batch.gradients)
                self._engine.launch_over(entry, count, task)
        prologue = np.zeros((), dtype=layout.PROLOGUE)
        prologue["parameters"], prologue["count"] = address(self._table), len(self._parameters)
        prologue["step_scalars"] = address(self._step_scalars)
        prologue["resets"] = address(self._reset_table)
        prologue["found_inf"] = 0 if found_inf is None else address(found_inf)
        prologue["bad"] = address(self._bad) if self._policed else 0
        prologue["skip"], prologue["skipped"] = address(self._skip), address(self._skipped)
        blocks = -(-len(self._parameters) // layout.THREADS)
        self._engine.launch(kernel("begin_step"), blocks, prologue)

    def _launch(self, name: str, scale: Tensor | None, *, multi_block: bool = False) -> None:
        """Launch a kernel over all tiles of each batch, or of those with multi-block scales."""
        for batch, (items, count) in zip(self._batches, self._items, strict=True):
            if batch.multi_block or not multi_block:
                argument = self._argument(batch, items, count, scale)
                self._engine.launch_over(kernel(name, batch.kind), count, argument)

    def _take_factored(self, scale: Tensor | None) -> None:
        """Update statistics of rows and columns before all other kernels."""
        for place, name in enumerate(("factored_sums", "finish_factored")):
            for batch, work in zip(self._batches, self._factored_work, strict=True):
                items, count = work[place]
                argument = self._argument(batch, items, count, scale)
                # Each warp computes one tile.
                blocks = -(-count // layout.WARPS) if place == 0 else count
                self._engine.launch_over(kernel(name, batch.kind), blocks, argument)

    def _make_scales(self, scale: Tensor | None) -> None:
        """Compute new multi-block scales."""
        if self._grids:
            self._over_scales("read_step_grids")
        self._launch("step_maxima", scale, multi_block=True)
        if self._grids:
            self._over_scales("find_step_ends")
            self._over_scales("new_step_grids")
        if self._rounds:
            self._over_scales("round_step_scales")

    def _over_scales(self, name: str) -> None:
        if self._multi_block_count == 0:
            return
        multi_block = np.zeros((), dtype=layout.MULTI_BLOCK)
        multi_block["parameters"] = address(self._table)
        multi_block["items"] = address(self._multi_block)
        multi_block["count"], multi_block["skip"] = self._multi_block_count, address(self._skip)
        self._engine.launch_over(kernel(name), self._multi_block_count, multi_block)

    def _argument(
        self, batch: Batch, items: Tensor, count: int, scale: Tensor | None
    ) -> np.ndarray:
        argument = np.zeros((), dtype=layout.BATCH)
        argument["parameters"] = address(self._table)
        argument["addresses"] = address(self._address_table)
        argument["items"], argument["count"] = address(items), count
        argument["skip"] = address(self._skip)
        argument["grad_scale"] = 0 if scale is None else address(scale)
        for place, book in enumerate(batch.codebooks):
            if book is not None:
                argument["codebook"][place] = book.described
        return argument

    def _write_addresses(self, pairs: list[list[int]]) -> None:
        if pairs != self._pairs:
            self._write(self._address_table, np.array(pairs, dtype=np.uint64).T)
            self._pairs = pairs

    def _write_scalars(self, scalars: Sequence[Scalars]) -> None:
        rows = np.zeros((len(self._groups), layout.MAX_SCALARS), dtype=layout.STEP_SCALAR)
        for row, group in zip(rows, self._groups, strict=True):
            for target, value in zip(row, ordered(self._rule, scalars[group]), strict=False):
                _describe_step_scalar(target, value, self._engine)
        if (words := rows.tobytes()) != self._words:
            self._write(self._step_scalars, np.frombuffer(words, dtype=np.uint64))
            self._words = words

    def _write_resets(self) -> None:
        """Tell the device the step of each parameter's last reset."""
        resets = [int(parameter.storage.get(RESET, 0)) for parameter in self._parameters]
        if resets != self._resets:
            self._write(self._reset_table, np.array(resets, dtype=np.int64).view(np.uint64))
            self._resets = resets

    def _write(self, to: Tensor, words: np.ndarray) -> None:
        words = np.ascontiguousarray(words).reshape(-1)
        for begin in range(0, len(words), layout.WRITTEN):
            chunk = words[begin : begin + layout.WRITTEN]
            argument = np.zeros((), dtype=layout.WRITE)
            argument["to"], argument["count"] = address(to) + 8 * begin, len(chunk)
            argument["word"][: len(chunk)] = chunk
            self._engine.launch(kernel("write_words"), 1, argument)

    def _describe(self) -> None:
        # Groups of the optimizer, in the order of the rows that kernels know them by.
        self._groups = list(dict.fromkeys(parameter.group for parameter in self._parameters))
        self._policed = any(parameter.skips for parameter in self._parameters)
        order = {group: row for row, group in enumerate(self._groups)}
        table = np.zeros(len(self._parameters), dtype=layout.PARAMETER)
        spans, statistics = Spans(), Statistics()
        batches: dict[Any, Batch] = {}
        for index, parameter in enumerate(self._parameters):
            row = table[index]
            row["numel"], row["group"] = parameter.param.numel(), order[parameter.group]
            row["counter"] = address(parameter.storage["step"])
            if PRODUCT in parameter.storage:
                row["product"] = address(parameter.storage[PRODUCT])
            row["skips"] = parameter.skips
            if parameter.remainder is not None:
                row["remainder"] = address(parameter.storage[REMAINDER])
            if parameter.key is not None:
                describe_noise(row["noise"], parameter.key)
            elementwise = [state for state in parameter.states if not state.factored]
            factored = [parameter.storage[s.name] for s in parameter.states if s.factored]
            values = [parameter.storage[state.name] for state in elementwise]
            made = self._batch(parameter, self._targets[index].dtype, values)
            batches.setdefault((made.kind, *map(id, made.codebooks)), made).members.append(index)
            for place, (state, value) in enumerate(zip(elementwise, values, strict=True)):
                target = row["state"][place]
                if isinstance(value, Tensor):
                    target["data"] = address(value)
                    continue
                if state.key is not None and (noise := value.quantizer.noise(state.key)):
                    describe_noise(target["noise"], noise)
                target["packed"], scale_layout = address(value.packed), _layout(value)
                if scale_layout.block:
                    describe_scales(target["scales"], scale_layout, value.scales)
                else:
                    spans.add_state(target["scales"], index, place, scale_layout, value.scales)
            shape = tuple(parameter.param.shape)
            if factored and made.rule.factoring is Factoring.PRODUCT:
                statistics.add(row["factored"], shape, factored)
            elif factored:
                target = row["factored"]["slices"]
                spans.add_state(target, index, layout.MAX_STATES, slices(shape), factored)
        statistics.place(self._engine.device)
        self._statistics = statistics  # keeps the workspace
        self._sums = self._place_sums(table)
        self._workspace = spans.place(self._engine.device)
        self._grids, self._rounds = spans.grids, spans.rounds
        self._multi_block_count = len(spans.pieces)
        self._multi_block = self._on_device(np.array(spans.pieces, dtype=layout.MULTI_BLOCK_ITEM))
        self._batches = list(batches.values())
        steps = [kernel("step", batch.kind) for batch in self._batches]
        self._engine.prepare([kernel("begin_step"), *steps])
        self._items = [self._items_of(batch) for batch in self._batches]
        self._factored_work = [self._factored_work_of(batch) for batch in self._batches]
        self._table = self._on_device(table)
        self._address_table = self._on_device(np.zeros(len(self._parameters), dtype=layout.ADDRESS))
        size = (len(self._groups), layout.MAX_SCALARS)
        self._step_scalars = self._on_device(np.zeros(size, dtype=layout.STEP_SCALAR))
        self._resets = [0] * len(self._parameters)
        self._reset_table = self._on_device(np.zeros(len(self._parameters), dtype=np.int64))
        self._skip = torch.zeros((), dtype=torch.int32, device=self._engine.device)
        self._bad = torch.zeros((), dtype=torch.int32, device=self._engine.device)

    def _place_sums(self, table: np.ndarray) -> Tensor | None:
        """Memory for sums of squares: two per chunk, padded to a power of two with zeros."""
        if not self._takes_norms:
            return None
        chunks = [-(-p.param.numel() // layout.NORM_CHUNK) for p in self._parameters]
        sizes = [2 << max(count - 1, 0).bit_length() for count in chunks]
        sums = torch.zeros(sum(sizes), dtype=torch.float64, device=self._engine.device)
        ends = np.cumsum(sizes, dtype=np.int64)
        table["sums"] = address(sums) + 8 * (ends - sizes)
        return sums

    def _batch(self, parameter: ParameterStep, dtype: torch.dtype, values: Sequence[Any]) -> Batch:
        """The batch of a parameter stepped in `dtype`, with these states."""
        formats: list[str] = []
        codebooks: list[DeviceCodebook | None] = []
        multi_block = False
        for value in values:
            if isinstance(value, Tensor):
                formats.append("Plain")
                codebooks.append(None)
                continue
            q = value.quantizer
            scale_layout = _layout(value)
            formats.append(format_name(q.map, scale_layout, stochastic=q.stochastic))
            codebooks.append(codebook(q.map, parameter.param.device))
            multi_block = multi_block or not scale_layout.block
        assert isinstance(parameter.gradient, Tensor)
        gradients = DTYPES[parameter.gradient.dtype]
        rule = rules()[self._rule, parameter.kernel_states]
        rounds = str(parameter.key is not None).lower()
        stored = DTYPES[dtype] if parameter.remainder is None else SPLIT_TYPES[parameter.remainder]
        kind = ", ".join([rule.type, stored, gradients, rounds, *formats])
        return Batch(rule, f"Kind<{kind}>", tuple(codebooks), gradients, multi_block)

    def _items_of(self, batch: Batch) -> tuple[Tensor, int]:
        """The tiles of a batch, on the device, and their number."""
        counts = [tiles(self._params[index].numel()) for index in batch.members]
        items = np.zeros(sum(counts), dtype=layout.ITEM)
        items["parameter"] = np.repeat(batch.members, counts)
        items["tile"] = np.concatenate([np.arange(count) for count in counts])
        return self._on_device(items), len(items)

    def _factored_work_of(self, batch: Batch) -> list[tuple[Tensor, int]]:
        """The items of `factored_sums` and `finish_factored`, on the device, and their numbers."""
        members = batch.members if batch.rule.factoring is Factoring.PRODUCT else []
        work = work_of(members, [tuple(self._params[index].shape) for index in members])
        return [(self._on_device(np.array(some, dtype=layout.ITEM)), len(some)) for some in work]

    def _on_device(self, array: np.ndarray) -> Tensor:
        # One byte at least, so that there is an address.
        data = torch.frombuffer(bytearray(array.tobytes() or b"\0"), dtype=torch.uint8)
        return data.to(self._engine.device)


def _layout(value: QuantizedTensor) -> ScaleLayout:
    return layout_of(value.quantizer.normalizer, value.shape)


def _describe_step_scalar(target: np.ndarray, value: float | StepScalar, engine: Engine) -> None:
    if not isinstance(value, StepScalar):
        target["a"] = value
        return
    target["kind"], target["b"], target["c"] = value.kind, value.b, value.c
    a = value.a
    readable = (torch.float32, torch.float64)
    on_device = isinstance(a, Tensor) and a.device == engine.device and in_memory(a)
    if isinstance(a, Tensor) and on_device and a.dtype in readable and a.numel() == 1:
        target["tensor"] = address(a)
        target["kind"] += layout.DOUBLE if a.dtype == torch.float64 else 0
    else:
        target["a"] = float(a)


def _on(engine: Engine, scalar: Tensor | None) -> Tensor | None:
    """A tensor with one element as kernels read it."""
    return None if scalar is None else scalar.to(engine.device, torch.float32)
