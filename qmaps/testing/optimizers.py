"""Checks of every optimizer."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.errors import BadTypeError, NonFiniteError
from qmaps.ops.backends import backends, use_backend
from qmaps.optim.base import QuantizedOptimizer
from qmaps.testing._data import about, checks_in, refused

SHAPES = ((48, 40), (130,), (), (0, 3), (3, 4, 5))
STEPS = 5  # odd: steps of signs do not cancel
MIRRORED_STEPS = 20  # enough for 1 % that a state loses in each of them to add up
PUBLISHED = "paper-4bit"
"""A preset with scales of rows and columns, and a map that holds +1 and no -1."""
WIDTHS = (None, "8bit", "4bit", PUBLISHED)
"""Presets of `state_quantizers`; None is 32 bits."""


Make = partial[QuantizedOptimizer]
"""A class of optimizers with its options besides the parameters."""


def _parameters(make: Make) -> list[Tensor]:
    """Parameters of several shapes for the class, one of them empty."""
    cls: Any = make.func
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float32) for s in SHAPES]
    params = [torch.nn.Parameter(values) for values in drawn]
    return [param for param in params if not cls.unsupported_reason(param)]


def _steps(optimizer: QuantizedOptimizer, params: list[Tensor], first: int, count: int) -> None:
    """Steps of gradients by the step's number alone."""
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator, dtype=torch.float32)
        optimizer.step()


def _trained(make: Make) -> tuple[QuantizedOptimizer, list[Tensor]]:
    """An optimizer after a few steps, and its parameters."""
    params = _parameters(make)
    optimizer = make(params)
    _steps(optimizer, params, 0, STEPS)
    return optimizer, params


def _bits_of(optimizer: QuantizedOptimizer, params: list[Tensor]) -> list[Tensor]:
    """Parameters and all tensors of states."""
    tensors = [param.detach() for param in params]
    for param in params:
        for value in optimizer.state[param].values():
            if isinstance(value, QuantizedTensor):
                tensors += [value.packed, *value.scales]
            elif isinstance(value, Tensor):
                tensors.append(value)
    return tensors


def _assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    """Raise unless all are equal."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def parameters_move_and_stay_finite(make: Make) -> None:
    """All elements; parameters stay where they are in memory."""
    before = _parameters(make)
    params = _parameters(make)
    places = [param.untyped_storage()._cdata for param in params]
    _steps(make(params), params, 0, STEPS)
    assert places == [param.untyped_storage()._cdata for param in params]
    for old, new in zip(before, params, strict=True):
        assert bool(new.isfinite().all())
        assert new.numel() == 0 or not torch.equal(old, new)


def the_same_steps_give_the_same_bits(make: Make) -> None:
    """Again, and on every engine."""
    expected = _bits_of(*_trained(make))
    for engine in ("reference", "native"):
        if any(backend.name == engine and backend.available for backend in backends()):
            with use_backend(engine):
                _assert_same(_bits_of(*_trained(make)), expected)


def states_are_kept_as_their_quantizers_say(make: Make) -> None:
    """Quantized or float32, in the shapes of the optimizer's states, as in `memory`."""
    optimizer, params = _trained(make)
    nbytes = 0
    for param in params:
        group = optimizer.param_groups[0]
        for name, shape in optimizer.state_shapes(param, group).items():
            q = optimizer.quantizer_of(name, param, group)
            value = optimizer.state[param][name]
            nbytes += value.nbytes
            assert tuple(value.shape) == tuple(shape)
            if q is None:
                assert value.dtype == torch.float32
            else:
                assert value.quantizer.spec == q.spec
    assert optimizer.memory().nbytes == nbytes


def training_goes_on_from_a_state_dict(make: Make) -> None:
    """As if it had not been interrupted, through a file."""
    optimizer, params = _trained(make)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    copies: list[Tensor] = [torch.nn.Parameter(param.detach().clone()) for param in params]
    resumed = make(copies)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    _assert_same(_bits_of(resumed, copies), _bits_of(optimizer, params))
    _steps(optimizer, params, STEPS, STEPS)
    _steps(resumed, copies, STEPS, STEPS)
    _assert_same(_bits_of(resumed, copies), _bits_of(optimizer, params))


def mirrored_gradients_train_mirrored(make: Make) -> None:
    """From 0 on, a block's largest element moves as far up as down, to 2 %.

    To 10 % if a signed map is not symmetric and rounds by chance: norms then depend on the other
    elements.
    """
    if make.keywords.get("state_quantizers") == PUBLISHED:
        return
    uneven = False

    def moved(sign: float) -> list[Tensor]:
        nonlocal uneven
        params: list[Tensor] = [torch.nn.Parameter(torch.zeros_like(p)) for p in _parameters(make)]
        optimizer = make(params)
        for _ in range(MIRRORED_STEPS):
            for param in params:
                param.grad = torch.full_like(param, 1e-3 * sign)
                param.grad.view(-1)[::16] = sign
            optimizer.step()
        states = [value for param in params for value in optimizer.state[param].values()]
        uneven = any(_uneven(s.quantizer) for s in states if isinstance(s, QuantizedTensor))
        return [param.detach().view(-1)[::16] for param in params]

    for up, down in zip(moved(-1.0), moved(1.0), strict=True):
        if up.numel():
            ratio = -float(up.mean() / down.mean())
            assert abs(ratio - 1) < (0.1 if uneven else 0.02), f"{ratio:.3f} times as far"


def _uneven(q: Quantizer) -> bool:
    """True if states and their mirror images differ by more than the sign, by chance."""
    values = q.map.codebook()
    return q.stochastic and q.map.signed and not torch.equal(values, -values.flip(0))


def nonfinite_gradients_are_skipped_or_refused(make: Make) -> None:
    """With nothing changed."""
    optimizer, params = _trained(make)
    before = [tensor.clone() for tensor in _bits_of(optimizer, params)]
    params[0].grad = torch.full_like(params[0], torch.nan)
    optimizer.param_groups[0]["nonfinite"] = "skip"
    optimizer.step()
    assert optimizer.skipped_steps == 1
    _assert_same(_bits_of(optimizer, params), before)
    optimizer.param_groups[0]["nonfinite"] = "raise"
    count = params[0].numel()
    message = (
        f"the gradient of parameter 0 of group 0 holds {count} NaN or infinite elements, the first "
        "at flat index 0; nonfinite='raise' allows only finite gradients"
    )
    with refused(NonFiniteError, message):
        optimizer.step()
    _assert_same(_bits_of(optimizer, params), before)


CHECKS: tuple[Callable[[Make], None], ...] = checks_in(globals())
"""Every check, given what makes the optimizer of some parameters."""


def check_optimizer(cls: type[QuantizedOptimizer], **options: Any) -> None:
    """Check an optimizer in 32, 8 and 4 bits.

    Steps give the same bits again, and on every available engine; parameters move, stay
    finite and keep their memory; states are kept as their quantizers say; a state_dict loads with
    ``weights_only=True`` and training goes on from it bit for bit; mirrored gradients train
    mirrored; ``nonfinite`` is obeyed.

    Args:
        cls: the class; its `state_quantizers` must be an option.
        options: further arguments of the class, such as ``lr``.

    Raises:
        AssertionError: a check fails; a note names the width.
        BadTypeError: `cls` is no subclass of `QuantizedOptimizer`.

    >>> from qmaps.optim import SGD
    >>> check_optimizer(SGD, lr=0.1, momentum=0.9)
    """
    if not (isinstance(cls, type) and issubclass(cls, QuantizedOptimizer)):
        raise BadTypeError(f"cls must be a subclass of QuantizedOptimizer, got {cls!r:.50}")
    for width, check in product(WIDTHS, CHECKS):
        make = Make(cls, **{"state_quantizers": width, "min_quantized_size": 0, **options})
        with about(f"{check.__name__} of {cls.__name__}, {width or '32 bits'}"):
            check(make)
