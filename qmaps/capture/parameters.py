"""Parameters of an optimizer or its state_dict: names, a choice of some, and steps taken."""

from __future__ import annotations

import fnmatch
import operator
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from qmaps.capture.coded_states import About, decoded_codes
from qmaps.capture.step_hooks import check_hooks, once_per_step
from qmaps.errors import BadTypeError, BadValueError, CaptureError, QmapsError, shown
from qmaps.normalize.block import MOST
from qmaps.optim.other_libraries import count_in

Parameters = str | Iterable[str] | Callable[[str], bool] | None
Names = torch.nn.Module | Iterable[tuple[str, Tensor]] | None


def labelled(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Yield name, parameter and group of each parameter of the current groups.

    Names are those of `names`, from `named`, else those in the optimizer's groups, else
    ``group0.param3``. The second parameter of a name is numbered, too.
    """
    seen = set()
    for number, group in enumerate(optimizer.param_groups):
        own_names = group.get("param_names")
        for position, parameter in enumerate(group["params"]):
            numbered = f"group{number}.param{position}"
            label = names.get(id(parameter))
            if label is None:
                label = own_names[position] if own_names else numbered
            if label in seen:  # torch lets groups that are added later repeat names
                label = numbered
            while label in seen:
                label += "'"
            seen.add(label)
            yield label, parameter, group


class Slot(NamedTuple):
    """A parameter of a state_dict; without a name its label is ``group0.param3``.

    `Lazy` stands in its state for codes of other packages (`qmaps.capture.coded_states`).
    """

    label: str
    name: str | None
    group: Mapping[str, Any]
    state: Mapping[Any, Any]


def slots(state_dict: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield every parameter of an optimizer's state_dict, in the order of its groups.

    Parts that do not fit together raise one of `qmaps.errors.DAMAGE`.
    """
    for number, group in enumerate(state_dict["param_groups"]):
        names = group.get("param_names") or ()
        for position, key in enumerate(group["params"]):
            name = str(names[position]) if position < len(names) else None
            if name is None and isinstance(key, str):  # keys of distributed checkpoints
                name = key
            state = state_dict["state"].get(key, {})
            if not isinstance(state, Mapping):
                raise TypeError
            state = decoded_codes(state, About(group, state_dict))
            yield Slot(name or f"group{number}.param{position}", name, group, state)


def of_no_parameter(state_dict: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the entries of `state` whose key is in no group, such as a count of all steps."""
    keys = {key for group in state_dict["param_groups"] for key in group["params"]}
    yield from ((key, value) for key, value in state_dict["state"].items() if key not in keys)


def check_unique(names: Iterable[str], owner: str, error: type[QmapsError] = CaptureError) -> None:
    """Raise if `owner`, as messages show it, has two parameters of one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise error(f"{owner} has two parameters named {name!r}; every name must be unique")


def check_text(names: Iterable[object], owner: str) -> None:
    """Raise if a parameter's name is no valid Unicode (a lone surrogate): frames cannot hold it."""
    for name in map(str, names):
        if name.encode(errors="replace").decode() != name:
            raise CaptureError(f"{owner} names a parameter {name!r}, which is no text in Unicode")


def integer(parameter: str, value: Any, smallest: int) -> int:
    """Return `value`, also NumPy's, as an int of at least `smallest`, or raise `BadValueError`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (RuntimeError, TypeError, ValueError):
        number = None
    if number is None or number < smallest:
        raise BadValueError(f"{parameter}={shown(value)} must be an int of at least {smallest}")
    if number > MOST:
        raise BadValueError(f"{parameter}={shown(value)} must be at most 2**53")
    return number


def members(value: Any) -> list[Any] | None:
    """Return the members of a collection; None if the value is not a collection."""
    try:
        return list(value)
    except (RuntimeError, TypeError):
        return None


def predicate(argument: str, chosen: Parameters) -> Callable[[str], bool]:
    """Return a function of a name: True if it is chosen."""
    if chosen is None:
        return lambda _: True
    if callable(chosen):
        return chosen
    patterns = [chosen] if isinstance(chosen, str) else members(chosen)
    if patterns is None:
        raise BadTypeError(
            f"{argument}={shown(chosen)} must be names or wildcards, or a function of a name"
        )
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise BadTypeError(
                f"{argument} must hold names or wildcards, got {shown(pattern)} among them"
            )
    # Equality first: a name may hold brackets, which are wildcards as well.
    return lambda name: name in patterns or any(fnmatch.fnmatchcase(name, p) for p in patterns)


def named(names: Names, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """Return names by the identity of the parameter; a shared parameter has its first name."""
    if names is None:
        return {}
    pairs = members(names.named_parameters() if isinstance(names, torch.nn.Module) else names)
    if pairs is None:
        kind = type(names).__name__
        raise BadTypeError(f"names must be a model or pairs of a name and a parameter, got {kind}")
    by_id: dict[int, str] = {}
    for pair in pairs:
        fits = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not fits or not isinstance(pair[0], str) or not isinstance(pair[1], Tensor):
            raise BadTypeError(
                "names must be a model or pairs of a name and a parameter, got "
                f"{type(pair).__name__} among them"
            )
        by_id.setdefault(id(pair[1]), pair[0])
    check_unique(by_id.values(), "names", BadValueError)
    if not any(id(p) in by_id for group in optimizer.param_groups for p in group["params"]):
        raise BadValueError(
            "names has none of the optimizer's parameters; pass the model that the optimizer trains"
        )
    return by_id


class Watcher:
    """Base of recorders and monitors: watches chosen parameters of an optimizer."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Parameters, names: Names
    ) -> None:
        check_hooks(optimizer)
        self.optimizer = optimizer
        # By identity: no removed parameter is kept alive.
        self._groups: list[list[int]] = []
        self._covered: dict[int, weakref.ref[Tensor]] = {}
        self._removed: dict[int, weakref.ref[Tensor]] = {}
        self._just_removed = False
        self._wanted = predicate("parameters", parameters)
        self._names = named(names, optimizer)
        self._told: set[str] = set()
        if next(self._chosen(), None) is None:
            labels = [label for label, _, _ in labelled(optimizer, self._names)]
            listed = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
            raise BadValueError(
                f"parameters={shown(parameters)} matches no parameter; the names are {listed}"
            )

    def _watch(
        self, *, before: Callable[[], None] | None = None, after: Callable[[], None]
    ) -> list[RemovableHandle]:
        """Call functions before and after each step of the optimizer."""
        self._check_covered()

        def begin() -> None:
            self._check_covered()
            if before is not None:
                before()

        return [
            self.optimizer.register_step_pre_hook(once_per_step(self.optimizer, begin)),
            self.optimizer.register_step_post_hook(once_per_step(self.optimizer, after)),
        ]

    def _check_covered(self) -> None:
        """Warn once if parameters were removed from the groups; raise if one comes back.

        Raises:
            CaptureError: a wrapper steps the optimizer in parts.
        """
        lists = [group["params"] for group in self.optimizer.param_groups]
        groups = [list(map(id, some)) for some in lists]
        self._just_removed = False
        if groups == self._groups:
            return
        now = {id(parameter): parameter for some in lists for parameter in some}
        owner, watcher = type(self.optimizer).__name__, type(self).__name__
        back = sum(1 for key, ref in self._removed.items() if key in now and ref() is now[key])
        if back:
            raise CaptureError(
                f"{owner}.step() has {back} of {len(now)} parameters that an earlier step left "
                f"out; {watcher} supports no wrappers that step an optimizer in parts, such as "
                "torch-optstate's"
            )
        removed = {key: ref for key, ref in self._covered.items() if key not in now}
        if removed:
            self._just_removed = True
            self._removed |= removed
            self._tell(
                "removed",
                f"{len(removed)} of {len(self._covered)} parameters were removed from the groups "
                f"of {owner}; {watcher} goes on without them from the next step on",
            )
        self._groups = groups
        self._covered = {key: weakref.ref(parameter) for key, parameter in now.items()}

    def close(self) -> None:
        """Stop watching; closing twice is allowed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as ours:
            if error is None:
                raise
            error.add_note(f"{type(self).__name__}: {ours}")  # it must not replace the block's

    def _chosen(self) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
        """Yield name, parameter and group of each chosen parameter of the current groups."""
        for label, parameter, group in labelled(self.optimizer, self._names):
            if self._wanted(label):
                yield label, parameter, group

    def _tell(self, topic: str, text: str) -> None:
        """Warn once about each topic."""
        if topic not in self._told:
            self._told.add(topic)
            warnings.warn(text, stacklevel=3)


class StepCount:
    """Counts the steps of an optimizer while it trains.

    The counts in the states are no substitute: they begin anew in layers trained later and in
    cleared states. `taken_before` returns the number of steps before the current states. It is
    called here, unless `start` is given, and after each `load_state_dict` with states.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        taken_before: Callable[[], int],
        start: int | None = None,
    ) -> None:
        # A CPUOffloadOptimizer skips a step where its host_optimizer does.
        self._optimizer = getattr(optimizer, "host_optimizer", optimizer)
        self._calls = self._last = 0
        self._begin(taken_before() if start is None else start)
        self._hook = optimizer.register_load_state_dict_post_hook(
            lambda loaded: self._begin(taken_before()) if loaded.state else None
        )

    @property
    def taken(self) -> int:
        """Number of steps without skipped ones; reading it waits for CUDA devices."""
        return self._calls - self._skipped()

    def add(self) -> None:
        """Count a call of ``optimizer.step()`` after its return, without waiting."""
        # A GradScaler sets it for optimizers that skip steps themselves, such as fused ones.
        overflow = getattr(self._optimizer, "found_inf", None)
        if hasattr(self._optimizer, "skipped_steps") or overflow is None or not bool(overflow):
            self._calls += 1

    def advance(self) -> int | None:
        """Count a call as `add` does; return the number of the step, None if it was skipped."""
        self.add()
        before, steps = self._last, self.taken
        self._last = steps
        return steps if steps > before else None

    def close(self) -> None:
        """Remove the hook; closing twice is allowed."""
        self._hook.remove()

    def _begin(self, steps: int) -> None:
        self._calls, self._last = steps + self._skipped(), steps

    def _skipped(self) -> int:
        skipped: int = getattr(self._optimizer, "skipped_steps", 0)
        return skipped


def state_counts(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, int]:
    """Return the steps of parameters with states by name, counted there or in their group."""
    counts: dict[str, int] = {}
    for label, parameter, group in labelled(optimizer, names):
        state: Any = optimizer.state.get(parameter)
        if not isinstance(state, Mapping) or not state:  # hooks may keep entries of another kind
            continue
        step = state.get("step")
        step = count_in(group) if step is None else step
        if isinstance(step, (int, float)) or (isinstance(step, Tensor) and step.numel() == 1):
            counts[label] = int(step)
    return counts
