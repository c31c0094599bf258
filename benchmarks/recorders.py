r"""Optimizers of other packages under the recorder, in checkpoints, in sweeps and after conversion.

``python -m benchmarks.recorders`` tries every optimizer class of `PACKAGES` in turn and writes
reports/recorders.{csv,md}. Run it in another environment, as none of these packages is a dependency
of qmaps:

    python -m venv /tmp/recorders
    /tmp/recorders/bin/pip install torch==2.13.0 ".[lab]" pytorch-optimizer==4.1.0 \
        heavyball==3.2.1 torch-optimi==0.3.3 schedulefree==1.4.1 absl-py
    /tmp/recorders/bin/pip install --no-deps timm==1.0.31
    /tmp/recorders/bin/pip install --no-deps --ignore-requires-python emerging-optimizers==0.3.0
    /tmp/recorders/bin/python -m benchmarks.recorders

timm's optimizers are imported without its models and their dependency torchvision.
emerging-optimizers asks for Python 3.12; on 3.11 it lacks only ``typing.override``, added here. A
missing package gets a line with the reason. ``torch.compile`` is switched off.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pkgutil
import signal
import sys
import tempfile
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import qmaps
from benchmarks.command import among, command_line, one_line_errors, study_options, written
from benchmarks.markdown import markdown, number
from benchmarks.process import in_fresh_process
from qmaps import optim
from qmaps.capture import StateRecorder, load
from qmaps.capture.coded_states import About, decoded_codes
from qmaps.capture.conversion import convert_state_dict
from qmaps.capture.snapshot import Lazy
from qmaps.errors import one_line
from qmaps.storage.files import output_folder

PACKAGES = {
    "pytorch-optimizer": "pytorch_optimizer",
    "timm": "timm.optim",
    "heavyball": "heavyball",
    "torch-optimi": "optimi",
    "emerging-optimizers": "emerging_optimizers",
    "schedulefree": "schedulefree",
}
"""The module of each package's optimizers."""

SIZES = (80, 96), (96,)
STEPS = 4
"""Recorded steps; one more is taken to compare."""
SPEC = "B256/DE@8s"
PAIR = "B256/DE@8s + B256/DE-0@8u"
LIMIT = 60
"""Timeout of a class in seconds."""
EQUAL = 1e-5
"""Largest difference of equal updates, as a share of the largest update."""
CONTINUED = {
    "adam": "AdamW",
    "ademamix": "AdEMAMix",
    "lion": "Lion",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adamwschedulefree": "AdamWScheduleFree",
    "adan": "Adan",
}
"""The optimizer of qmaps for a family of states, unless one has the name of the class."""
COLUMNS = ("recorded", "reloaded", "swept", "paired", "continued")
YES = "yes"

Params = list[torch.nn.Parameter]
Maker = Callable[[], torch.optim.Optimizer]


class OutOfTimeError(Exception):
    """A class took longer than `LIMIT`."""


def optimizers(module: str) -> dict[str, type[torch.optim.Optimizer]]:
    """The optimizer classes of a package by name, aliases left out."""
    _prepare(module)
    package = importlib.import_module(module)
    modules = [package]
    for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{module}."):
        with suppress(Exception):  # parts for hardware that is not here
            modules.append(importlib.import_module(info.name))
    top = module.partition(".")[0]
    classes: dict[str, type[torch.optim.Optimizer]] = {}
    for name, value in ((n, v) for part in modules for n, v in vars(part).items()):
        if not isinstance(value, type) or not issubclass(value, torch.optim.Optimizer):
            continue
        is_own = value.__module__.startswith(top) and not name.startswith("_")
        if is_own and value not in classes.values():
            classes.setdefault(name, value)
    return dict(sorted(classes.items(), key=lambda entry: entry[0].lower()))


def _prepare(module: str) -> None:
    """Make the optimizers of a package importable without its other dependencies."""
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    spec = importlib.util.find_spec("timm") if module.startswith("timm") else None
    if spec is not None:
        timm, models = types.ModuleType("timm"), types.ModuleType("timm.models")
        timm.__path__ = list(spec.submodule_search_locations or ())
        models.group_parameters = None  # type: ignore[attr-defined]
        sys.modules |= {"timm": timm, "timm.models": models}


def parameters() -> Params:
    """A matrix large enough to be quantized, and a vector."""
    draw = torch.Generator().manual_seed(0)
    # Small, so that rounding of parameters is small beside their updates.
    return [torch.nn.Parameter(0.01 * torch.randn(*size, generator=draw)) for size in SIZES]


def makers(cls: type[torch.optim.Optimizer], params: Params) -> Iterator[Maker]:
    """Ways to construct a class, the usual first."""
    lr = 1e-3
    momentum = inspect.signature(cls).parameters.get("momentum")
    if momentum is not None and momentum.default == 0:  # it has no states otherwise
        yield lambda: cls(params, lr=lr, momentum=0.9)  # type: ignore[call-arg]
    yield lambda: cls(params, lr=lr)  # type: ignore[call-arg]
    yield lambda: cls(params)  # type: ignore[call-arg]
    yield lambda: cls(torch.optim.AdamW(params, lr=lr))  # type: ignore[call-arg, arg-type]
    matrices = [{"params": params[:1], "use_muon": True}, {"params": params[1:], "use_muon": False}]
    yield lambda: cls(matrices, lr=lr)  # type: ignore[call-arg]
    yield lambda: cls(params, lr=lr, num_iterations=100)  # type: ignore[call-arg]
    yield lambda: cls(params, torch.optim.AdamW, lr=lr)  # type: ignore[call-arg, arg-type]
    yield lambda: cls(params[:1], lr=lr)  # type: ignore[call-arg]  # matrices alone
    model = torch.nn.Linear(80, 96)
    model.weight, model.bias = params
    yield lambda: cls(model, lr=lr)  # type: ignore[call-arg, arg-type]


def step(optimizer: torch.optim.Optimizer, params: Params, seed: int, way: str) -> None:
    """Take one step on a quadratic loss; `seed` changes the loss."""
    draw = torch.Generator().manual_seed(seed)
    pairs = [(p, *torch.randn(2, *p.shape, generator=draw)) for p in params]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([(c * (p - t).square()).sum() for p, c, t in pairs]).sum()
        loss.backward(create_graph=way == "graph")
        return loss

    torch.manual_seed(seed)
    if way == "closure":
        with torch.enable_grad():
            optimizer.step(closure)
    else:
        closure()
        optimizer.step()


def made(cls: type[torch.optim.Optimizer]) -> tuple[Maker, str]:
    """A way to construct a class on parameters of its own, and the way to step it.

    Raises:
        Exception: the error of the first way, if none works.
    """
    first: Exception | None = None
    for index in range(len(list(makers(cls, parameters())))):
        for way in ("plain", "closure", "graph"):
            params = parameters()
            try:
                _train(optimizer := list(makers(cls, params))[index]())
                trained = [p for group in optimizer.param_groups for p in group["params"]]
                for seed in range(2):
                    step(optimizer, trained, seed, way)
            except OutOfTimeError:
                raise
            except Exception as error:
                first = first or error
                continue
            return (lambda: list(makers(cls, parameters()))[index]()), way  # noqa: B023
    raise first or RuntimeError("no way to construct it")


def _train(optimizer: Any) -> None:
    """Switch an optimizer with modes to training mode."""
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()


def row(name: str, cls: type[torch.optim.Optimizer]) -> dict[str, str]:
    """Results of a class, a text for each of `COLUMNS`."""
    texts = {"class": name, "states": "", **dict.fromkeys(COLUMNS, "")}
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _limited(LIMIT):
                make, way = made(cls)
                optimizer = make()
                _train(optimizer)
                trained = [p for group in optimizer.param_groups for p in group["params"]]
                _try(texts, optimizer, trained, way, Path(folder))
        except Exception as error:
            column = next((c for c in COLUMNS if not texts[c]), COLUMNS[-1])
            texts[column] = _reason(error, "not constructed: " if column == "recorded" else "")
        return {key: text.replace(folder, "FOLDER") for key, text in texts.items()}


def _try(
    texts: dict[str, str], optimizer: torch.optim.Optimizer, params: Params, way: str, folder: Path
) -> None:
    states, checkpoint = folder / "states", folder / "optimizer.pt"
    texts["recorded"], captured = _recorded(optimizer, params, way, states)
    texts["states"] = captured
    texts["reloaded"] = _outcome(lambda: _reloaded(optimizer, params, checkpoint))
    texts["swept"] = _outcome(lambda: _swept(states)) if captured else "nothing was recorded"
    texts["paired"] = _outcome(lambda: _paired(states)) if captured else "nothing was recorded"
    texts["continued"] = _outcome(lambda: _continued(optimizer, params, way))


def _recorded(
    optimizer: torch.optim.Optimizer, params: Params, way: str, folder: Path
) -> tuple[str, str]:
    """Record `STEPS` steps, and name the states; the optimizer takes its steps in any case."""
    try:
        recorder = StateRecorder(optimizer, folder)
    except Exception as error:
        for seed in range(STEPS):
            step(optimizer, params, seed, way)
        return _reason(error), ""
    with recorder:
        for seed in range(STEPS):
            step(optimizer, params, seed, way)
    if not list(folder.glob("step-*")):
        return "no states of parameters", ""
    loaded = load(folder)
    names = [", ".join(loaded.states(name)) for name in loaded.parameters()]
    states = "; ".join(dict.fromkeys(names))
    if loaded.steps != list(range(1, STEPS + 1)):
        return f"steps {loaded.steps} of {STEPS}", states
    for name, value in _floats(optimizer, params):
        if not any(
            name in loaded.values(p)
            and loaded.shape(p, name) == tuple(value.shape)
            and torch.equal(loaded.tensor(p, name, check=False), value.float())
            for p in loaded.parameters()
        ):
            return f"without {name}", states
    return YES, states


def _floats(optimizer: torch.optim.Optimizer, params: Params) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of the states of floating-point numbers, those in known codes decoded."""
    for p in params:
        context = About(optimizer.param_groups[0], vars(optimizer), tuple(p.shape))
        for name, value in _members(dict(decoded_codes(optimizer.state.get(p, {}), context))):
            value = value.read() if isinstance(value, Lazy) else value
            is_tensor = isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0
            if is_tensor:
                yield name, value.detach()


def _members(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Members of dicts and lists in a state, by names joined with dots."""
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, (list, tuple)):
        entries = list(enumerate(value))
    else:
        yield name, value
        return
    for key, member in entries:
        yield from _members(member, f"{name}.{key}" if name else str(key))


def _reloaded(optimizer: torch.optim.Optimizer, params: Params, path: Path) -> str:
    """Load the optimizer's checkpoint, and compare step and states."""
    torch.save(optimizer.state_dict(), path)
    states = load(path)
    tensors = [t for _, _, t in states.items()]
    for name, value in _floats(optimizer, params):
        if not any(t.shape == value.shape and torch.equal(t, value.float()) for t in tensors):
            return f"without {name}"
    return YES if states.step == STEPS else f"step {states.step} of {STEPS}"


def _swept(folder: Path) -> str:
    loaded = load(folder)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        frame = qmaps.sweep.run(folder, SPEC)
    states = ", ".join(dict.fromkeys(frame["state"]))
    omitted = [str(w.message) for w in told if "left out" in str(w.message)]
    return f"{YES}: {states}" + (f"; left out: {', '.join(loaded.codes)}" if omitted else "")


def _paired(folder: Path) -> str:
    """The optimizer's names of the two moments of a pair."""
    states = load(folder)
    adam = states.as_adam()
    (name, *_) = adam.with_moments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = qmaps.sweep.run(folder, PAIR)
    updates = frame[frame["state"] == "update"]
    if not updates["mean_abs_error"].between(0, 1e3).all():
        return f"updates of {number(updates['mean_abs_error'].max())} from their own"
    places = dict(zip(adam.states(name), states.states(name), strict=True))
    return f"{YES}: {places['exp_avg']}, {places['exp_avg_sq']}"


def _continued(optimizer: torch.optim.Optimizer, params: Params, way: str) -> str:
    """Convert the states for qmaps, and compare its next update with the optimizer's."""
    converted, report = convert_state_dict(optimizer.state_dict(), "qmaps", states="32bit")
    kind = type(optimizer).__name__
    classes = [name for name, value in vars(optim).items() if isinstance(value, type)]
    same = [name for name in classes if name.lower() == kind.lower()]
    ours = same[0] if same else CONTINUED[report.optimizer]
    leaves = iter(p.detach().clone().requires_grad_() for p in params)
    groups = [[next(leaves) for _ in group["params"]] for group in optimizer.param_groups]
    copies = [torch.nn.Parameter(p) for group in groups for p in group]
    numbers = iter(copies)
    sizes = [len(group) for group in groups]
    again: Any = getattr(optim, ours)(
        [{"params": [next(numbers) for _ in range(size)]} for size in sizes], lr=1e-3
    )
    again.load_state_dict(converted)
    _train(again)
    before = [p.detach().clone() for p in params]
    step(optimizer, params, STEPS, way)
    step(again, copies, STEPS, "plain")
    updates = [(p - b, q - b) for p, q, b in zip(params, copies, before, strict=True)]
    largest = max(float(u.detach().abs().max()) for u, _ in updates)
    difference = max(float((u - v).detach().abs().max()) for u, v in updates)
    if difference <= EQUAL * largest:
        return f"{YES}: as {ours}"
    if not largest:
        return f"differs: the class took no step, and {ours} did"
    length = [
        sum(float(pair[i].detach().double().square().sum()) for pair in updates) for i in (0, 1)
    ]
    share, ratio = 100 * difference / largest, (length[1] / length[0]) ** 0.5
    return (
        f"differs: {ours} by {number(share)} % of the largest update; its update is "
        f"{number(ratio)} times as long"
    )


def _outcome(work: Callable[[], str]) -> str:
    """The text of some work, or of its error."""
    try:
        return work()
    except OutOfTimeError:
        raise
    except Exception as error:
        return _reason(error)


def _reason(error: Exception, prefix: str = "") -> str:
    text = one_line(str(error)) or "no message"
    is_ours = type(error).__module__.startswith("qmaps")
    return prefix + ("refused: " if is_ours else f"{type(error).__name__}: ") + text


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise OutOfTimeError(f"more than {seconds} seconds")

    earlier = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)


def of_package(package: str) -> dict[str, Any]:
    """The rows of a package, or the reason why there are none."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        version = importlib.metadata.version(package)
        classes = optimizers(PACKAGES[package])
    except Exception as error:
        return {"package": package, "reason": _reason(error), "rows": []}
    rows = [row(name, cls) for name, cls in classes.items()]
    return {"package": f"{package} {version}", "reason": "", "rows": rows}


def _short(text: str, length: int = 110) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def page(results: Sequence[dict[str, Any]], command: str) -> str:
    """The report."""
    lines = [
        "# Optimizers of other packages",
        "",
        f"`{command}`",
        "",
        f"Every optimizer class of six packages takes {STEPS} steps on a matrix and a vector, with "
        f"torch {torch.__version__}. Columns: `recorded`: `StateRecorder` wrote each step once, "
        "with the states as the optimizer had them. `reloaded`: `capture.load` read the same "
        "states and the step from `torch.save(optimizer.state_dict())`. `swept`: states that "
        f"`qmaps.sweep.run` measured with `{SPEC}`, and codes that it left out (states of at most "
        "4096 elements are never measured). `paired`: states that are both moments of the pair "
        f"`{PAIR}`, by names known to qmaps; other ones can be given by `moments`. `continued`: "
        "the state_dict was converted for qmaps in 32 bits, and the next update of the optimizer "
        f"of qmaps is that of the class (largest difference at most {EQUAL:g} of the largest "
        "update). Anything else is said; texts are "
        "cut here, and whole in recorders.csv. `refused` precedes an error of qmaps, any other "
        "name one of the package. Wrappers are constructed around torch's AdamW.",
        "",
    ]
    totals = []
    for result in results:
        rows = [r for r in result["rows"] if not r["recorded"].startswith("not constructed")]
        counts = [sum(r[c].partition(":")[0] == YES for r in rows) for c in COLUMNS]
        refused = sum(r["continued"].startswith("refused") for r in rows)
        differs = sum(r["continued"].startswith("differs") for r in rows)
        tried = (len(result["rows"]), len(rows), *counts, differs, refused)
        totals.append((result["package"], *map(str, tried)))
    head = ("package", "classes", "constructed", *COLUMNS, "differs", "conversion refused")
    lines += [*markdown(head, totals), ""]
    lines += [f"{r['package']} was not tried: {r['reason']}." for r in results if r["reason"]]
    for result in results:
        if result["rows"]:
            table = [(f"`{r['class']}`", *(_short(r[c]) for c in COLUMNS)) for r in result["rows"]]
            lines += ["", f"## {result['package']}", "", *markdown(("class", *COLUMNS), table)]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Try all classes, and write the report."""
    parser = study_options("benchmarks.recorders", __doc__)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), help="default: all")
    parser.add_argument("--one", metavar="PACKAGE", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(of_package(options.one)))
        return 0
    among(parser, "package", options.packages, list(PACKAGES))
    output_folder(options.out)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    results = []
    for package in options.packages:
        print(package, file=sys.stderr, flush=True)
        results.append(in_fresh_process("benchmarks.recorders", "--one", package))
    frame = pd.DataFrame(
        [{"package": result["package"], **r} for result in results for r in result["rows"]]
    )
    text = page(results, command_line("benchmarks.recorders", argv))
    return written(options.out, "recorders", text, frame)


if __name__ == "__main__":
    sys.exit(main())
