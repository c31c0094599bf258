"""Distance of estimated quantiles from those of a full sort.

``python -m benchmarks.quantile_accuracy`` writes reports/quantile-accuracy.md. All engines give the
same bits, so the numbers do not depend on the device.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.data import generator
from qmaps import quantiles
from qmaps.errors import QmapsError
from reproduction.report_file import write_report

NUM = 256
METHODS = (quantiles.exact, quantiles.sram)
COLUMNS = 768


def normal(n: int) -> Tensor:
    return torch.randn(n, generator=generator())


def heavy_tailed(n: int) -> Tensor:
    """Student's t with two degrees of freedom."""
    squares = torch.randn(2, n, generator=generator(1)).square().mean(0)
    return normal(n) / squares.sqrt()


def lognormal(n: int) -> Tensor:
    return (2 * normal(n)).exp()


def second_moments(n: int) -> Tensor:
    """Squares, as of gradients, whose scale differs from row to row by some orders."""
    rows = -(-n // COLUMNS)
    scales = torch.randn(rows, 1, generator=generator(1)).mul(1.5).exp()
    return 1e-8 * (normal(rows * COLUMNS).view(rows, COLUMNS) * scales).square().view(-1)[:n]


def few_values(n: int) -> Tensor:
    """The normal numbers rounded to sixteenths."""
    return (16 * normal(n)).round() / 16


def ordered(n: int) -> Tensor:
    """The normal numbers in ascending order: no chunk is like another."""
    return normal(n).sort().values


DISTRIBUTIONS: dict[str, Callable[[int], Tensor]] = {
    "normal": normal,
    "Student's t, 2 degrees of freedom": heavy_tailed,
    "log-normal, sigma 2": lognormal,
    "second moments, a scale for each row": second_moments,
    "normal, rounded to 1/16": few_values,
    "normal, sorted": ordered,
}


def errors(estimated: Tensor, ascending: Tensor) -> dict[str, float]:
    """Of quantiles at the default levels.

    Args:
        estimated: float32 of shape (NUM,).
        ascending: all elements in order.

    Returns:
        Mean and maximum of the distance in rank, as a share of the elements, to the nearest
        element or gap that equals the quantile, and of the distance in value as a share of the
        quantile; and the root mean square of the latter distance over that of the quantiles.
    """
    n = ascending.numel()
    position = (torch.arange(NUM, dtype=torch.float64) + 0.5) / NUM * (n - 1)
    below = position.long()
    above = (below + 1).clamp(max=n - 1)
    low, high = ascending[below].double(), ascending[above].double()
    expected = (low + (high - low) * (position - below)).float()
    first = torch.searchsorted(ascending, estimated) - 1
    last = torch.searchsorted(ascending, estimated, right=True)
    ranks = torch.maximum(first - position, position - last).clamp(min=0) / n
    apart = (estimated.double() - expected.double()).abs()
    size = expected.double().abs()
    relative = torch.where(apart == 0, apart, apart / size)
    return {
        "mean rank error": ranks.mean().item(),
        "largest rank error": ranks.max().item(),
        "median relative error": relative.median().item(),
        "RMS error over RMS": (apart.square().sum() / size.square().sum()).sqrt().item(),
    }


def table(elements: int, device: str) -> list[str]:
    """Rows of Markdown: each method on each distribution."""
    lines = []
    for name, make in DISTRIBUTIONS.items():
        x = make(elements)
        ascending = x.sort().values
        on_device = x.to(device)
        for method in METHODS:
            measured = errors(method(on_device, NUM).cpu(), ascending)
            if not lines:
                lines = [
                    f"| data | method | {' | '.join(measured)} |",
                    f"|---|---|{'---:|' * len(measured)}",
                ]
            numbers = " | ".join(f"{value:.1e}" if value else "0" for value in measured.values())
            lines.append(f"| {name} | `{method.__name__}` | {numbers} |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantile_accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where quantiles are found (default: cuda where there is one, else cpu)",
    )
    parser.add_argument("--elements", type=int, default=1 << 22, help="of each tensor")
    parser.add_argument("--out", type=Path, default=Path("reports/quantile-accuracy.md"))
    options = parser.parse_args(argv)
    if options.elements < NUM:
        parser.error(f"--elements={options.elements} must be at least {NUM}")
    command = shlex.join(["python", "-m", "benchmarks.quantile_accuracy", *argv])
    lines = [
        f"# {NUM} quantiles beside those of a full sort",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, device {options.device}; "
        f"{options.elements:,} elements, `sram` with chunks of 4096.",
        "",
        "The rank error is the share of the elements that lie between an estimate and the level it "
        f"stands for; levels are {1 / NUM:.1e} apart. Where values repeat, an estimate just beside "
        "one is as far off as that value is frequent. The other errors are those of the values. "
        "`sram` averages the quantiles of chunks: it is close where chunks are alike, and biased "
        "where they are not.",
        "",
        *table(options.elements, options.device),
    ]
    try:
        write_report(options.out, "\n".join(lines) + "\n")
    except QmapsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out} is written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
