"""Options of other libraries' optimizers, and their replacements in qmaps.

`docs/bitsandbytes-and-torchao.md` prints the table, and has one of classes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from qmaps.engines.step import MOMENTS
from qmaps.errors import shown

BITSANDBYTES, TORCHAO = BNB, AO = "bitsandbytes", "torchao"
Row = tuple[str, object, str]

INSTEAD: Mapping[str, Row] = {
    "optim_bits": (BNB, ..., "`state_quantizers='8bit'`, or classes such as `AdamW8bit`"),
    "min_8bit_size": (BNB, 4096, "`min_quantized_size`: above that size, not from it on"),
    "percentile_clipping": (BNB, 100, "none; use `torch.nn.utils.clip_grad_norm_`"),
    "block_wise": (BNB, True, "the normalizer of a spec: `B256`, or `tensor` for one scale"),
    "is_paged": (BNB, False, "none; `CPUOffloadOptimizer` keeps states in the CPU's memory"),
    "args": (BNB, None, "none; pass the options themselves"),
    "adam_w_mode": (BNB, True, "none; trust ratios also scale weight decay, as in the paper"),
    "dampening": (BNB, 0, "none; only `SGD` has it"),
    "bf16_stochastic_round": (AO, False, "`stochastic_rounding`"),
    "offload_gradients": (AO, False, "none; `release_gradients` frees gradients while training"),
    "minimal_size": (AO, 0, "none; `CPUOffloadOptimizer` offloads all parameters"),
}
"""By option: the library that has it; the value that asks for nothing, ``...`` if there is none;
and what qmaps has instead, as the documentation prints."""

NEUTRAL = {name: value for name, (_, value, _) in INSTEAD.items() if value is not ...}
"""Options of `INSTEAD` with the value that asks for nothing; every optimizer accepts it."""

TAGS = frozenset({"args", "dampening"})
"""Options of `INSTEAD` that are accepted in parameter groups, where other code may use the name."""

IN_GROUPS: Mapping[str, Row] = {
    **{name: row for name, row in INSTEAD.items() if name not in TAGS},
    "optim_bits": (BNB, ..., "`'state_quantizers': '8bit'`, or `'quantize': False` for 32 bits"),
}
"""`INSTEAD` for parameter groups."""


def instead_of(name: str, replacements: Mapping[str, Row] = INSTEAD) -> str:
    """The end of an error message about an unknown option; ``""`` if no other library has it."""
    if name not in replacements:
        return ""
    library, _, here = replacements[name]
    return f"; {library} has it. In qmaps: {here.replace('`', '')}"


GROUP_COUNTS: Mapping[str, frozenset[str]] = {
    "step": frozenset(),  # pytorch-optimizer, optimi, Apex
    "step_count": frozenset(),  # heavyball
    "k": frozenset({"d", "weight_sum"}),  # Prodigy and D-Adaptation, schedulefree
}
"""Keys of parameter groups that count steps; `k` only beside one of these other keys, because
Lookahead and Ranger have a period of this name."""


def counts_in(group: Mapping[str, Any], own: Container[str] = ()) -> dict[str, Any]:
    """The entries of a saved group that count the steps of its parameters; some may be None.

    Options of `own` are no counts.
    """
    return {
        name: group[name]
        for name, beside in GROUP_COUNTS.items()
        if name in group and name not in own and (not beside or beside & group.keys())
    }


def count_in(group: Mapping[str, Any], own: Container[str] = ()) -> Any:
    """The first of `counts_in`; None if there is none."""
    counts = counts_in(group, own).values()
    return next((count for count in counts if count is not None), None)


PRODIGY = frozenset({"d", "d_max", "d_coef", "step", "weight_decouple"})
"""Keys of groups of pytorch-optimizer's Prodigy."""


def inexact_count(group: Mapping[str, Any]) -> str:
    """A sentence on a count in a group that is not the number of steps; ``""`` for others."""
    if not group.keys() >= PRODIGY:
        return ""
    # 3.6.1 adds 2 in each step, so the number of steps cannot be told from the count.
    return (
        f"step={shown(group['step'])} in a group of pytorch-optimizer's Prodigy is not the number "
        "of steps: it begins at 1, and some versions add 2 in each step; it is kept as it is"
    )


class Count(NamedTuple):
    """A parameter of a checkpoint: names of its states, and True if a number of steps is known.

    `needed` is True if its update depends on the number; None decides by the names.
    """

    label: str
    states: Collection[str]
    known: bool
    needed: bool | None = None


def uncounted(counts: Iterable[Count], *, anywhere: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the parameters without the number of steps that their states need.

    With each label comes True if other parameters with the same states have a number, which shows
    that they need it. With ``anywhere=False``, only these are yielded.
    """
    counts = [count for count in counts if count.states]
    counted = {frozenset(count.states) for count in counts if count.known}
    for label, states, known, needed in counts:
        beside = frozenset(states) in counted
        if needed is None:
            needed = {*MOMENTS} <= {*states}
        if not known and (beside or (anywhere and needed)):
            yield label, beside


OTHER_RULES: Mapping[str, str] = {
    "weight_decouple": "pytorch-optimizer's ADOPT, Grams, EXAdam, Yogi, AdaBound, AdamP and Tiger",
    "decouple_lr": "optimi's Adam, RAdam and Lion",
    "clip_exp": "timm's ADOPT",
    "final_lr": "AdaBound",
    "wd_ratio": "AdamP and SGDP",
    "initial_accumulator": "Yogi",
    "partial": "PAdam",
    "nus": "QHAdam",
    "nu": "QHM",
    "kappa": "AccSGD",
    "beta": "MSVAG and Tiger",
    "buffer": "RAdam",
}
"""Keys of parameter groups by which rules are known whose states have the names of Adam's, Lion's
or SGD's: these rules take other steps, or may."""

OF_TORCH = (
    frozenset({"foreach", "capturable", "differentiable", "amsgrad"}),  # Adam and AdamW
    frozenset({"foreach", "differentiable", "dampening", "nesterov"}),  # SGD
)
"""Keys that together only groups of torch have; other keys beside them are tags of the user."""

NO_AMSGRAD = "torch's RAdam and ADOPT's own code"
"""Rules with the states and the groups of torch's Adam, but for `amsgrad`."""


def other_rules(group: Mapping[str, Any], own: Container[str] = ()) -> str:
    """The sign of a rule of `OTHER_RULES` in a saved group, for messages; ``""`` without one.

    Options of `own` are no sign.
    """
    if any(names <= group.keys() for names in OF_TORCH):
        return ""
    for name, rules in OTHER_RULES.items():
        if name in group and name not in own:
            return f"{name!r} in a group, as in {rules}"
    is_torchs = {"betas", "eps", "differentiable"} <= group.keys()
    if is_torchs and not {"amsgrad", "momentum_decay"} & group.keys():
        return f"no 'amsgrad' in a group, as in {NO_AMSGRAD}"
    return ""


def writer_of(states: Mapping[Any, Any]) -> str:
    """The library of quantized states; ``""`` if there are none."""
    for state in states.values():
        if isinstance(state, Mapping):
            if not {"state1", "__bnb_optimizer_quant_state__"}.isdisjoint(state):
                return BITSANDBYTES
            if any(type(value).__module__.startswith("torchao.") for value in state.values()):
                return TORCHAO
    return ""
