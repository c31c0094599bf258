"""Optimizer checkpoints. Loading checks everything before it changes anything."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.saved import from_plain, tensors_only, to_plain
from qmaps.distributed.rows import Rows, wanted
from qmaps.distributed.rows import read as read_rows
from qmaps.distributed.rows import write as write_rows
from qmaps.engines.masters import MASTER, REMAINDER, master_dtypes
from qmaps.engines.sharding.exchange import Request, shared_scales, spans_shards
from qmaps.engines.sharding.over_shards import largest_bits, whole_of
from qmaps.engines.sharding.shards import Shard, is_distributed, local, shard_of
from qmaps.engines.step import COUNTER, NUMBERS, PRODUCT, RESET
from qmaps.engines.step_scalars import StepScalar
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, QmapsError, shown
from qmaps.normalize.block import MOST
from qmaps.optim.choice import check_patterns, listed
from qmaps.optim.groups import without_wrappers
from qmaps.optim.options import TORCH_OPTIONS, check_shared
from qmaps.optim.other_libraries import (
    GROUP_COUNTS,
    Count,
    count_in,
    counts_in,
    inexact_count,
    other_rules,
    uncounted,
    writer_of,
)
from qmaps.optim.presets import FORMER, PRESETS
from qmaps.optim.records import ParameterRecord, Parameters
from qmaps.optim.resets import begin_count, check_count
from qmaps.optim.rule import in_parameters_shape

Group = dict[str, Any]
State = dict[str, Any]

FORMAT = 2
"""Format of state_dicts; one without a number is torch's, or older.

Format 1, of versions up to 0.3, has text and lists in quantized states, and reads alike.
"""

STREAM = 2
"""Number of the stream of random numbers that stochastic rounding takes (`qmaps.algebra.philox`).

Stream 1, of versions up to 0.2, took 32 bits per element; those versions stored no number.
"""

DECOUPLED = "decoupled_weight_decay"
"""Option of torch's groups; False for Adam, True for AdamW."""

ABOUT = "qmaps"
"""Key of a state_dict that holds its format and the name of its optimizer."""


def written(record: ParameterRecord, name: str, value: Any) -> Any:
    """A state as a state_dict stores it; of a sharded parameter all processes call this.

    Quantized states become dicts of plain tensors and numbers, tensors of shards DTensors.
    Codes of shards that cannot be cut by rows are decoded. A remainder of 16 bits becomes int32,
    because gloo and NCCL send no int16.
    """
    if record.shard is None:
        if not isinstance(value, QuantizedTensor):
            return value
        plain = write_rows(value, None) if wanted() else to_plain(value)
        return tensors_only(plain, value.device)
    if name in NUMBERS or not isinstance(value, (Tensor, QuantizedTensor)):
        return value
    part = record.part(name)
    assert part is not None
    if isinstance(value, Tensor):
        sent = torch.int32 if value.dtype == torch.int16 else value.dtype
        return part.distributed(value.to(sent, copy=True))
    # Codes can be cut only by rows.
    if not part.by_rows:
        return part.distributed(value.dequantize())
    return tensors_only(write_rows(value, part), value.device)


def saved(parameters: Parameters) -> dict[str, Any]:
    """The state_dict of an optimizer; entries of `state` without a parameter are kept."""
    take_in(parameters)
    records = {id(record.param): record for record in parameters.records()}
    groups = [
        {**_plain(group), "params": [records[id(param)].number for param in group["params"]]}
        for group in parameters.groups
    ]
    state: dict[Any, Any] = {}
    for key, value in parameters.state.items():
        record = records[id(key)] if isinstance(key, Tensor) else None
        if record is not None and isinstance(value, Mapping):
            # `reset_every` may have been set after the last step.
            if isinstance(value, dict) and "step" in value:
                begin_count(record, value)
            value = {name: written(record, name, part) for name, part in value.items()}
        state[key if record is None else record.number] = value
    optimizer = type(parameters.rule).__name__
    about = {"format": FORMAT, "optimizer": optimizer, "stream": STREAM}
    return {"state": state, "param_groups": groups, ABOUT: about}


def _plain(value: Any) -> Any:
    """An option with Python's numbers in place of NumPy's, which ``weights_only=True`` refuses."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {key: _plain(member) for key, member in value.items()}
    return value


def take_in(parameters: Parameters, records: Sequence[ParameterRecord] | None = None) -> None:
    """Convert states from the form of a state_dict, stored by other code.

    `torch.distributed.optim.ZeroRedundancyOptimizer` stores such states. Code that reads states
    stored by others calls this function first.

    Args:
        parameters: of the optimizer.
        records: those of the parameters whose states are read; all if left out.
    """
    for record in parameters.records() if records is None else records:
        state = parameters.state.get(record.param)
        if isinstance(state, dict) and any(isinstance(value, dict) for value in state.values()):
            with parameters.choices.learning({record.number: state}):
                parameters.state[record.param] = read_state(record, state)


def read(
    parameters: Parameters, state_dict: Mapping[str, Any]
) -> tuple[list[Group], dict[Any, Any]]:
    """The parameter groups and the states of an optimizer after loading a checkpoint.

    The optimizer is not changed, and shares no storage with the result. Other entries
    than states of parameters, such as those of hooks, are returned as they were saved.

    Raises:
        BadValueError, BadTypeError: the checkpoint does not fit this optimizer, or is damaged.
    """
    check_form(state_dict)
    choices, owner = parameters.choices, type(parameters.rule).__name__
    # While options are checked, names are looked up in the checkpoint's groups.
    choices.forget_names()
    try:
        with choices.learning(state_dict["state"]):
            return _read(parameters, state_dict)
    except QmapsError as error:
        written_by = state_dict.get(ABOUT, {}).get("optimizer", owner)
        if written_by == owner:
            raise
        kind = BadTypeError if isinstance(error, BadTypeError) else BadValueError
        raise kind(f"{error}; state_dict was written by {written_by}") from None
    finally:
        choices.forget_names()


def _read(
    parameters: Parameters, state_dict: Mapping[str, Any]
) -> tuple[list[Group], dict[Any, Any]]:
    if library := writer_of(state_dict["state"]):
        raise BadValueError(
            f"state_dict has quantized states of {library}; convert its file with qmaps convert "
            "FILE NEW --to qmaps, or the dict with "
            "qmaps.capture.conversion.convert_state_dict(state_dict, 'qmaps')"
        )
    groups = _groups(parameters, state_dict["param_groups"])
    counts = [
        count_in(saved, ours)
        for saved, ours in zip(state_dict["param_groups"], parameters.groups, strict=True)
    ]
    for note in _notes(parameters, state_dict["param_groups"], groups):
        warnings.warn(note, stacklevel=6)
    records = parameters._replace(groups=groups).records()
    numbers = _numbers(state_dict, [record.param for record in records])
    states: dict[Tensor, State] = {}
    entries: dict[Any, Any] = {}
    without: set[int] = set()
    for saved_id, saved in state_dict["state"].items():
        if saved_id not in numbers:
            entries[saved_id] = saved
            continue
        record = records[numbers[saved_id]]
        if not isinstance(saved, Mapping):
            raise BadTypeError(
                f"the state of {record.label} in state_dict must be a dict, got "
                f"{type(saved).__name__}"
            )
        count = counts[record.place[0]]
        if saved.get("step") is None:
            saved = {**saved, "step": count}
            if count is None and any(value is not None for value in saved.values()):
                without.add(numbers[saved_id])
        states[record.param] = read_state(record, saved)
        if ABOUT not in state_dict:  # torch.distributed.checkpoint leaves it out
            check_count(record, states[record.param], state_dict["param_groups"][record.place[0]])
    if without:
        _check_counted(records, without, states)
    # States in the order of parameters, as training makes them.
    return groups, {r.param: states[r.param] for r in records if r.param in states} | entries


def _check_counted(
    records: Sequence[ParameterRecord], without: Container[int], states: Mapping[Tensor, State]
) -> None:
    """Raise if parameters among `without`, which have no number of steps, need one."""
    counts = [
        Count(
            record.label,
            [name for name in states.get(record.param, ()) if name not in NUMBERS],
            known=number not in without,
            needed=number in without and _needs_steps(record),
        )
        for number, record in enumerate(records)
    ]
    for label, beside in uncounted(counts):
        if beside:
            raise BadValueError(
                f"state_dict has no step for {label}, and a step for other parameters"
            )
        rule = type(records[0].rule).__name__
        keys = ", ".join(GROUP_COUNTS)
        raise BadValueError(
            f"state_dict has no step, neither in its states nor in its groups ({keys}); "
            f"the update of {rule} depends on it"
        )


def _needs_steps(record: ParameterRecord) -> bool:
    return record.rule._counts_steps or any(
        isinstance(scalar, StepScalar) and scalar.at(2) != scalar.at(1000)
        for scalar in record.rule.step_scalars(record.group).values()
    )


def check_form(state_dict: Mapping[str, Any]) -> None:
    """Raise unless this is a state_dict in a supported format."""
    if not isinstance(state_dict, Mapping):
        raise BadTypeError(f"state_dict must be a dict, got {type(state_dict).__name__}")
    if missing := [key for key in ("state", "param_groups") if key not in state_dict]:
        keys = listed([str(key) for key in state_dict]) or "nothing"
        raise BadValueError(f"state_dict lacks {' and '.join(missing)}; it has {keys}")
    about = state_dict.get(ABOUT, {"format": FORMAT})
    number = about.get("format") if isinstance(about, Mapping) else None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise BadValueError(
            f"state_dict has format={shown(number)}; the format must be an int of at least 1"
        )
    if number > FORMAT:
        raise BadValueError(
            f"state_dict has format={number} of a newer version of qmaps; this version reads "
            f"formats up to {FORMAT}"
        )
    for key, kind in (("state", Mapping), ("param_groups", (list, tuple))):
        if not isinstance(value := state_dict[key], kind):
            raise BadTypeError(
                "state_dict must have a dict as state and a list as param_groups, got a "
                f"{type(value).__name__} as {key}"
            )


def _groups(parameters: Parameters, saved_groups: Sequence[Any]) -> list[Group]:
    """The optimizer's groups with the options of the saved ones."""
    rule, choices = parameters.rule, parameters.choices
    if len(saved_groups) != len(parameters.groups):
        raise BadValueError(
            f"state_dict has {len(saved_groups)} parameter groups, but this optimizer has "
            f"{len(parameters.groups)}"
        )
    _check_names(parameters.groups, saved_groups)
    # Copied together: groups that share a tensor, such as their lr, go on sharing it.
    saved_groups = copy.deepcopy(saved_groups)
    merged_groups = []
    for index, (ours, theirs) in enumerate(zip(parameters.groups, saved_groups, strict=True)):
        if not isinstance(theirs, Mapping) or not isinstance(theirs.get("params"), (list, tuple)):
            raise BadTypeError(f"parameter group {index} of state_dict must have a list as params")
        if len(theirs["params"]) != len(ours["params"]):
            raise BadValueError(
                f"state_dict has {len(theirs['params'])} parameters in group {index}, but this "
                f"optimizer has {len(ours['params'])}"
            )
        for name, value in rule.torch_options.items():
            if theirs.get(name, value) != value:
                raise BadValueError(
                    f"state_dict has {name}={theirs[name]}; only {value} is supported"
                )
        options = {
            key: value
            for key, value in theirs.items()
            if (key not in TORCH_OPTIONS or key in ours) and key != "params"
        }
        for name in counts_in(theirs, ours):
            del options[name]  # each state has its own
        merged = {**ours, **options}
        if ours["overrides"] and not options.get("overrides"):  # they go with their names
            merged |= {name: ours[name] for name in ("overrides", "param_names") if name in ours}
        try:
            merged["state_quantizers"] = choices.specs(merged["state_quantizers"])
            merged["overrides"] = choices.overrides(merged["overrides"])
            check_shared(merged)
            rule.check_group(merged)
        except QmapsError:
            raise
        except DAMAGE as error:  # options of other types than the checks expect
            raise BadValueError(
                f"group {index} of state_dict has an invalid option: {error}"
            ) from None
        merged_groups.append(merged)
    check_patterns(merged_groups)
    return merged_groups


def _notes(
    parameters: Parameters, saved_groups: Sequence[Group], merged_groups: Sequence[Group]
) -> Iterator[str]:
    """Warnings of another rule's states, and of other quantizers than the optimizer asks for."""
    owner = type(parameters.rule).__name__
    for ours, theirs in zip(parameters.groups, saved_groups, strict=True):
        is_coupled = theirs.get(DECOUPLED) is False and DECOUPLED not in ours
        if is_coupled and theirs.get("weight_decay"):
            yield (
                f"state_dict has {DECOUPLED}=False, as those of Adam: weight decay was added to "
                f"gradients; {owner} applies weight_decay={shown(theirs['weight_decay'])} to "
                "parameters"
            )
            break
    for ours, theirs in zip(parameters.groups, saved_groups, strict=True):
        if sign := other_rules(theirs, ours):
            yield f"state_dict has {sign}; its states are loaded as those of {owner}"
            break
    if note := next(filter(None, map(inexact_count, saved_groups)), None):
        yield note
    pairs = [
        (_quantized(ours["state_quantizers"]), _quantized(merged["state_quantizers"]))
        for ours, merged in zip(parameters.groups, merged_groups, strict=True)
    ]
    for number, (asked, stored) in enumerate(pairs):
        # Without any spec, not even 32bit, an optimizer leaves the choice to the checkpoint.
        if not parameters.groups[number]["state_quantizers"] or asked == stored:
            continue
        specs = [", ".join(dict.fromkeys(s.values())) or "32 bits" for s in (stored, asked)]
        where = f"group {number} of state_dict" if len(pairs) > 1 else "state_dict"
        former = (name for name in FORMER if _quantized(parameters.choices.specs(name)) == stored)
        known = next(former, None)
        by_default = f" ({known!r})" if known else ""
        loss = ", and loses precision once" if asked else ""
        names = (name for name in PRESETS if _quantized(parameters.choices.specs(name)) == asked)
        name = next(names, None) if all(other == asked for other, _ in pairs) else None
        command = f": qmaps convert FILE NEW --to qmaps --states {name}" if name else ""
        remedy = f". Converting the checkpoint is optional{loss}{command}"
        if not in_parameters_shape(parameters.rule.states):
            remedy = ""
        yield (
            f"{where} keeps states in {specs[0]}{by_default} and training goes on so; this "
            f"optimizer asks for {specs[1]}{remedy}"
        )
        break


def _quantized(specs: Mapping[str, str | None]) -> dict[str, str]:
    return {state: spec for state, spec in specs.items() if spec is not None}


def _check_names(groups: Sequence[Group], saved_groups: Sequence[Any]) -> None:
    """Raise if saved states would be loaded into parameters of other names."""
    pairs: list[tuple[int, str, str]] = []
    for index, (ours, theirs) in enumerate(zip(groups, saved_groups, strict=True)):
        if not isinstance(theirs, Mapping):
            continue
        names = theirs.get("param_names")
        if names is None:  # distributed checkpoints have names in place of numbers
            names = theirs.get("params")
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                continue
        if len(names) != len(ours["params"]):
            raise BadValueError(
                f"state_dict has {len(names)} names for {len(ours['params'])} parameters in group "
                f"{index}"
            )
        if "param_names" in ours:
            in_group = [(index, *both) for both in zip(ours["param_names"], names, strict=True)]
            _check_order(in_group)
            pairs += in_group
    _check_order(pairs)


def _check_order(pairs: Sequence[tuple[int, str, str]]) -> None:
    """Raise if two lists of names, each with its group, differ in their order alone."""
    ours = without_wrappers([own for _, own, _ in pairs])
    theirs = without_wrappers([saved for _, _, saved in pairs])
    # Models may be renamed, so different names alone are not an error.
    if ours == theirs or sorted(ours) != sorted(theirs):
        return
    first = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    index, own, saved = pairs[first]
    raise BadValueError(
        f"state_dict orders the parameters of group {index} differently: {saved!r} is in the place "
        f"of this optimizer's {own!r}"
    )


def _numbers(state_dict: Mapping[str, Any], params: Sequence[Tensor]) -> dict[Any, int]:
    """The parameter's number for each saved id.

    Ids are numbers, or names in distributed checkpoints; a key of any other type does
    not refer to a parameter.
    """
    saved_ids = [saved_id for saved in state_dict["param_groups"] for saved_id in saved["params"]]
    numbers: dict[Any, int] = {}
    for number, saved_id in enumerate(saved_ids):
        if params[numbers.setdefault(saved_id, number)] is not params[number]:
            raise BadValueError("state_dict lists one parameter twice")
    types = {int, *map(type, saved_ids)}
    texts = {str(saved_id) for saved_id in saved_ids}
    for saved_id in state_dict["state"]:
        if saved_id not in numbers and saved_id in texts:
            raise BadValueError(
                f"state_dict has a state under the string {saved_id!r}, as dcp.load returns it; "
                "with torch.distributed.checkpoint use get_optimizer_state_dict and "
                "set_optimizer_state_dict, as docs/distributed.md shows"
            )
        if saved_id not in numbers and type(saved_id) in types:
            raise BadValueError(
                f"state_dict has a state of parameter {shown(saved_id)}, which is not in any of "
                "its parameter groups"
            )
    return numbers


def read_state(record: ParameterRecord, saved: Mapping[str, Any]) -> State:
    """One parameter's state as the optimizer stores it, without the storage of `saved`.

    Raises:
        BadValueError, BadTypeError: a state is unknown, damaged, or of another shape or kind than
            the parameter needs.
    """
    rule, param, group, where = record.rule, record.param, record.group, record.label
    state: State = {}
    shapes = rule.state_shapes(param, group)
    values = {name: value for name, value in saved.items() if value is not None}
    if "step" in values:
        state["step"] = _step(values.pop("step"), where, on_host=rule.native_rule is None)
    if RESET in values:
        state[RESET] = _step(values.pop(RESET), where, on_host=True)
    if PRODUCT in rule._numbers and PRODUCT in values:
        state[PRODUCT] = _product(values.pop(PRODUCT), where)
    if MASTER in values:
        state[MASTER] = _master(values.pop(MASTER), where, param, group)
    if REMAINDER in values:
        state[REMAINDER] = _remainder(values.pop(REMAINDER), where, param, group)
    read = {}
    for name, value in values.items():
        # A number that the rule does not keep is in no shard.
        is_number = name not in rule.states and getattr(value, "ndim", None) == 0
        part = None if is_number else record.part(name)
        checked = _value(value, name, where, part)
        if name in rule.states:
            _check_shape(checked, name, where, param, tuple(shapes.get(name, param.shape)))
        read[name] = _local(checked, part)
    with whole_of(record.shard):
        adopted = rule.adopted(read, local(param), group)
    for name, value in adopted.items():
        if name not in rule.states:
            allowed = ", ".join(rule.states)
            raise BadValueError(
                f"state_dict has the state {shown(name)} for {where}; {type(rule).__name__} "
                f"has the states {allowed}"
            )
        if isinstance(value, QuantizedTensor):
            state[name] = value.to(param.device).clone()
        else:
            state[name] = value.to(param.device, torch.float32, copy=True)
    if state:
        # torch's SGD counts no steps; one at least has been taken (`_check_counted`).
        state.setdefault("step", torch.ones((), dtype=COUNTER))
        if RESET in state and state[RESET] > state["step"]:
            raise BadValueError(
                f"state_dict has {RESET}={int(state[RESET])} for {where}, above its "
                f"step={int(state['step'])}"
            )
        if (product := record.product(state)) is not None:
            state[PRODUCT] = torch.tensor(product, dtype=torch.float32)
    for name in rule.states:
        if not isinstance(value := state.get(name), Tensor):
            continue
        if (q := record.choice(name, shapes.get(name)).quantizer) is None:
            continue
        step = int(state["step"])
        key = replace(record.key(name), step=step) if q.stochastic else None
        part = record.part(name)
        if part is not None and spans_shards(q.normalizer, part):
            (scales,) = shared_scales([Request.of(q.normalizer, value, part)])
            state[name] = q.quantize_scaled(value, scales.stored, key=key)
        else:
            state[name] = q.quantize_unchecked(value, key=key)
    return state


def _check_shape(
    value: Tensor | QuantizedTensor | Rows,
    name: str,
    where: str,
    param: Tensor,
    shape: tuple[int, ...],
) -> None:
    if tuple(value.shape) != shape:
        needed = "" if shape == tuple(param.shape) else f"; it must have shape {shape}"
        raise BadValueError(
            f"state_dict has {name} of shape {tuple(value.shape)} for {where} of shape "
            f"{tuple(param.shape)}{needed}"
        )


def _local(value: Tensor | QuantizedTensor | Rows, part: Shard | None) -> Tensor | QuantizedTensor:
    """The part of a saved state on this process; in float32 if blocks cannot keep their codes."""
    if isinstance(value, Rows):
        return _joined(value, part)
    if part is None:
        return value.full_tensor() if is_distributed(value) else value  # type: ignore[union-attr]
    if isinstance(value, QuantizedTensor):
        if part.by_rows and part.shape:
            return _joined(Rows.of(value).cut(part), part)
        return part.cut(value.dequantize()) if part.shape else value
    if is_distributed(value):
        placed: Tensor = value.redistribute(part.mesh, part.placements())  # type: ignore[attr-defined]
        # All of it is here if nothing is split; a process may have less (`Owned`).
        return local(placed) if part.groups() else part.cut(local(placed))
    return part.cut(value)


def _joined(rows: Rows, part: Shard | None) -> Tensor | QuantizedTensor:
    aligned = rows.aligned
    if part is not None and spans_shards(rows.quantizer.normalizer, part):
        # Encoding again uses collectives, so either all processes do it or no process does.
        flag = torch.tensor([0 if aligned else 1], dtype=torch.int32, device=rows.codes.device)
        aligned = not int(largest_bits([flag], part.groups())[0])
    return rows.joined() if aligned else rows.decoded()


def _master(value: Any, where: str, param: Tensor, group: Group) -> Tensor:
    """A parameter's master copy."""
    if not master_dtypes(param, group):
        kind = str(param.dtype).removeprefix("torch.")
        option = f"master_weights={group['master_weights']}"
        raise BadValueError(
            f"state_dict has a master copy of {where}, which is {kind} with {option} in this "
            "optimizer; only bfloat16 and float16 parameters with master_weights=True have master "
            "copies"
        )
    shard = shard_of(param)
    checked = _value(value, MASTER, where, shard)
    if not isinstance(checked, Tensor):
        raise BadTypeError(f"{MASTER} of {where} in state_dict is quantized; it must be float32")
    _check_shape(checked, MASTER, where, param, tuple(param.shape))
    part = _local(checked, shard)
    assert isinstance(part, Tensor)
    return part.to(param.device, torch.float32, copy=True, memory_format=torch.contiguous_format)


def _remainder(value: Any, where: str, param: Tensor, group: Group) -> Tensor:
    """The remainder of a parameter's master weights."""
    dtypes = master_dtypes(param, group)
    dtype = dtypes.get(REMAINDER)
    if MASTER in dtypes and param.dtype == torch.bfloat16:
        dtype = torch.int8 if getattr(value, "dtype", None) == torch.int8 else torch.int16
    if dtype is None:
        kind = str(param.dtype).removeprefix("torch.")
        option = f"master_weights={group['master_weights']!r}"
        raise BadValueError(
            f"state_dict has a remainder of master weights of {where}, which is {kind} with "
            f"{option} in this optimizer; only bfloat16 parameters with master_weights='bf16+8' or "
            "'bf16+16' have remainders"
        )
    name = str(dtype).removeprefix("torch.")
    readable = isinstance(value, Tensor) and not unsupported_reason(value)
    if not readable or value.dtype not in (dtype, torch.int32):
        kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        raise BadTypeError(f"{REMAINDER} of {where} in state_dict must be {name}, got {kind}")
    _check_shape(value, REMAINDER, where, param, tuple(param.shape))
    part = _local(value, shard_of(param))
    assert isinstance(part, Tensor)
    remainder = part.to(param.device, dtype, copy=True, memory_format=torch.contiguous_format)
    if not torch.equal(remainder.to(part.device, part.dtype), part):
        raise BadValueError(f"{REMAINDER} of {where} in state_dict has numbers outside {name}")
    return remainder


def _number(value: Any, name: str, where: str) -> float:
    number = value
    if isinstance(value, Tensor) and not unsupported_reason(value) and value.numel() == 1:
        number = value.item()
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise BadTypeError(
            f"the {name} of {where} in state_dict must be a number, got {type(value).__name__}"
        )
    return number


def _product(value: Any, where: str) -> Tensor:
    """NAdam's product of momenta."""
    number = _number(value, PRODUCT, where)
    if not 0 <= number <= 1:
        raise BadValueError(
            f"state_dict has {PRODUCT}={shown(number)} for {where}; it must be from 0 to 1"
        )
    return torch.tensor(number, dtype=torch.float32)


def _step(value: Any, where: str, *, on_host: bool) -> Tensor:
    number = _number(value, "step", where)
    if not 0 <= number <= MOST or number != int(number):
        raise BadValueError(
            f"state_dict has step={shown(number)} for {where}; a step must be an integer from 0 to "
            "2**53"
        )
    device = value.device if isinstance(value, Tensor) and not on_host else "cpu"
    return torch.tensor(number, dtype=COUNTER, device=device)


def _value(
    value: Any, name: str, where: str, part: Shard | None
) -> Tensor | QuantizedTensor | Rows:
    """A saved state, after checking its type."""
    if isinstance(value, Mapping):
        try:
            return read_rows(value, part) if "rows" in value else from_plain(value)
        except BadValueError as error:
            raise BadValueError(f"state_dict has an invalid {name} for {where}: {error}") from None
    if not isinstance(value, (Tensor, QuantizedTensor)):
        kind = type(value).__name__
        raise BadTypeError(f"{name} of {where} in state_dict must be a tensor, got {kind}")
    if isinstance(value, QuantizedTensor):
        return value
    strided = value.layout == torch.strided
    if strided and (why := unsupported_reason(value)):
        raise BadTypeError(
            f"{name} of {where} in state_dict {why}; expected a dense tensor with values"
        )
    if not (strided and value.is_floating_point()):
        kinds = value.dtype if strided else value.layout
        raise BadTypeError(
            f"{name} of {where} in state_dict must be a dense floating-point tensor, got {kinds}"
        )
    return value


def save_with_hooks(
    optimizer: torch.optim.Optimizer, saved: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Result of `saved`, or of the last hook with a result."""
    for before in optimizer._optimizer_state_dict_pre_hooks.values():
        before(optimizer)
    result = saved()
    for after in optimizer._optimizer_state_dict_post_hooks.values():
        changed = after(optimizer, result)
        result = result if changed is None else changed
    return result


def load_with_hooks(
    optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any], loading: Callable[[Any], None]
) -> None:
    """Call `loading` with the state_dict, or with its replacement by hooks.

    Raises:
        BadValueError: `loading` raised an error of any other kind than `QmapsError`.
    """
    saved: Any = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = before(optimizer, saved)
        saved = saved if changed is None else changed
    try:
        loading(saved)
    except (QmapsError, MemoryError, Warning):
        raise
    except Exception as error:  # the cause is kept in case it is an error of qmaps
        reason = f"{type(error).__name__}: {error}"
        raise BadValueError(f"the parts of state_dict do not fit together ({reason})") from error
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)
