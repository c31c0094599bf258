"""Captured states, read one tensor at a time."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor

from qmaps.capture import moments as moment_names
from qmaps.capture.gradients import Window
from qmaps.capture.moments import Moments
from qmaps.capture.snapshot import Lazy, Part
from qmaps.engines.step import MOMENTS
from qmaps.errors import (
    DAMAGE,
    NOT_INSTALLED,
    BadTypeError,
    BadValueError,
    CaptureError,
    UnknownPartError,
)

PART = 2**22
"""Elements that are read at a time for a digest."""

SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
"""Averages of squares, which cannot be negative, and are 0 before the first step."""


def _is_code(lazy: Lazy) -> bool:
    """Return True for integers and booleans, which are no values that a quantizer stores."""
    return not (lazy.dtype.is_floating_point or lazy.dtype.is_complex)


class CapturedStates:
    """Optimizer states of one step, by parameter and state name.

    Made by `qmaps.capture.load` from files, or by `from_tensors` from memory. Tensors are read
    when they are asked for and not kept. Do not change them in place: tensors in memory are not
    copied.

    Attributes:
        step: number of optimizer steps taken.
        steps: all steps of the source, ascending.
        optimizer: class name of the optimizer; ``unknown`` if the source does not have it.
        source: path or description of the source, for messages.
        skipped: ``parameter: state (type)`` of the states left out.
        own_moments: argument of the call of `as_adam` that made these states; None if none did.
        aliases: own names of states that `as_adam` has given other names, by these.
        naming: source of a checkpoint's parameter names, such as ``config.json and
            model.safetensors``; ``numbers:`` and the reason where they could not be recovered;
            empty for captured states.
        note: remark on the states of another framework; empty if there is none.
        given: options that `load` was given, because the checkpoint does not have them.
    """

    def __init__(
        self,
        tensors: Mapping[str, Mapping[str, Lazy]],
        *,
        step: int,
        steps: Sequence[int] | None = None,
        optimizer: str = "unknown",
        hyperparameters: Mapping[str, Mapping[str, Any]] | None = None,
        scalars: Mapping[str, Mapping[str, float]] | None = None,
        skipped: Sequence[str] = (),
        source: str = "memory",
        window: Window | None = None,
        naming: str = "",
        note: str = "",
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = {name: dict(states) for name, states in tensors.items()}
        self._hyperparameters = dict(hyperparameters or {})
        self._scalars = dict(scalars or {})
        self.skipped = list(skipped)
        self.step = step
        self.steps = list(steps) if steps is not None else [step]
        self.optimizer = optimizer
        self.source = source
        self.naming, self.note = naming, note
        self.given = dict(given or {})
        self.own_moments: dict[str, str] | None = None
        self.aliases: dict[str, list[str]] = {}
        self._window = window

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Mapping[str, Tensor]],
        *,
        step: int = 0,
        optimizer: str = "unknown",
        eps: float = 1e-8,
    ) -> CapturedStates:
        """Make captured states from tensors in memory.

        Args:
            tensors: tensors by parameter and state name; they are not copied.
            step: number of optimizer steps taken.
            optimizer: class name of the optimizer.
            eps: Adam's eps, for every parameter.

        Raises:
            BadTypeError: a value in `tensors` is not a dict, or a state is not a tensor.

        >>> states = CapturedStates.from_tensors({"weight": {"exp_avg": torch.zeros(2, 3)}})
        >>> states.parameters(), states.shape("weight", "exp_avg")
        (['weight'], (2, 3))
        """
        entries: dict[str, dict[str, Lazy]] = {}
        for parameter, states in tensors.items():
            if not isinstance(states, Mapping):
                raise BadTypeError(
                    f"the states of {parameter!r} must be a dict of tensors by state name, got "
                    f"{type(states).__name__}"
                )
            for name, tensor in states.items():
                if not isinstance(tensor, Tensor):
                    raise BadTypeError(
                        f"state {name!r} of {parameter!r} must be a tensor, got "
                        f"{type(tensor).__name__}"
                    )
                entries.setdefault(parameter, {})[name] = Lazy.of(tensor)
        return cls(
            entries,
            step=step,
            optimizer=optimizer,
            hyperparameters={parameter: {"eps": eps} for parameter in tensors},
        )

    def renamed(self, names: Sequence[str]) -> CapturedStates:
        """Return the same states under other names, without recorded gradients.

        Args:
            names: a name for each of `parameters`, in their order.

        >>> states = CapturedStates.from_tensors({"group0.param0": {"exp_avg": torch.zeros(2)}})
        >>> states.renamed(["weight"]).parameters()
        ['weight']
        """
        new = dict(zip(self.parameters(), names, strict=True))
        states = copy(self)
        states._tensors = {new[name]: tensors for name, tensors in self._tensors.items()}
        states._hyperparameters = {new[n]: self.hyperparameters(n) for n in new}
        states._scalars = {new[n]: self.scalars(n) for n in new}
        states._window = None
        return states

    def as_adam(self, moments: Moments | None = None) -> CapturedStates:
        """Return the same states, in which Adam's moments have its names.

        A state of such a name that is not the moment gets the prefix ``own.``.

        Args:
            moments: name of the state that is the moment, or a pattern with wildcards, by
                ``exp_avg`` and ``exp_avg_sq``, or only one of them. By default parameters without
                both take names of other packages (`qmaps.capture.moments.KNOWN`).

        Raises:
            BadTypeError, BadValueError: `moments` does not have this form, a name is that of no
                state, or a pattern matches several states of one parameter.

        >>> belief = {"exp_avg": torch.zeros(2), "exp_avg_var": torch.ones(2)}
        >>> states = CapturedStates.from_tensors({"weight": belief}).as_adam()
        >>> states.states("weight"), states.aliases
        (['exp_avg', 'exp_avg_sq'], {'exp_avg_sq': ['exp_avg_var']})
        """
        wanted = moment_names.check(moments or {})
        tensors, aliases = moment_names.renamed(self._tensors, wanted, self.source)
        if not aliases:
            return self
        states = copy(self)
        states._tensors, states.own_moments, states.aliases = tensors, wanted, aliases
        return states

    def parameters(self) -> list[str]:
        """Return the names of the parameters with a state."""
        return list(self._tensors)

    def states(self, parameter: str) -> list[str]:
        """Return the names of the states of `parameter`."""
        return list(self._entry(parameter))

    def values(self, parameter: str) -> list[str]:
        """Return the names of the states of `parameter` that hold values, not codes.

        States of integers and booleans are codes, counts or masks of other libraries. Analyses
        leave them out; `codes` lists them.
        """
        return [name for name, lazy in self._entry(parameter).items() if not _is_code(lazy)]

    @property
    def codes(self) -> list[str]:
        """``parameter: state (dtype)`` of the states of integers or booleans, without counts."""
        return [
            f"{parameter}: {state} ({str(lazy.dtype).removeprefix('torch.')})"
            for parameter, state, lazy in self.lazies()
            if _is_code(lazy) and math.prod(lazy.shape) != 1
        ]

    def left_out(self) -> str:
        """Return a sentence on the `codes`, for messages; empty if there are none."""
        codes = self.codes
        if not codes:
            return ""
        listed = ", ".join(codes[:3]) + (", ..." if len(codes) > 3 else "")
        return (
            f"states of integers or booleans are left out, because they are codes or masks and not "
            f"values: {listed}"
        )

    def shape(self, parameter: str, state: str) -> tuple[int, ...]:
        """Return the shape of a state, without reading it."""
        return self._entry(parameter, state)[state].shape

    def quantized(self) -> list[str]:
        """Return the names of the parameters with a quantized state in the source."""
        return [
            name
            for name, states in self._tensors.items()
            if any(lazy.quantized for lazy in states.values())
        ]

    def hyperparameters(self, parameter: str) -> dict[str, Any]:
        """Return options of the parameter's group, such as lr and eps; empty if unknown."""
        self._entry(parameter)
        return dict(self._hyperparameters.get(parameter, {}))

    def scalars(self, parameter: str) -> dict[str, float]:
        """Return the numbers among the states of `parameter`, such as ``step``."""
        self._entry(parameter)
        return dict(self._scalars.get(parameter, {}))

    def eps(self, parameter: str) -> float:
        """Return Adam's eps for `parameter`; torch's default 1e-8 if unknown."""
        eps = self.hyperparameters(parameter).get("eps")
        # Adafactor has a pair of eps, and neither is Adam's.
        return float(eps) if isinstance(eps, (int, float)) else 1e-8

    def tensor(self, parameter: str, state: str, *, check: bool = True) -> Tensor:
        """Read a state, such as ``exp_avg``; with `check`, refuse one with NaN or infinity.

        Returns:
            The state in float32 on the CPU, whatever dtype it was captured in. A float32 tensor in
            the CPU's memory already is not copied.

        Raises:
            CaptureError: the state is complex or holds codes, cannot be read, or holds NaN or
                infinity.
            BadValueError: there is no such parameter or state.
        """
        lazy = self._real(parameter, state)
        with self._damage(parameter, state):
            tensor = lazy.read().detach().to("cpu", torch.float32)
        if check:
            self._refuse_bad(parameter, state, tensor)
        return tensor

    def opened(self, parameter: str, state: str) -> Part:
        """Open a state to read parts of it.

        Args:
            parameter: name of the parameter.
            state: name of the state.

        Returns:
            A function ``read(begin, end)``: the elements from number `begin` up to `end` in
            row-major order, float32 of shape (end - begin,) on the CPU. It refuses parts with NaN
            or infinity. If the format cannot read parts, it keeps the whole in memory.

        Raises:
            CaptureError, BadValueError: as for `tensor`; the function raises CaptureError as well.
        """
        lazy = self._real(parameter, state)
        with self._damage(parameter, state):
            part = lazy.opened()

        def read(begin: int, end: int) -> Tensor:
            with self._damage(parameter, state):
                values = part(begin, end).detach().to("cpu", torch.float32)
            self._refuse_bad(parameter, state, values, begin)
            return values

        return read

    def _real(self, parameter: str, state: str) -> Lazy:
        lazy = self._entry(parameter, state)[state]
        if _is_code(lazy):
            kind = str(lazy.dtype).removeprefix("torch.")
            raise CaptureError(
                f"state {state!r} of parameter {parameter!r} in {self.source!r} is {kind}: codes "
                "or a mask, not values; only floating-point states can be analyzed"
            )
        if lazy.dtype.is_complex:
            raise CaptureError(
                f"state {state!r} of parameter {parameter!r} in {self.source!r} is complex; only "
                "real states can be analyzed"
            )
        return lazy

    @contextmanager
    def _damage(self, parameter: str, state: str) -> Iterator[None]:
        """Name the state in errors of damaged parts."""
        try:
            yield
        except CaptureError:
            raise
        except UnknownPartError as error:
            raise CaptureError(
                f"state {state!r} of parameter {parameter!r} in {self.source!r} cannot be read: "
                f"{error.known}; {NOT_INSTALLED}"
            ) from error
        except DAMAGE as error:
            raise CaptureError(
                f"state {state!r} of parameter {parameter!r} in {self.source!r} is damaged: {error}"
            ) from None

    def _refuse_bad(self, parameter: str, state: str, values: Tensor, begin: int = 0) -> None:
        # NaN wins both comparisons, and an infinity one of them.
        if not values.numel() or all(math.isfinite(end) for end in values.aminmax()):
            return
        bad = ~values.isfinite()
        if count := int(bad.sum()):
            first = begin + int(bad.reshape(-1).int().argmax())
            is_whole = values.numel() == math.prod(self.shape(parameter, state))
            among = "" if is_whole else f" among {values.numel()} from index {begin} on"
            raise CaptureError(
                f"state {state!r} of parameter {parameter!r} in {self.source!r} holds {count} "
                f"NaN or infinite elements{among}, the first at flat index {first}; only finite "
                "states can be analyzed"
            )

    def window(self, parameter: str | None = None) -> list[int]:
        """Return the consecutive steps after `step` with recorded gradients; may be empty.

        Args:
            parameter: return only the steps with a gradient of this parameter.

        Raises:
            CaptureError: the gradients cannot be read, or are of another run than the states.
            BadValueError: there is no such parameter.
        """
        if parameter is not None:
            self._entry(parameter)
        return [] if self._window is None else self._window.steps(parameter)

    def rows(self, parameter: str) -> Tensor | None:
        """Return the indices of rows of `parameter` with recorded gradients; None for all rows."""
        self._entry(parameter)
        return None if self._window is None else self._window.rows(parameter)

    def gradients(self, parameter: str) -> Iterator[tuple[int, Tensor]]:
        """Yield step and gradient of each step in `window` with a gradient of `parameter`.

        Gradients are float32 on the CPU, of the rows in `rows`.

        Raises:
            CaptureError: a gradient cannot be read, is complex, or holds NaN or infinity.
            BadValueError: there is no such parameter.
        """
        self._entry(parameter)
        if self._window is None:
            return
        for step, gradient in self._window.gradients(parameter):
            values = None if gradient.is_complex() else gradient.float()
            if values is None or not bool(values.isfinite().all()):
                problem = "is complex" if values is None else "holds NaN or infinity"
                raise CaptureError(
                    f"the gradient of parameter {parameter!r} at step {step} beside "
                    f"{self.source!r} {problem}; only finite real gradients can be replayed"
                )
            yield step, values

    def lazies(self) -> Iterator[tuple[str, str, Lazy]]:
        """Yield parameter, state name and `Lazy`, in its own dtype, of every state."""
        for parameter, states in self._tensors.items():
            for state, lazy in states.items():
                yield parameter, state, lazy

    def items(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield parameter, state name and tensor of every state of `values`, as `tensor` does."""
        for parameter, state in ((p, s) for p in self._tensors for s in self.values(p)):
            yield parameter, state, self.tensor(parameter, state)

    def with_moments(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the parameters with both of Adam's moments; raise if there are none.

        A warning names those whose moments are codes of another library.

        Args:
            names: return only some of these; all parameters if left out.

        Raises:
            CaptureError: none of them has `exp_avg` and `exp_avg_sq`.
        """
        chosen = self._tensors if names is None else names
        adam = [name for name in chosen if {*MOMENTS} <= {*self.values(name)}]
        if not adam:
            others = sorted({state for name in chosen for state in self.values(name)})
            reason = self.left_out()
            hint = "; moments={'exp_avg': ..., 'exp_avg_sq': ...} names other ones"
            raise CaptureError(
                f"{self.source!r} has no Adam states (exp_avg and exp_avg_sq); its states are "
                f"{', '.join(others) or 'no tensors at all'}{reason and '; ' + reason}"
                f"{hint if len(others) > 1 else ''}"
            )
        if any({*MOMENTS} <= self._tensors[name].keys() for name in {*chosen} - {*adam}):
            warnings.warn(self.left_out(), stacklevel=2)
        return adam

    def adam_pairs(self) -> Iterator[tuple[str, Tensor, Tensor, float]]:
        """Yield name, first moment, second moment and eps of every parameter with both moments.

        The moments are float32 tensors of one shape on the CPU.

        Raises:
            CaptureError: no parameter has `exp_avg` and `exp_avg_sq`, their shapes differ, a
                second moment is negative somewhere, or a moment holds NaN or infinity.
        """
        for parameter in self.with_moments():
            yield parameter, *self.moments(parameter), self.eps(parameter)

    def moments(self, parameter: str) -> tuple[Tensor, Tensor]:
        """Return both of Adam's moments of a parameter; raise as `adam_pairs`."""
        m, v = self.tensor(parameter, "exp_avg"), self.tensor(parameter, "exp_avg_sq")
        if m.shape != v.shape:
            raise CaptureError(
                f"parameter {parameter!r} in {self.source!r} has exp_avg of shape "
                f"{tuple(m.shape)} and exp_avg_sq of shape {tuple(v.shape)}; the shapes must "
                "be equal"
            )
        if bool((v < 0).any()):
            raise CaptureError(
                f"state 'exp_avg_sq' of parameter {parameter!r} in {self.source!r} has "
                "negative values; a second moment cannot be negative"
            )
        return m, v

    def fingerprint(self) -> str:
        """Return a digest of all states.

        Raises:
            CaptureError: a state holds NaN or infinity.
        """
        digest = hashlib.sha256()
        for parameter, state, lazy in self.lazies():
            name = f"{parameter}\0{state}\0{lazy.shape}\0"
            digest.update(name.encode(errors="surrogatepass"))
            is_code = _is_code(lazy)
            read = lazy.opened() if is_code else self.opened(parameter, state)
            numel = math.prod(lazy.shape)
            for begin in range(0, numel, PART):
                part = read(begin, min(begin + PART, numel)).contiguous()
                digest.update(part.numpy().data)
        return digest.hexdigest()

    @property
    def numel(self) -> int:
        """Number of elements of all states together."""
        return sum(math.prod(lazy.shape) for _, _, lazy in self.lazies())

    def __repr__(self) -> str:
        return (
            f"CapturedStates({self.optimizer}, step {self.step}, {len(self._tensors)} parameters, "
            f"{self.numel} elements)"
        )

    def _entry(self, parameter: str, state: str | None = None) -> dict[str, Lazy]:
        if parameter not in self._tensors:
            names = ", ".join(self._tensors)
            raise BadValueError(
                f"parameter={parameter!r} is not in {self.source!r}; its parameters are {names}"
            )
        entry = self._tensors[parameter]
        if state is not None and state not in entry:
            raise BadValueError(
                f"state={state!r} is not recorded for {parameter!r}; the recorded states are "
                f"{', '.join(entry)}"
            )
        return entry
