"""torchao: tensor subclasses of 8 bits, 4 bits and 8-bit floats; 32 bits for small tensors."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.capture.conversion.formats import base, coded
from qmaps.capture.conversion.optimizer_state import OptimizerState, Parameter, State
from qmaps.errors import BadValueError
from qmaps.normalize.block import BlockWise
from qmaps.optim.options import TORCH_OPTIONS

MODULES = "torchao.optim.subclass_"
"""Where the classes are; their names are in every checkpoint."""

LEAST = 4096
"""Tensors of fewer elements stay in 32 bits."""

USUAL = {
    "8bit": (quantizer("B256/DE@8s"), quantizer("B256/DE@8u")),
    "4bit": (quantizer("B128/DE@4s"), quantizer("B128/linear@4u")),
    "fp8": (Quantizer(BlockWise(256), coded.FLOAT8),) * 2,
}
"""The quantizers of `torchao.optim`, except for last bits: for signed and unsigned states."""


class TorchAO(base.Format):
    """``torchao.optim``: Adam and AdamW with `OptimState8bit`, `OptimState4bit`, `OptimStateFp8`.

    Block-wise 8-bit and 4-bit states are carried over as they are if blocks divide the tensor.
    Other states are encoded in the width asked for, else in the source's, and in 8 bits if it has
    none. Tensors that blocks do not divide stay in 32 bits, and so do those of fewer than 4096
    elements. Quantized states need torchao for its classes.
    """

    name: ClassVar[str] = "torchao"
    package: ClassVar[str] = "torchao.optim"
    rules: ClassVar[frozenset[str] | None] = frozenset({"Adam", "AdamW"})
    widths: ClassVar[tuple[str, ...]] = ("8bit", "4bit", "fp8", "32bit")
    keeps_none: ClassVar[bool] = False

    def optimizer(self, name: str, specs: Mapping[str, str | None]) -> str:
        """Code of an optimizer; that of 8-bit floats has a name of its own, 32 bits none."""
        if not base.width_of(specs):
            return "..."
        if any(spec == USUAL["fp8"][0].spec for spec in specs.values()):
            return f"{name}Fp8(model.parameters())"
        return super().optimizer(name, specs)

    def know(self, classes: Collection[str]) -> None:
        """Import the classes of quantized states where a file has any."""
        if any(name.startswith(MODULES) for name in classes):
            imported()

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:
        """Return True if a state is of one of the classes."""
        return any(
            _is_quantized(value)
            for saved in state_dict["state"].values()
            for value in saved.values()
        )

    def state(self, value: Any) -> State:
        """A state, quantized or float32."""
        return _read(value) if _is_quantized(value) else base.float_state(value)

    def plan(self, state: OptimizerState, wanted: base.Wanted) -> tuple[OptimizerState, base.Plan]:
        """The source's width, or the one asked for."""
        if state.family.name != "adam":
            raise BadValueError(
                f"the checkpoint has {state.family.name} states; torchao supports only Adam and "
                "AdamW"
            )
        base.refuse_options(state, {"maximize": False}, self.name)
        width = base.wanted_width(wanted, self) or _width(state)
        by_size = wanted is not None or not state.quantized()
        plan: base.Plan = {}
        for parameter in state.parameters():
            plan[parameter.label] = {}
            for name, value in parameter.states.items():
                q = None
                if width != "32bit":
                    usual = USUAL[width][name not in state.family.signed]
                    q = _carried(value, width)
                    encoded = by_size or isinstance(value, QuantizedTensor)
                    large = torch.Size(value.shape).numel() >= LEAST
                    if q is None and encoded and large and _divides(value.shape, usual):
                        q = usual
                plan[parameter.label][name] = q
        return state, plan

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict; steps and learning rates are tensors, as torchao's are."""
        signed = state.family.signed

        def entry(parameter: Parameter, _: dict[str, Any]) -> dict[str, Any]:
            return base.written(parameter, lambda name, t: _written(t, name in signed))

        return base.assembled(state, _options, entry)


def _is_quantized(value: Any) -> bool:
    return type(value).__module__.startswith(MODULES)


def _read(value: Any) -> QuantizedTensor:
    kind = type(value).__name__
    if kind == "OptimStateFp8":
        return coded.from_floats(value.codes, value.scale)
    codes, bits = value.codes, BITS[kind]
    if bits == 4:
        codes = torch.stack([codes >> 4, codes & 15], dim=-1)  # the first in the high half
    block = coded.block_size(codes.numel(), value.scale)
    parts = (codes, value.qmap, value.scale, tuple(value.shape))
    return coded.from_codes(*parts, bits=bits, block=block, label="torchao")


BITS = {"OptimState8bit": 8, "OptimState4bit": 4}
"""Width of the codes, by the class's name."""


def _width(state: OptimizerState) -> str:
    """The width of the source's quantized states."""
    maps = [t.quantizer.map for t in state.quantized()]
    if maps and all(map_ in (coded.FLOAT8, coded.UNIT_FLOAT8) for map_ in maps):
        return "fp8"
    return "4bit" if maps and all(map_.bits == 4 for map_ in maps) else "8bit"


def _carried(value: State, width: str) -> Quantizer | None:
    """Return the quantizer that keeps a state's codes, if there is one."""
    if not isinstance(value, QuantizedTensor):
        return None
    q = value.quantizer
    if width == "fp8":
        if q.map in (coded.FLOAT8, coded.UNIT_FLOAT8):
            q = Quantizer(q.normalizer, coded.FLOAT8)
        representable = q.map == coded.FLOAT8 and isinstance(q.normalizer, BlockWise)
    else:
        representable = coded.holds(value, 4 if width == "4bit" else 8)
    return q if representable and _divides(value.shape, q) else None


def _divides(shape: tuple[int, ...], q: Quantizer) -> bool:
    numel = torch.Size(shape).numel()
    assert isinstance(q.normalizer, BlockWise)
    even = numel % 2 == 0 or q.map.bits == 8
    return numel > 0 and numel % q.normalizer.size == 0 and even


def _written(t: QuantizedTensor, signed: bool) -> Any:
    """An instance of torchao's class."""
    scale, map_ = t.scales[0], t.quantizer.map
    if map_ == coded.FLOAT8:
        return imported("fp8").OptimStateFp8(coded.to_floats(t), scale, torch.float32)
    codes = t.codes().to(torch.uint8)
    book = coded.codebook_of(map_, 2**map_.bits)
    if map_.bits == 8:
        return imported("8bit").OptimState8bit(codes, scale, book, signed, torch.float32)
    pairs = codes.view(-1, 2)
    packed, shape = (pairs[:, 0] << 4) | pairs[:, 1], torch.Size(t.shape)
    return imported("4bit").OptimState4bit(packed, scale, book, signed, shape, torch.float32)


def imported(module: str = "8bit") -> Any:
    """Import one of torchao's modules of tensor classes, so ``torch.load`` knows them."""
    try:
        importlib.import_module("torchao.optim")
        return importlib.import_module(MODULES + module)
    except ImportError as error:
        raise BadValueError(
            f"states of torchao need its tensor classes ({error}); install them with pip install "
            '"torchao>=0.18"'
        ) from None


def _options(options: dict[str, Any]) -> dict[str, Any]:
    amsgrad = bool(options.get("amsgrad", False))
    dropped = {*TORCH_OPTIONS, "maximize"}
    unchanged = {k: v for k, v in base.without_qmaps(options).items() if k not in dropped}
    lr = torch.tensor(unchanged.get("lr", 1e-3), dtype=torch.float32)
    usual = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    return {**usual, **unchanged, "lr": lr, "amsgrad": amsgrad}
