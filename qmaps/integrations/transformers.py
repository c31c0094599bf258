"""Optimizers by name, and callbacks, for ``transformers.Trainer``.

The optimizers need nothing: ``Trainer(..., optimizer_cls_and_kwargs=(AdamW8bit, {"lr": 1e-3}))``.
`register` is for configurations that choose an optimizer by its name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers
from transformers import TrainerCallback

from qmaps import optim
from qmaps.capture import Monitor, StateRecorder
from qmaps.errors import BackendError, BadValueError, nearest, shown
from qmaps.integrations import Recorded

PREFIX = "qmaps_"
"""Beginning of all names."""
WORDS = {"true": True, "false": False, "none": None, "null": None}
"""Values of `optim_args` besides numbers and text."""
ADAM = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
"""Defaults of TrainingArguments; other values replace those of the rule."""

SEMICOLON = re.compile(r"""('[^']*'|"[^"]*")|;""")
"""Semicolons outside of quotes; group 1 is text in quotes."""

Chosen = tuple[type[optim.QuantizedOptimizer], dict[str, Any]]


@dataclass
class _Added:
    """Entries of `register` in transformers' tables, each with what was there before."""

    names: list[str] = field(default_factory=list)
    handlers: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    missing: tuple[Any, Any] = (None, None)


_ADDED = _Added()


def register() -> list[str]:
    r"""Add the optimizers of qmaps to the names that ``TrainingArguments(optim=...)`` accepts.

    A name is ``qmaps_``, the file of a rule in `qmaps.optim`, and a preset, such as
    ``qmaps_adamw_8bit``, ``qmaps_lion_4bit`` or ``qmaps_adamw_paper_4bit``; without a preset states
    stay in 32 bits. `optim_args` has any options of the optimizer, and wins over the name:
    ``optim_args="state_quantizers=B128/DE@4s + rank1/linear@4u, betas=(0.9; 0.95)"``. transformers
    splits it at every comma and allows one ``=`` in each part. In a value a semicolon stands for a
    comma, and in quotes ``\x2c`` for a comma and ``\x3d`` for an equals sign.
    `learning_rate` and `weight_decay` are those of the Trainer; `adam_beta1`, `adam_beta2` and
    `adam_epsilon` are passed to rules with `betas` where they differ from the Trainer's defaults.

    Every process of a distributed run must call this before it makes TrainingArguments. Calling it
    again changes nothing.

    Returns:
        All names.

    Raises:
        BackendError: this version of transformers has no table of optimizers (before 5.2).
    """
    handlers, names = _tables()
    for name, handler in _handlers().items():
        if name not in names.__members__:
            member = str.__new__(names, name)
            member._name_ = member._value_ = name
            names._member_map_[name] = names._value2member_map_[name] = member
            names._member_names_.append(name)
            _ADDED.names.append(name)
        before = handlers.get(name)
        if before is None or before is not _ADDED.handlers.get(name, (None,))[0]:
            handlers[name] = handler
            _ADDED.handlers[name] = handler, before
    missing = vars(names).get("_missing_")
    if missing is None or missing is not _ADDED.missing[0]:
        _ADDED.missing = classmethod(_refusing(missing)), missing
        names._missing_ = _ADDED.missing[0]
    return list(_handlers())


def unregister() -> None:
    """Take the names of `register` away again; what another package has put there since stays."""
    handlers, names = _tables()
    for name, (ours, before) in _ADDED.handlers.items():
        if handlers.get(name) is ours:
            del handlers[name]
            if before is not None:
                handlers[name] = before
    for name in _ADDED.names:
        if name not in handlers and names._member_map_.pop(name, None) is not None:
            names._value2member_map_.pop(name, None)
            names._member_names_.remove(name)
    refusing, missing = _ADDED.missing
    if refusing is not None and vars(names).get("_missing_") is refusing:
        del names._missing_
        if missing is not None:
            names._missing_ = missing
    _ADDED.names.clear()
    _ADDED.handlers.clear()
    _ADDED.missing = None, None


def _tables() -> tuple[dict[str, Any], Any]:
    """The Trainer's optimizers by name, and the enumeration of names."""
    try:
        from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS
    except ImportError:
        raise BackendError(
            f"transformers {transformers.__version__} has no table of optimizers, which begins "
            "with 5.2; without names, pass optimizer_cls_and_kwargs=(qmaps.optim.AdamW8bit, "
            '{"lr": 1e-3}) to the Trainer'
        ) from None
    return _OPTIMIZER_HANDLERS, transformers.training_args.OptimizerNames


def _handlers() -> dict[str, Callable[[Any], Chosen]]:
    """The handler of each name, for every rule alone and in every preset."""
    handlers = {}
    for cls in optim.rules().values():
        rule = PREFIX + cls.__module__.rpartition(".")[2]
        handlers[rule] = _handler(cls, None)
        for preset in optim.PRESETS:
            handlers[f"{rule}_{preset.replace('-', '_')}"] = _handler(cls, preset)
    return handlers


def _handler(cls: type[optim.QuantizedOptimizer], preset: str | None) -> Callable[[Any], Chosen]:
    """The Trainer's function of an optimizer's class and arguments."""

    def handler(context: Any) -> Chosen:
        args = context.args
        # 32 bits are asked for, too: resuming a run of 8 bits warns that it goes on in 8 bits.
        chosen: dict[str, Any] = {"lr": args.learning_rate, "state_quantizers": preset or "32bit"}
        parameters = inspect.signature(cls).parameters
        if "betas" in parameters:
            changed = {n: x for n, usual in ADAM.items() if (x := getattr(args, n)) != usual}
            first, second, *further = parameters["betas"].default
            beta1, beta2 = changed.get("adam_beta1", first), changed.get("adam_beta2", second)
            chosen["betas"] = (beta1, beta2, *further)
            if "eps" in parameters and "adam_epsilon" in changed:
                chosen["eps"] = changed["adam_epsilon"]
        for pair in (args.optim_args or "").split(","):
            option, _, value = map(str.strip, pair.partition("="))
            if option:
                chosen[option] = _value(value)
        return cls, chosen

    return handler


def _value(text: str) -> Any:
    """The value of an option, as `optim_args` has it; a semicolon stands for a comma."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(SEMICOLON.sub(lambda match: match[1] or ",", text))
    except (SyntaxError, ValueError):
        return text


def _refusing(before: Any) -> Callable[[Any, object], Any]:
    """The function that the enumeration calls for an unknown name; `before` is the present one."""

    def missing(cls: Any, value: object) -> Any:
        if _ADDED.handlers and str(value).startswith(PREFIX):
            raise BadValueError(
                f"optim={shown(value)} is not a name of qmaps; allowed are qmaps_RULE and "
                f"qmaps_RULE_PRESET, such as qmaps_adamw_8bit{nearest(str(value), _handlers())}"
            )
        inherited = super(cls, cls)._missing_ if before is None else before.__get__(None, cls)
        return inherited(value)

    return missing


class _Callback(Recorded, TrainerCallback):
    """Begins with training and ends with it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin to record."""
        optimizers, model = [kwargs["optimizer"]], kwargs["model"]
        folder, step, is_first = args.output_dir, state.global_step, state.is_world_process_zero
        self._begin(optimizers, model, folder, step, is_first=is_first)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Stop recording."""
        self._end()


class CaptureCallback(_Callback):
    """Records optimizer states of a Trainer's run in a folder for `qmaps.capture.load`.

    It takes any optimizer. Steps are numbered as the Trainer numbers
    them; a resumed run goes on in the same folder. In distributed training the first process
    records.

    Args:
        out: the folder; ``states`` in the Trainer's `output_dir` if left out.
        **options: `every`, `steps`, `parameters` and `gradients` of
            `qmaps.capture.StateRecorder`.

    Raises:
        BadTypeError: an option is none of these.
        OutputError: when training begins; see `StateRecorder`.
    """

    _kind = StateRecorder


class MonitorCallback(_Callback):
    """Measures the quantized states of a Trainer's run with a `qmaps.capture.Monitor`.

    A resumed run goes on in the same file. In distributed training all processes
    measure together.

    Args:
        out: the CSV file; ``monitor.csv`` in the Trainer's `output_dir` if left out.
        **options: `every`, `window`, `sample`, `parameters`, `log` and `thresholds` of
            `qmaps.capture.Monitor`.

    Raises:
        BadTypeError: an option is none of these.
        BadValueError, OutputError: when training begins; see `Monitor`.
    """

    _kind = Monitor
