"""Studies: groups of trainings, a table of losses each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.losses.methods import CLASSES, NEAREST, STOCHASTIC, WIDTHS, MethodTrial
from benchmarks.trials import FULL
from qmaps.lab.workloads import Workload
from reproduction.tasks import TASKS
from reproduction.workloads.docstring_lm import DocstringLM

SEEDS = 8
FIRST = "B128/DE@4s"
"""The 4-bit paper's first moment."""
PAPER_8BIT = "B2048/DE@8s + B2048/DE@8u"


@dataclass(frozen=True)
class Row:
    """A training at the best rate of its group.

    Attributes:
        quantizer: quantizer of its `MethodTrial`.
        family: family of its `MethodTrial`; that of the group if empty.
        factor: times the best rate.
        changes: other options of the workload.
    """

    quantizer: str
    family: str = ""
    factor: float = 1.0
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Group:
    """A baseline with a tuned rate, and rows to compare with it.

    Attributes:
        judge: the model and the data, for tables.
        workload: the training; its rate is the first of the sweep.
        family: the baseline's optimizer, in 32 bits.
        rows: other trainings at the best rate of the baseline.
        n: micro-batches of a step; the workload's steps are then micro-batches.
        rate_seeds: seeds of the sweep.
    """

    judge: str
    workload: Workload
    family: str
    rows: tuple[Row, ...] = ()
    n: int = 1
    rate_seeds: int = 3

    def baseline(self, factor: float, seed: int) -> MethodTrial:
        """A run of the baseline at a multiple of the workload's rate."""
        return self.trial(Row(FULL, factor=factor), 1.0, seed)

    def trial(self, row: Row, best: float, seed: int) -> MethodTrial:
        """A run of a row, if the best rate is this multiple of the workload's."""
        rate = self.workload.lr * best * row.factor
        work = replace(self.workload, lr=rate, **dict(row.changes))
        return MethodTrial(self.judge, work, row.quantizer, seed, family=row.family or self.family,
                       n=self.n)  # fmt: skip


def _eight_bit_table_1() -> Iterator[Group]:
    """The optimizers of the 8-bit paper's Table 1.

    The paper keeps the options of public code. That of RoBERTa fine-tunes on GLUE with eps = 1e-6,
    betas of 0.9 and 0.98 and a weight decay of 0.1; all other groups have Adam's eps = 1e-8, as
    translation has. The study `eight-bit-figure-3` has the paper's options of language models.
    """
    work = TASKS["docstring-lm"]
    yield Group("docstring-lm", work, "AdamW", (Row(PAPER_8BIT),))
    glue = replace(work, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    yield Group("docstring-lm, eps 1e-6", glue, "AdamW", (Row(PAPER_8BIT),))
    yield Group("docstring-lm", work, "Adafactor")
    yield Group("docstring-lm", work, "Adam", (Row(PAPER_8BIT),))
    stable = replace(work, stable_embedding=True)  # type: ignore[call-arg]
    yield Group("docstring-lm, stable embedding", stable, "Adam", (Row(PAPER_8BIT),))
    yield Group("docstring-lm, stable embedding", stable, "Adafactor")
    yield Group("digits", replace(TASKS["digits"], lr=0.1), "Momentum", (Row("B2048/DE@8s"),))


def _eight_bit_figure_3() -> Iterator[Group]:
    """8 and 32 bits as one hyperparameter of the paper's base changes at a time."""
    work = DocstringLM(lr=3e-3, betas=(0.9, 0.995), eps=1e-7, stable_embedding=True)
    changed: list[dict[str, Any]] = [
        *({"betas": (beta1, 0.995)} for beta1 in (0.87, 0.93)),
        *({"betas": (0.9, beta2)} for beta2 in (0.99, 0.999)),
        *({"eps": eps} for eps in (1e-8, 1e-6)),
    ]
    rows = [
        *(Row(spec, factor=factor) for factor in (0.5, 1.0, 2.0) for spec in (FULL, PAPER_8BIT)),
        *(Row(spec, changes=tuple(options.items())) for options in changed
          for spec in (FULL, PAPER_8BIT)),
    ]  # fmt: skip
    yield Group("docstring-lm", work, "AdamW", tuple(rows))


def _four_bit_moments() -> Iterator[Group]:
    """The pairs of moments of the 4-bit paper's Tables 1 and 6, with Adam's eps."""
    seconds = ("B2048/DE", "B128/DE", "B128/DE+sr", "B2048/DE-0", "B128/DE-0", "rank1/DE-0",
               "rank1/linear")  # fmt: skip
    pairs = [f"{FIRST} + {_spec(second)}" for second in seconds]
    ones = ["B2048/DE@4s + 32bit", f"{FIRST} + 32bit", "32bit + rank1/linear@4u",
            "B128/DE@4s+sr + rank1/linear@4u"]  # fmt: skip
    factored = Row(f"{FIRST} + rank1/linear@4u", "AdamWFactor")
    rows = (*map(Row, [*pairs, *ones]), factored)
    yield Group("docstring-lm", TASKS["docstring-lm"], "AdamW", rows)
    stable = replace(TASKS["docstring-lm"], stable_embedding=True)  # type: ignore[call-arg]
    specs = [f"{FIRST} + {_spec(second)}" for second in ("B2048/DE", "B128/DE", "B2048/DE-0")]
    yield Group("docstring-lm, stable embedding", stable, "AdamW", tuple(map(Row, specs)))


def _four_bit_rates() -> Iterator[Group]:
    """Second moments with a zero, at the conditions of the 4-bit paper's Table 1.

    The paper fine-tunes with eps = 1e-6, a weight decay of 0.01, warm-up and a rate of 4e-5. Here
    are the best rate for 32 bits and smaller ones, and the best rate with eps = 1e-4. The states of
    a stable embedding stay in 32 bits.
    """
    zeros = [f"{FIRST} + {_spec(second)}" for second in ("B2048/DE", "B128/DE", "B128/DE+sr")]
    work = replace(TASKS["docstring-lm"], eps=1e-6, weight_decay=0.01)
    stable = replace(work, stable_embedding=True)  # type: ignore[call-arg]
    for name, workload, specs, divisors in (
        ("docstring-lm", work, zeros, (1, 4, 16, 64)),
        ("docstring-lm, stable embedding", stable, zeros[:2], (1, 16)),
    ):
        rows = [Row(spec, factor=1 / divisor) for divisor in divisors for spec in (FULL, *specs)]
        rows += [Row(spec, changes=(("eps", 1e-4),)) for spec in (FULL, *specs)]
        yield Group(name, workload, "AdamW", tuple(rows))


def _spec(second: str) -> str:
    plain, plus, rounding = second.partition("+")
    return f"{plain}@4u{plus}{rounding}"


STEPS = 200
"""Steps of every LPMM run, for any number of micro-batches."""


def _lpmm() -> Iterator[Group]:
    """LPMM-SGDM of 12, 10 and 8 bits, with as many steps for every N.

    The width is that of parameters; gradients and momentum have 8 bits. N is the number of
    micro-batches of a step.
    """
    for n in (1, 4):
        work = DocstringLM(batch_size=2, steps=STEPS * n, warmup_steps=20 * n, lr=0.0125)
        roundings = (NEAREST, STOCHASTIC) if n == 1 else (STOCHASTIC,)
        rows = [Row(f"{bits} {rounding}") for bits in (12, 10, 8) for rounding in roundings]
        yield Group("docstring-lm", work, "LPMM-SGDM", tuple(rows), n)


def _lpmm_adam() -> Iterator[Group]:
    """LPMM-Adam with 8 bits throughout: parameters, gradients and both moments."""
    yield Group("docstring-lm", TASKS["docstring-lm"], "LPMM-Adam", (Row("8 stochastic"),))


def _soap() -> Iterator[Group]:
    """SOAP, with betas of its own (0.95 and 0.95), and AdamW.

    In ``A | B + C`` A holds the first moment, B all averages and bases, C the second moment; in
    ``A + C`` A holds the averages and bases too.
    """
    first, eight, second = "B128/DE@4s", "B256/DE@8s", "B128/DE-0@4u"
    rows = (
        f"{eight} + B256/DE-0@8u",
        f"{first}+sr + {second}",
        f"{first} + {second}",
        f"{first} | B128/sqrt@4s + {second}",
        f"{first} | 32bit + {second}",
        f"{first} | {eight} + {second}",
        f"{first}+sr | {eight} + {second}",
        f"{eight} | {eight} + {second}",
        f"32bit | {first} + 32bit",
        "32bit | B64/sqrt@4s + 32bit",
        f"{first} | 32bit + 32bit",
        f"{first}+sr | 32bit + 32bit",
        f"32bit | 32bit + {second}",
        "32bit | 32bit + rank1/linear@4u",
    )
    work = TASKS["lm-tiny"]
    yield Group("lm-tiny", work, "AdamW")
    yield Group("lm-tiny", work, "SOAP", tuple(map(Row, rows)))


PARITY = (
    "Adam", "AdamW", "SGD", "Adafactor", "Lion", "LAMB", "RMSprop", "AdamWFactor", "Adagrad",
    "AdEMAMix", "SM3", "LARS",
)  # fmt: skip
"""Keys of `CLASSES`."""


def _parity() -> Iterator[Group]:
    """Twelve optimizers with the presets of 8 and 4 bits.

    The rate is tuned in 32 bits alone. Adam and AdamW have the 4-bit paper's pair too. Adafactor,
    which has no first moment here, keeps statistics of rows and columns in few bits whatever
    their size.
    """
    work = TASKS["docstring-lm"]
    for name in PARITY:
        widths = WIDTHS if name in ("Adam", "AdamW") else WIDTHS[:2]
        at_rate = replace(work, lr=work.lr * CLASSES[name].rate)
        yield Group("docstring-lm", at_rate, f"optim.{name}", tuple(map(Row, widths)), rate_seeds=2)


STUDIES = {
    "four-bit-moments": _four_bit_moments,
    "four-bit-rates": _four_bit_rates,
    "eight-bit-table-1": _eight_bit_table_1,
    "eight-bit-figure-3": _eight_bit_figure_3,
    "lpmm-adam": _lpmm_adam,
    "lpmm-sgdm": _lpmm,
    "soap": _soap,
    "parity": _parity,
}
"""Groups by study."""
