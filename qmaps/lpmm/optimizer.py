"""The base class of the optimizers for models in low precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.engines.plan import memory_of
from qmaps.errors import BadValueError
from qmaps.lpmm.parameter import Accumulator, LowPrecisionParameter
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.choice import StateQuantizers
from qmaps.optim.nonfinite import bad_scales
from qmaps.optim.rule import check_int, loss_of
from qmaps.optim.saved_states import check_form


class LowPrecisionOptimizer(QuantizedOptimizer):
    """Mixin for update rules of converted models; it comes first among the bases.

    A step decodes a parameter, its gradient and its states, applies the rule in float32, and
    encodes the parameter and the states with new scales. Stochastic
    rounding takes random numbers of purpose 2 for parameters and 0 for states
    (`qmaps.algebra.philox`).
    Other parameters are stepped as usual.

    Gradients of `accumulation_steps` micro-batches are summed, each rounded into the accumulator,
    before the rule uses the sum: call ``zero_grad``, backward and ``step`` for each micro-batch as
    usual. Every `accumulation_steps`-th ``step`` updates the parameters and empties the gradients.
    ``zero_grad`` does nothing while micro-batches are pending, unless gradients have become NaN or
    infinite since the last ``step``: then the ``step`` of a micro-batch was left out, and the sum
    begins anew. `torch.amp.GradScaler` unscales the sum of all micro-batches at once: with it,
    leave `accumulation_steps` at 1, call backward for each micro-batch, then ``scaler.step``.

    Args:
        params, *args, **options: as for the rule.
        accumulation_steps: micro-batches of a step, at least 1. Their gradients are summed, not
            averaged.
        state_quantizers, min_quantized_size, nonfinite: as for every optimizer, with other
            defaults: the rule's own quantizers, 0 and "raise".
    """

    _quantizers: ClassVar[Mapping[str, str] | None] = None
    """Quantizers of the rule's states by default; None for those of the rule itself."""
    _min_size: ClassVar[int] = 0
    _micro_batches: int
    _bad: bool
    """Whether the gradients held NaN or infinity after the last micro-batch."""
    _drops: int | None
    """How often gradients had been dropped by then; None if unknown."""
    _steps_codes: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        *args: Any,
        accumulation_steps: int = 1,
        state_quantizers: StateQuantizers = None,
        nonfinite: str = "raise",
        **options: Any,
    ) -> None:
        check_int("accumulation_steps", accumulation_steps, 1)
        self.accumulation_steps = accumulation_steps
        self._micro_batches = 0
        self._bad, self._drops = False, None
        quantizers = self._quantizers if state_quantizers is None else state_quantizers
        if quantizers is not None:  # which a class of one width refuses
            options["state_quantizers"] = quantizers
        super().__init__(params, *args, nonfinite=nonfinite, **options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Count a micro-batch, and take a step if it is the last of one.

        Args:
            closure: evaluates the model anew and returns the loss.

        Raises:
            NonFiniteError: a gradient holds NaN or infinity and `nonfinite` is "raise". Nothing
                has changed then, except that the gradients are dropped.
            BadValueError: gradients of earlier micro-batches of this step were dropped, by
                ``model.zero_grad()`` or ``param.grad = None``. The step begins anew then.
        """
        loss = loss_of(closure)
        if self._micro_batches and self._drops not in (None, self._dropped()):
            pending, self._micro_batches = self._micro_batches, 0
            self.zero_grad()
            raise BadValueError(
                f"the gradients of {pending} of accumulation_steps={self.accumulation_steps} "
                "micro-batches were dropped before the step; call zero_grad of the optimizer "
                "instead of the model, because the optimizer keeps gradients between micro-batches"
            )
        self._micro_batches += 1
        if self._micro_batches < self.accumulation_steps:
            self._bad, self._drops = self._holds_bad(), self._dropped()
            return loss
        before = {param: self._step_of(param) for param in self._low_precision().values()}
        try:
            super().step()
        finally:
            for param, step in before.items():
                if self._step_of(param) != step:
                    param.stepped(self._step_of(param))
            self._micro_batches = 0
            self.zero_grad()
        return loss

    def _step_of(self, param: LowPrecisionParameter) -> int:
        """The number of steps taken by a parameter."""
        return int(self.state.get(param, {}).get("step", 0))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Empty the gradients, unless micro-batches of an unfinished step are in them.

        Those that became NaN or infinite since the last ``step`` are emptied all the same.
        """
        if self._micro_batches and not self._bad and self._holds_bad():
            self._micro_batches = 0
        if not self._micro_batches:
            super().zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        if self.accumulation_steps > 1:
            raise BadValueError(
                f"accumulation_steps={self.accumulation_steps} cannot be combined with a "
                "GradScaler, which would unscale the sum once for each micro-batch; set "
                "accumulation_steps=1 and call scaler.step after the last backward"
            )
        return super()._step_supports_amp_scaling

    def _accumulators(self) -> list[Accumulator]:
        params = self._low_precision().values()
        return [a for param in params if (a := param.accumulator) is not None]

    def _holds_bad(self) -> bool:
        return any(bad_scales(a.total)[0] for a in self._accumulators() if a.count)

    def _dropped(self) -> int:
        return sum(a.drops for a in self._accumulators())

    def _low_precision(self) -> dict[int, LowPrecisionParameter]:
        params = [param for group in self.param_groups for param in group["params"]]
        return {n: p for n, p in enumerate(params) if isinstance(p, LowPrecisionParameter)}

    def _saved(self) -> dict[str, Any]:
        """As every optimizer's, with the gradients of an unfinished step."""
        saved = super()._saved()
        pending = {
            number: {"count": a.count, "total": to_plain(a.total)}
            for number, param in self._low_precision().items()
            if (a := param.accumulator) is not None and a.count
        }
        saved["accumulated"] = {"micro_batches": self._micro_batches, "gradients": pending}
        return saved

    def _load(self, saved: Any) -> None:
        """As every optimizer; gradients missing in the checkpoint are left empty."""
        check_form(saved)
        ours = self._low_precision()
        micro_batches, pending = self._accumulated(saved.get("accumulated"), ours)
        super()._load({k: v for k, v in saved.items() if k != "accumulated"})
        self._micro_batches = micro_batches
        self._drops = None
        for number, param in ours.items():
            a = param.accumulating()
            if a is None:
                continue
            a.clear()
            a.step = self._step_of(param)
            if number in pending:
                a.count, total = pending[number]
                for target, part in zip(memory_of(a.total), memory_of(total), strict=True):
                    target.copy_(part)
        self._bad = self._holds_bad()

    def _accumulated(
        self, about: Any, ours: Mapping[int, LowPrecisionParameter]
    ) -> tuple[int, dict[int, tuple[int, QuantizedTensor]]]:
        """Of an unfinished step the micro-batches, and by parameter their number and gradient."""
        if about is None:
            return 0, {}
        records = self._parameters.records()
        pending = {}
        for number, saved in about["gradients"].items():
            total, label = from_plain(saved["total"]), records[number].label
            a = ours[number].accumulating() if number in ours else None
            if a is None:
                raise BadValueError(
                    f"state_dict has a low-precision gradient of {label}, which does not keep one"
                )
            expected = a.total
            if (total.quantizer, total.shape) != (expected.quantizer, expected.shape):
                raise BadValueError(
                    f"state_dict has a gradient of {label} with quantizer {total.quantizer.spec} "
                    f"and shape {total.shape}; it must have quantizer {expected.quantizer.spec} "
                    f"and shape {expected.shape}"
                )
            check_int("count", saved["count"], 0)
            pending[number] = saved["count"], total
        check_int("micro_batches", about["micro_batches"], 0)
        return about["micro_batches"], pending

    def __getstate__(self) -> dict[str, Any]:
        more = {
            "accumulation_steps": self.accumulation_steps,
            "_micro_batches": self._micro_batches,
            "_bad": self._bad,
            "_drops": None,
        }
        return {**super().__getstate__(), **more}
