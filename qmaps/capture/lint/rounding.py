"""Averages and weights that rounding keeps from changing.

Each check yields the part of one parameter; see `Part`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.capture.lint.base import AVERAGES, NOTE, WARNING, Entry, Part
from qmaps.capture.states import SECOND
from qmaps.engines.masters import MASTER
from qmaps.maps.base import limits, table
from qmaps.ops import gaps

LEAST_RATIO = 0.01
"""Ratio of two gradients in one block below which a second moment of 0 is not reported."""

COMPENSATIONS = frozenset({"compensation", "kahan_comp", "shift"})
"""States with what rounding took from the weights, for Kahan summation."""

SQUARES = (*SECOND, "exp_avg_sq_row", "exp_avg_sq_col")
"""Averages of squares."""

USUAL = dict.fromkeys(AVERAGES, 0.999) | {"exp_avg_slow": 0.9999, "square_avg": 0.99}
"""Decays of quantized averages where a file has none: torch's, and those of AdEMAMix."""

FALL = 0.01
"""Factor of squared gradients that fall tenfold."""

MOST = 0.5
"""Share of elements at codes that do not fall, up to which a quantizer is not reported."""


def check_rounding(entry: Entry) -> Iterator[Part]:
    """Yield what rounding keeps from changing in a parameter and its states."""
    for name in (*AVERAGES, "square_avg"):
        decay = entry.decay(name)
        if decay is None and entry.quantized(name) is not None:
            decay = USUAL.get(name)
        if name in entry.states and decay is not None and 0 < decay < 1:
            yield from _stalled(entry, name, decay)
    for name in (*SECOND, "sum"):
        if (t := entry.quantized(name)) is not None:
            yield from _to_zero(name, t.quantizer)
    for name in entry.states:
        if (t := entry.quantized(name)) is not None:
            yield from _without_zero(name, t.quantizer)
    yield from _weight_decay(entry)


def _stalled(entry: Entry, name: str, decay: float) -> Iterator[Part]:
    """Averages that a step without gradient leaves where they are."""
    if (t := entry.quantized(name)) is not None:
        yield from _of_codes(name, t, decay)
        return
    dtype, values = entry.dtypes.get(name), entry.states[name]
    if dtype is None or torch.finfo(dtype).bits >= 32:
        return
    assert isinstance(values, Tensor)
    stored = values.float()
    count = int(((stored != 0) & ((stored * decay).to(dtype).float() == stored)).sum())
    if count:
        eps = torch.finfo(dtype).eps
        needed = 1 - eps / 2 / (1 + eps)
        dtype_name = str(dtype).removeprefix("torch.")
        message = (
            f"{{share}} of the elements cannot decay in {dtype_name}: {decay:g} times the value "
            f"rounds to the value; all decay by less than {needed:.4f}, or in float32"
        )
        yield Part(WARNING, "stalled", name, message, count, stored.numel())


def _of_codes(name: str, t: QuantizedTensor, decay: float) -> Iterator[Part]:
    """Averages in codes that a step after a tenfold fall of the gradients leaves where they are."""
    q, square = t.quantizer, FALL if name in SQUARES else math.sqrt(FALL)
    stays = gaps.stays(q, torch.arange(len(table(q.map))), decay + (1 - decay) * square)
    if stays is None:
        return
    count, total = int(stays[t.codes().long()].sum()), math.prod(t.shape)
    if count > MOST * total:
        follows = "rounded with +qsr they would follow"
        if name in SQUARES:
            bits = min(q.map.bits, 8)
            spec = f"B{256 if bits > 4 else 128}/geometric@{bits}u+qsr"
            follows = f"in {spec} they would follow (qmaps convert --states)"
        message = (
            f"{q.spec} rounds to nearest: {{share}} of the elements would keep their code, and be "
            f"too large, if their gradients fell tenfold beside others (decay {decay:g}); {follows}"
        )
        yield Part(NOTE, "stalled", name, message, count, total)


def _to_zero(name: str, q: Quantizer) -> Iterator[Part]:
    """Second moments that become 0 beside larger ones, under a coarse map with 0."""
    if q.map.log_domain or q.low_rank is not None or not q.keeps_zero:
        return
    values = table(q.map)
    zero = int((values == 0).int().argmax())
    if zero + 1 >= len(values):
        return
    edge = float(limits(q.map)[zero] / values[-1])
    if math.sqrt(edge) >= LEAST_RATIO:
        message = (
            f"{q.spec} makes it 0 where gradients are below {math.sqrt(edge):.2g} times the "
            "largest beside them; the next update may be m / eps"
        )
        yield Part(WARNING, "to-zero", name, message, 1)


def _without_zero(name: str, q: Quantizer) -> Iterator[Part]:
    """Signed states with zeros that decode to another value."""
    if q.map.signed and not (q.map.counted or q.keeps_zero):
        message = f"{q.spec} does not keep zeros: weights whose gradient is always 0 move"
        yield Part(WARNING, "no-zero", name, message, 1)


def _weight_decay(entry: Entry) -> Iterator[Part]:
    """Weights of 16 bits that decoupled weight decay cannot change."""
    dtype, options = entry.weights, entry.options
    if dtype not in (torch.bfloat16, torch.float16) or "exp_avg" not in entry.states:
        return
    kept_exactly = MASTER in entry.states or options.get("master_weights")
    if kept_exactly or COMPENSATIONS & entry.states.keys() or options.get("stochastic_rounding"):
        return
    if options.get("decoupled_weight_decay") is False:  # then the gradient has it
        return
    lr = max(entry.option("lr") or 0.0, entry.option("initial_lr") or 0.0)
    decay = lr * (entry.option("weight_decay") or 0.0)
    # The gap below a power of two is half of the one above, and rounding takes half of that.
    eps = torch.finfo(dtype).eps
    if 0 < decay <= eps / 4:
        # torch's loops round the decay alone; other steps round it with an update of about lr.
        alone = "decoupled_weight_decay" in options and not options.get("fused")
        alone &= "stochastic_rounding" not in options
        which = "they" if alone else f"those above about {lr / eps:.1g}"
        dtype_name = str(dtype).removeprefix("torch.")
        condition = "" if entry.known_weights else f"if the weights are {dtype_name}, "
        message = (
            f"{condition}lr * weight_decay = {decay:.2g} alone changes no weight in {dtype_name}; "
            f"{which} do not decay without master weights or stochastic rounding"
        )
        yield Part(WARNING, "weight-decay", "", message, 1)
