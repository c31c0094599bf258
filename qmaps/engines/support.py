"""Support of the fused engines, with the reason where one supports something not.

`NATIVE`, `TRITON` and `qmaps.cuda.support.CUDA` are the only places that decide about a tensor or
a parameter. The reference runs everything else. A reason is a phrase such as "its gradient is
torch.float64"; an empty reason means that the engine supports it.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.addresses import in_memory
from qmaps.engines.masters import REMAINDER
from qmaps.engines.plan import readable
from qmaps.engines.rules import rules
from qmaps.engines.step import ParameterStep, Rule, StateStep, spanning_states
from qmaps.engines.triton import source
from qmaps.maps.base import Map
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer, geometry_of
from qmaps.normalize.geometry import Geometry
from qmaps.normalize.scale_kind import ScaleKind

BYTE, MAX_BITS = 8, 16
MAX_PARTS = 8
"""Most lists of scales of a tensor."""
MAX_LOG_BLOCK = 1024
"""Most elements of a block with a log2 range in the native engine."""
LONGEST_BLOCK = 8192
"""Most elements of a block that the native engine encodes by itself."""
PARAMETERS: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
GRADIENTS = (torch.float32, torch.bfloat16, torch.float16)


class Support(ABC):
    """Limits of one fused engine, with reasons."""

    parameters = PARAMETERS
    """Dtypes of parameters that are stepped themselves."""

    @abstractmethod
    def _of_scales(self, geometry: Geometry, numel: int) -> str:
        """Reason why scales of a tensor with `numel` elements are unsupported."""

    @abstractmethod
    def _takes_wide_maps(self, normalizer: Normalizer) -> bool:
        """Return True if maps of more than 8 bits are supported under a normalizer."""

    @abstractmethod
    def _of_engine(self, parameter: ParameterStep, device: torch.device) -> Iterator[str]:
        """Reasons why this engine, unlike the other, does not step a parameter."""

    def supports(self, normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
        """Return True if the engine quantizes and decodes a tensor; see `of_tensor`."""
        if map_.bits <= BYTE:  # as nearly all maps: one call less
            return not _of_normalizer(self, normalizer, shape)
        return not self.of_tensor(normalizer, map_, shape)

    def of_tensor(self, normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> str:
        """Reason why the engine does not quantize and decode a tensor."""
        if map_.bits > MAX_BITS:
            return f"{map_.spec} has more than {MAX_BITS} bits"
        if map_.bits > BYTE and not self._takes_wide_maps(normalizer):
            return f"{normalizer.spec} supports maps of at most {BYTE} bits"
        return _of_normalizer(self, normalizer, shape)

    def of_parameter(
        self, rule: Rule, parameter: ParameterStep, device: torch.device
    ) -> Iterator[str]:
        """Reasons why the engine does not step a parameter."""
        yield from self._of_rule(rule, parameter)
        shard = parameter.shard
        if shard is not None and shard.groups() and rule.takes_norms:
            yield f"the rule {rule.name!r} takes norms, and the parameter is sharded"
        if shard is not None and parameter.key is not None and shard.runs is not None:
            yield "it is rounded stochastically, and its shard is not one stretch"
        yield from self._of_engine(parameter, device)
        if parameter.codes is None:
            yield from _of_dense(parameter, self.parameters)
        for state in parameter.states:
            yield from self._of_state(parameter, state)

    def _of_rule(self, rule: Rule, parameter: ParameterStep) -> Iterator[str]:
        if (str(rule.name), parameter.kernel_states) not in rules():
            yield f"no kernel has the rule {rule.name!r} with states {parameter.kernel_states!r}"

    def _of_state(self, parameter: ParameterStep, state: StateStep) -> Iterator[str]:
        q, shard, value = state.quantizer, parameter.shard, parameter.storage.get(state.name)
        if state.factored and shard is not None:
            yield f"{state.name} is computed from all shards"
        if state.factored and not parameter.param.numel():
            yield f"{state.name} is computed from no elements"
        if value is None and state.initial != 0:
            yield f"{state.name} begins with {state.initial}, not with 0"
        if q is None:
            plain = isinstance(value, Tensor) and value.dtype == torch.float32
            if value is not None and not (plain and readable(value)):
                yield f"{state.name} is not a contiguous float32 tensor in memory"
            return
        if value is not None and not isinstance(value, QuantizedTensor):
            yield f"{state.name} is not quantized yet"
        if isinstance(q.map, FittedMap):
            if value is None or int(parameter.storage["step"]) % parameter.refit_every == 0:
                yield f"{q.map.spec} of {state.name} is fitted in this step"
                return
            q = value.quantizer
        if shard is not None and q.stochastic and shard.runs is not None:
            yield f"{state.name} is rounded at random, and its shard is not one stretch"
        if q.low_rank is not None:
            yield f"{state.name}: it has {q.low_rank.spec}, which only the reference encodes"
        if why := self.of_tensor(q.normalizer, q.map, state.shape):
            yield f"{state.name}: {why}"
        if value is not None and value.quantizer.spec != q.spec:
            yield f"{state.name} is stored as {value.quantizer.spec}, not {q.spec}"
        if value is not None and not readable(value):
            yield f"codes or scales of {state.name} are not contiguous or not in memory"


class NativeSupport(Support):
    """Limits of the C++ engine."""

    def _of_scales(self, geometry: Geometry, numel: int) -> str:
        del numel
        if geometry.arrays > MAX_PARTS:
            return f"scales have more than {MAX_PARTS} lists"
        first = geometry.parts[0]
        if geometry.log and first.divisor > MAX_LOG_BLOCK:
            return f"blocks with a log2 range have more than {MAX_LOG_BLOCK} elements"
        if geometry.ratio and first.divisor == 1 < first.count:
            return "blocks of one element have no range to expand"
        return ""

    def _takes_wide_maps(self, normalizer: Normalizer) -> bool:
        return normalizer.linear

    def measures(self, normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
        """Return True if the engine also measures errors while it quantizes a tensor."""
        if map_.bits > BYTE or not self.supports(normalizer, map_, shape):
            return False
        geometry = geometry_of(normalizer, shape)
        assert geometry is not None  # as it is supported
        # No kernel has other formats, log2 ranges that end at a quantile, or rounding in log2.
        in_float32 = all(part.stored is ScaleKind.FLOAT32 for part in geometry.parts)
        return in_float32 and not (geometry.quantile or map_.position_rounding)

    def decodes(self, t: QuantizedTensor) -> bool:
        """Return True if the engine reads single codes of `t`."""
        q = t.quantizer
        plain = t.device.type == "cpu" and q.low_rank is None and readable(t)
        return plain and self.measures(q.normalizer, q.map, t.shape)

    def _of_engine(self, parameter: ParameterStep, device: torch.device) -> Iterator[str]:
        del device  # the memory of tensors is checked
        ranges = set()
        for state in parameter.states:
            if state.quantizer is not None and not state.factored:
                normalizer = state.quantizer.normalizer
                # Scales of ranges are computed from all elements of a block at once.
                geometry = geometry_of(normalizer, tuple(parameter.param.shape))
                if geometry is not None and geometry.log:
                    ranges.add(normalizer)
        # Blocks of different log2 ranges may have different boundaries.
        if len(ranges) > (1 if parameter.codes is None else 0):
            yield "its states have log2 ranges over different blocks"
        if parameter.codes is not None and not self._codes_supported(parameter, parameter.codes):
            yield "its codes, or those of its gradient, have no kernel"

    def _codes_supported(self, parameter: ParameterStep, codes: QuantizedTensor) -> bool:
        """Return True if a parameter and a gradient stored as codes are supported."""
        gradient, param = parameter.gradient, parameter.param
        return (
            param.device.type == "cpu"
            and param.dtype == torch.float32
            and param.numel() > 0
            and isinstance(gradient, QuantizedTensor)
            and self._reads(codes)
            and self._reads(gradient)
            and _in_local_blocks(codes)
        )

    def _reads(self, t: QuantizedTensor) -> bool:
        q = t.quantizer
        return q.low_rank is None and readable(t) and self.supports(q.normalizer, q.map, t.shape)


class TritonSupport(Support):
    """Limits of the Triton engine, but for its rules: `qmaps.engines.triton.trace` decides."""

    parameters = (*PARAMETERS, torch.float16)

    def supports(self, normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
        return not self.of_tensor(normalizer, map_, shape)

    def of_tensor(self, normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> str:
        return source.reason(normalizer, map_, shape)

    def _of_scales(self, geometry: Geometry, numel: int) -> str:
        raise NotImplementedError  # `of_tensor` decides

    def _takes_wide_maps(self, normalizer: Normalizer) -> bool:
        return False

    def _of_rule(self, rule: Rule, parameter: ParameterStep) -> Iterator[str]:
        if rule.phases is not None:
            yield "its rule needs whole matrices"
        if rule.takes_norms:
            yield "its rule takes norms of whole tensors"
        if rule.step_scalars is None:
            yield "its rule has no scalars"

    def _of_engine(self, parameter: ParameterStep, device: torch.device) -> Iterator[str]:
        yield from of_device(parameter, device)
        if parameter.remainder is not None:
            yield "its master weights are split"
        shape = tuple(parameter.param.shape)
        for state in parameter.states:
            if state.factored or state.shape != shape:
                yield f"{state.name} has another shape than the parameter"
        if any(s.quantizer is not None and s.quantizer.map.fitted for s in parameter.states):
            yield "its codebooks are fitted"
        kinds = [source.kind_of(s.quantizer, shape) for s in parameter.states if _local(s, shape)]
        stride = source.stride_of(kinds, parameter.param.numel())
        if len(kinds) == len(parameter.states) and not stride:
            yield "no tile holds whole blocks of all states"
        keys = [parameter.key, *(state.key for state in parameter.states)]
        if stride % 8 or any(key is not None and key.offset % 8 for key in keys):
            yield "its blocks, or its shard, do not begin at multiples of 8 elements"


def _local(state: StateStep, shape: tuple[int, ...]) -> bool:
    """Return True for a state whose blocks `source.state_kind` can describe."""
    q = state.quantizer
    return state.shape == shape and (q is None or not source.reason(q.normalizer, q.map, shape))


NATIVE, TRITON = NativeSupport(), TritonSupport()


@functools.lru_cache(maxsize=4096)
def _of_normalizer(engine: Support, normalizer: Normalizer, shape: tuple[int, ...]) -> str:
    """Reason why the scales of a tensor are unsupported."""
    geometry = geometry_of(normalizer, shape)
    if geometry is None or not geometry.parts:
        return f"{normalizer.spec} describes no scales to engines"
    if len(geometry.parts) > MAX_PARTS:
        return f"scales have more than {MAX_PARTS} lists"
    return engine._of_scales(geometry, math.prod(shape))


def of_device(parameter: ParameterStep, device: torch.device) -> Iterator[str]:
    """Reasons why an engine of GPUs does not step a parameter on `device`."""
    gradient = parameter.gradient
    if not isinstance(gradient, Tensor):
        yield "it is stored as codes"
    elif gradient.device != device:
        yield f"its gradient is on {gradient.device}, not on {device}"
    if any(spanning_states(parameter)):
        yield "its states have scales over several shards"


def _of_dense(parameter: ParameterStep, dtypes: tuple[torch.dtype, ...]) -> Iterator[str]:
    param, gradient = parameter.param, parameter.gradient
    assert isinstance(gradient, Tensor)
    if not (in_memory(param) and in_memory(gradient)):
        yield "its values or its gradient are not plain memory"
    if gradient.dtype not in GRADIENTS:
        yield f"its gradient is {gradient.dtype}"
    remainder = parameter.storage.get(REMAINDER) if parameter.remainder is not None else None
    if remainder is not None and not readable(remainder):
        yield "its remainder is not contiguous or not in memory"
    # For a parameter with a master copy, the copy is stepped.
    if not parameter.master and param.dtype not in dtypes:
        yield f"it is {param.dtype} and has no master copy"
    if not parameter.master and not param.is_contiguous():
        yield "it is not contiguous"


def _in_local_blocks(t: QuantizedTensor) -> bool:
    """Return True if each scale belongs to one block, short enough to be encoded by itself."""
    geometry = geometry_of(t.quantizer.normalizer, t.shape)
    if geometry is None or geometry.log or len(geometry.parts) != 1:
        return False
    part = geometry.parts[0]
    comes_again = part.divisor * part.count < math.prod(t.shape)
    block = part.divisor * (8 if part.divisor % 8 else 1)
    return part.plain and not comes_again and block <= LONGEST_BLOCK
