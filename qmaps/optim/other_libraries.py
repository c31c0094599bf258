"""Options and names of other libraries' optimizers, and their replacements in qmaps.

`docs/bitsandbytes-and-torchao.md` prints these tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

BITSANDBYTES, TORCHAO = "bitsandbytes", "torchao"

INSTEAD: Mapping[str, tuple[str, str]] = {
    "optim_bits": (BITSANDBYTES, "`state_quantizers='8bit'`, or classes such as `AdamW8bit`"),
    "min_8bit_size": (BITSANDBYTES, "`min_quantized_size`: above that size, not from it on"),
    "percentile_clipping": (BITSANDBYTES, "none; use `torch.nn.utils.clip_grad_norm_`"),
    "block_wise": (BITSANDBYTES, "the normalizer of a spec: `B256`, or `tensor` for one scale"),
    "is_paged": (BITSANDBYTES, "none; `CPUOffloadOptimizer` keeps states in the CPU's memory"),
    "args": (BITSANDBYTES, "none; pass the options themselves"),
    "adam_w_mode": (BITSANDBYTES, "none; trust ratios also scale weight decay, as in the paper"),
    "dampening": (BITSANDBYTES, "none; only `SGD` has it"),
    "bf16_stochastic_round": (TORCHAO, "`stochastic_rounding`"),
    "offload_gradients": (TORCHAO, "none; `release_gradients` frees gradients while training"),
    "minimal_size": (TORCHAO, "none; `CPUOffloadOptimizer` offloads all parameters"),
}  # fmt: skip
"""By option: the library that has it, and what qmaps has instead, as the documentation prints."""

NEUTRAL: Mapping[str, object] = {
    "min_8bit_size": 4096,
    "percentile_clipping": 100,
    "block_wise": True,
    "is_paged": False,
    "args": None,
    "adam_w_mode": True,
    "dampening": 0,
    "bf16_stochastic_round": False,
    "offload_gradients": False,
    "minimal_size": 0,
}
"""The value of an option of `INSTEAD` that asks for nothing; every optimizer accepts it."""


def instead_of(name: str) -> str:
    """The end of an error message about an unknown option; ``""`` if no other library has it."""
    if name not in INSTEAD:
        return ""
    return _hint(*INSTEAD[name])


IN_GROUPS: Mapping[str, tuple[str, str]] = {
    "optim_bits": (BITSANDBYTES, "`'state_quantizers': '8bit'`, or `'quantize': False` for 32 bits")
}
"""The same for options that are replaced by something else in a parameter group."""

TAGS = frozenset({"args", "dampening"})
"""Options of `INSTEAD` that are accepted in parameter groups, where other code may use the name."""


def instead_in_groups(name: str) -> str:
    """`instead_of`, for a key of a parameter group; ``""`` for accepted keys."""
    return (
        _hint(*IN_GROUPS[name]) if name in IN_GROUPS else "" if name in TAGS else instead_of(name)
    )


def _paged(rule: str) -> dict[str, tuple[str, str]]:
    """The paged classes of a rule."""
    widths = {"": rule, "8bit": f"{rule}8bit", "32bit": rule}
    return {
        f"Paged{rule}{width}": (
            BITSANDBYTES,
            f"`{here}`; `CPUOffloadOptimizer` keeps its states in the CPU's memory",
        )
        for width, here in widths.items()
    }


IN_32_BITS = ("AdEMAMix", "Adagrad", "Adam", "AdamW", "LAMB", "LARS", "Lion", "RMSprop", "SGD")
FP8 = '`state_quantizers={"exp_avg": "B256/e4m3@8s", "exp_avg_sq": "B256/e4m3@8u"}`'

NAMES: Mapping[str, tuple[str, str]] = {
    **_paged("AdamW"),
    **_paged("Adam"),
    **_paged("AdEMAMix"),
    **_paged("Lion"),
    **{f"{rule}32bit": (BITSANDBYTES, f"`{rule}`") for rule in IN_32_BITS},
    "PytorchLARS": (BITSANDBYTES, "`LARS`"),
    "GlobalOptimManager": (
        BITSANDBYTES,
        "`overrides={'name*': None}`, groups with `'quantize': False`, or `param_groups`",
    ),
    "AdamWFp8": (TORCHAO, f"`AdamW` with {FP8}"),
    "AdamFp8": (TORCHAO, f"`Adam` with {FP8}"),
}
"""By class: the library that has it, and what qmaps has instead, as the documentation prints."""


def writer_of(states: Mapping[Any, Any]) -> str:
    """The library of quantized states; ``""`` if there are none."""
    for state in states.values():
        if isinstance(state, Mapping):
            if not {"state1", "__bnb_optimizer_quant_state__"}.isdisjoint(state):
                return BITSANDBYTES
            if any(type(value).__module__.startswith("torchao.") for value in state.values()):
                return TORCHAO
    return ""


def instead_of_class(name: str) -> str:
    """The end of an error message about an unknown class; ``""`` if no other library has it."""
    return _hint(*NAMES[name]) if name in NAMES else ""


def _hint(library: str, here: str) -> str:
    return f"; {library} has it. In qmaps: {here.replace('`', '')}"


class _Finder(MetaPathFinder):
    """Lets ``from qmaps.optim import PagedAdamW8bit`` raise an error with the hint.

    Python replaces the AttributeError of a module by a message of its own, but before that it
    looks for a module of the name.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise if the module would be a class of another library."""
        package, _, name = fullname.rpartition(".")
        if package == "qmaps.optim" and (hint := instead_of_class(name)):
            raise ImportError(f"cannot import name {name!r} from {package!r}{hint}", name=fullname)


def install() -> None:
    """Make imports of other libraries' classes raise an error with the replacement."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # last: another package's module of the name is found
