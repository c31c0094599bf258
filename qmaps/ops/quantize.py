"""Quantizing, decoding and measuring tensors: `Quantizer` and `QuantizedTensor` call these.

Each engine gets tensors, a normalizer and a map (`qmaps.ops.dispatch`). Low-rank parts and fits
are handled here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps import metrics
from qmaps.algebra import low_rank, packing
from qmaps.algebra.dense import overlaps_itself, unsupported_reason
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import FLOATS, QuantizedTensor, Quantizer, nbytes_of
from qmaps.engines.addresses import check_memory, in_memory, plain
from qmaps.engines.reference_coder import REFERENCE, ReferenceCoder
from qmaps.engines.sharding.shards import is_distributed
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError, shown
from qmaps.maps.base import table
from qmaps.normalize.base import Scales
from qmaps.ops import dispatch
from qmaps.ops.fit import fit_each


def fit(q: Quantizer, x: Tensor) -> Quantizer:
    """See `Quantizer.fit`."""
    x = _floats(x)
    _refuse_bad(q, x)
    return fit_each([q], x)[0] if q.map.fitted else q


def quantize(
    q: Quantizer,
    x: Tensor,
    *,
    out: QuantizedTensor | None = None,
    key: RoundingKey | None = None,
    after: QuantizedTensor | None = None,
    check: bool = True,
) -> QuantizedTensor:
    """See `Quantizer.quantize`, and `Quantizer.quantize_unchecked` where `check` is False."""
    if check:
        x = _floats(x)
        if q.map.fitted and out is None:
            _refuse_bad(q, x)
    if out is not None:
        _check_out(out, q, x)
    if key is not None and not isinstance(key, RoundingKey):
        raise BadTypeError(f"key must be a RoundingKey, got {type(key).__name__}")
    if after is not None:
        _check_shape("after", after, x)
    original = x
    factors: tuple[QuantizedTensor, ...] = ()
    if q.low_rank is not None and q.low_rank.shapes(x.shape):
        if check:
            _refuse_bad(q, x)
        targets = None if out is None else low_rank.low_rank_of(out)
        x, factors = low_rank.split(q.low_rank, x.float().contiguous(), CODER, after, targets)
    storage = None
    if out is not None:
        q, storage = out.quantizer, (out.packed, out.scales)
    elif q.map.fitted:
        q = fit_each([q], x)[0]
    packed, scales, suspect = dispatch.quantize(
        x, q.normalizer, q.map, q.noise(key), storage, check=check
    )
    if check and suspect:
        _refuse_bad(q, original)
    return QuantizedTensor(q, tuple(x.shape), packed, scales, factors) if out is None else out


def quantize_scaled(
    q: Quantizer, x: Tensor, scales: Scales, *, key: RoundingKey | None = None
) -> QuantizedTensor:
    """See `Quantizer.quantize_scaled`."""
    return REFERENCE.encode_scaled(q, x, scales, key=key)


def check(t: QuantizedTensor) -> None:
    """See `QuantizedTensor.check`."""
    t.check_sizes()
    check_memory(t.packed, "packed or a tensor of scales")
    for scale in t.scales:
        check_memory(scale, "packed or a tensor of scales")
    for part in t.beside:
        check(part)


def dequantize(
    t: QuantizedTensor, *, out: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """See `QuantizedTensor.dequantize`."""
    if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
        raise BadTypeError(
            f"dtype={shown(dtype)} must be torch.float32, torch.float16 or torch.bfloat16"
        )
    if out is not None:
        _check_target(out, t.shape)
        check_memory(out, "out")
    check(t)
    device = t.packed.device
    for scale in t.scales:
        if scale.device != device:
            places = f"scales are on {scale.device} and codes on {device}"
            raise BadValueError(f"{places}; move both to one device")
    q = t.quantizer
    factors = () if q.low_rank is None else low_rank.low_rank_of(t)
    values = dispatch.dequantize(
        t.packed,
        t.scales,
        q.normalizer,
        q.map,
        t.shape,
        torch.float32 if factors else dtype,
        None if factors else out,
    )
    if not factors:
        return values
    values = values + low_rank.product([dequantize(factor) for factor in factors])
    return values.to(dtype) if out is None else out.copy_(values)


def measured(
    q: Quantizer, x: Tensor, *, keep: bool = True
) -> tuple[dict[str, float], Tensor | QuantizedTensor | None]:
    """See `Quantizer.measured`."""
    x = _floats(x)
    if q.map.fitted:
        q = fit(q, x)
    results = None
    if metrics.SUMMED.keys() == metrics.METRICS.keys() and q.low_rank is None:
        noise = q.noise(None)
        results = dispatch.measure(x, q.normalizer, q.map, noise, keep=keep)
    if results is None:
        t = quantize(q, x)
        decoded = dequantize(t)
        values = metrics.measure(x.float(), decoded, t.codes(), table(q.map).numel())
        return {"bits_per_element": t.bits_per_element, **values}, decoded if keep else None
    sums, packed, scales, suspect = results
    if suspect:
        _refuse_bad(q, x)
    nbytes = nbytes_of(q.map, packing.packed_bytes(x.numel(), q.map.bits), scales)
    values = metrics.measure_sums(sums)
    encoded = None if packed is None else QuantizedTensor(q, tuple(x.shape), packed, scales)
    return {"bits_per_element": 8 * nbytes / x.numel(), **values}, encoded


class EngineCoder(ReferenceCoder):
    """A `qmaps.algebra.coder.Coder` that chooses the engine of each tensor."""

    def encode(
        self,
        q: Quantizer,
        x: Tensor,
        *,
        out: QuantizedTensor | None = None,
        key: RoundingKey | None = None,
        after: QuantizedTensor | None = None,
    ) -> QuantizedTensor:
        """See `Quantizer.quantize_unchecked`."""
        return quantize(q, x, out=out, key=key, after=after, check=False)

    def decode(self, t: QuantizedTensor) -> Tensor:
        """See `QuantizedTensor.dequantize`."""
        return dequantize(t)


CODER = EngineCoder()


def _floats(x: Tensor) -> Tensor:
    """`x` without its graph, if it is a tensor of an allowed dtype."""
    if not isinstance(x, Tensor):
        raise BadTypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise BadTypeError(f"x must be float32, float16 or bfloat16, got {x.dtype}")
    if in_memory(x) and not x.is_nested:  # so it is of no kind below
        return x.detach()
    if is_distributed(x):
        raise BadTypeError("x is a DTensor; quantize x.to_local() or x.full_tensor()")
    if why := unsupported_reason(x):
        raise BadTypeError(f"x {why}; expected a dense tensor with values")
    return plain(x.detach(), "x")


def _refuse_bad(q: Quantizer, x: Tensor) -> None:
    """Raise if `x` holds NaN or infinity, or negative elements under an unsigned map."""
    _refuse(~x.isfinite(), "NaN or infinite", "only finite values can be quantized", True)
    if not q.map.signed:
        _refuse(x < 0, "negative", f"{q.map.spec} is unsigned; use a signed map", False)


def _refuse(bad: Tensor, kind: str, allowed: str, non_finite: bool) -> None:
    count = int(bad.sum())
    if not count:
        return
    first = int(bad.reshape(-1).int().argmax())
    error = NonFiniteError if non_finite else BadValueError
    raise error(f"x holds {count} {kind} elements, the first at flat index {first}; {allowed}")


def _check_shape(name: str, t: QuantizedTensor, x: Tensor) -> None:
    if not isinstance(t, QuantizedTensor):
        raise BadTypeError(f"{name} must be a QuantizedTensor, got {type(t).__name__}")
    if t.shape != tuple(x.shape):
        raise BadValueError(f"{name} must have shape {tuple(x.shape)}, got {t.shape}")


def _check_out(out: QuantizedTensor, quantizer: Quantizer, x: Tensor) -> None:
    _check_shape("out", out, x)
    if out.quantizer.spec != quantizer.spec:
        raise BadValueError(
            f"out must have the quantizer {quantizer.spec}, got {out.quantizer.spec}"
        )
    # Codebooks that belong to a tensor differ, and that of `out` is kept.
    if not out.quantizer.map.counted and out.quantizer != quantizer:
        raise BadValueError(
            f"out has another codebook under the spec {quantizer.spec}; each codebook needs its "
            "own label"
        )
    if out.device != x.device:
        raise BadValueError(f"out must be on {x.device}, got {out.device}")
    check(out)


def _check_target(out: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless values of this shape can be written into `out`."""
    if not isinstance(out, Tensor):
        raise BadTypeError(f"out must be a torch.Tensor, got {type(out).__name__}")
    if not out.is_floating_point():
        raise BadTypeError(f"out must be a floating-point tensor, got {out.dtype}")
    if why := unsupported_reason(out):
        raise BadTypeError(f"out {why}; expected a dense tensor with values")
    if tuple(out.shape) != shape:
        raise BadValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    if overlaps_itself(out):
        raise BadValueError(
            "several elements of out share one memory location; each element needs its own"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise BadValueError("out requires gradients; write into it under torch.no_grad()")
