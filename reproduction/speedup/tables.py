"""The paper's tables, as printed and as the model returns them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from reproduction.speedup import paper
from reproduction.speedup.model import FULL, predict

if TYPE_CHECKING:
    import pandas as pd

KINDS = (FULL, "8-bit")
LIMIT = 0.02
"""Tolerance of the model; numbers off by less than half the last printed digit agree too."""

Line = tuple[str, str, str, str, str, float]


def agrees(printed: str, model: float) -> bool:
    """True if `model` is within 2 % of a printed number, or half a unit of its last digit.

    >>> agrees("1.3", 1.26), agrees("1.3", 1.36), agrees("499", 490)
    (True, False, True)
    """
    value = float(printed)
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    return abs(model - value) <= max(LIMIT * value, half * (1 + 1e-9))


def tables() -> pd.DataFrame:
    """All computed numbers of Tables 1, 3, 4, 6 and 7.

    Table 6's full passes, and Tables 1 and 7, are made from the printed single passes of Table 6.
    "6 from 5" makes those, too, from Table 5's sizes and latencies (`Hardware.message_ms`), with
    the latencies of `paper.READ_LATENCY_MS`.

    Returns:
        `table`, `row`, `quantity`, `messages` ("32-bit" or "8-bit"), `printed` (text), `model`
        (float), `off_percent`, `agrees` (within 2 % or half a unit of the last digit).
    """
    import pandas as pd

    names = ("table", "row", "quantity", "messages", "printed", "model")
    lines = [*_one(), *_three(), *_four(), *_cluster(), *_single_passes()]
    frame = pd.DataFrame(lines, columns=list(names))
    frame["off_percent"] = 100 * (frame["model"] / frame["printed"].astype(float) - 1)
    frame["agrees"] = [agrees(*pair) for pair in zip(frame["printed"], frame["model"], strict=True)]
    return frame


def _one() -> Iterator[Line]:
    for kind, printed in paper.FOUR_GPUS_PRINTED.items():
        yield "1", "4 GPUs, 128", "speed-up", kind, printed, paper.FOUR_GPUS.speedup(kind)
    measured = replace(paper.FOUR_GPUS, single_ms=paper.CONVNET2_MS)
    quantity = "speed-up, convnet2, as measured"
    yield "A.1.3", "4 GPUs, 128", quantity, FULL, paper.KRIZHEVSKY, measured.speedup(FULL)


def _three() -> Iterator[Line]:
    for name, megabytes, messages, *printed in paper.TRANSFERS:
        for kind, text, share in zip(KINDS, printed, (1, 0.25), strict=True):
            model = messages * paper.HARDWARE.local.ms(share * megabytes * 1e6)
            if text:
                yield "3", name, "synchronization, ms", kind, text, model


def _four() -> Iterator[Line]:
    node = paper.FOUR_GPUS
    yield "4", "fully connected, baseline", "ms", FULL, "6.5", node.baseline_fc_ms
    yield "4", "fully connected, parallel", "ms", FULL, "3.34", node.parallel_fc_ms
    layers = sum(map(sum, paper.CONVOLUTIONS_MS)) + node.baseline_fc_ms
    yield "4", "all layers", "ms", FULL, "104.1", layers


def _cluster() -> Iterator[Line]:
    for row in paper.CLUSTER:
        name = f"96 GPUs, {row.sub_batch}"
        for kind, number in zip(KINDS, range(2), strict=True):
            single = float(row.single[number])
            alexnet, convnet2 = (
                predict(job, paper.HARDWARE, row.sub_batch, single_ms=single)
                for job in (paper.ALEXNET, paper.CONVNET2)
            )
            yield "1", name, "speed-up", kind, row.nervana[number], alexnet.speedup
            yield "6", name, "full pass, ms", kind, row.full[number], alexnet.full_ms
            yield "6", name, "total, ms", kind, row.total[number], alexnet.total_ms
            yield "7", name, "speed-up, NervanaGPU", kind, row.nervana[number], alexnet.speedup
            yield "7", name, "speed-up, convnet2", kind, row.convnet2[number], convnet2.speedup


def _single_passes() -> Iterator[Line]:
    hardware = paper.HARDWARE
    for row in paper.CLUSTER:
        latencies = paper.READ_LATENCY_MS.get(row.sub_batch, row.latency_ms)
        for kind, number in zip(KINDS, range(2), strict=True):
            link = replace(hardware.network, latency_ms=((0.0, latencies[number]),))
            numbers = row.sub_batch * paper.ALEXNET.features // hardware.nodes
            # Table 5's 8-bit messages are an eighth of its 32-bit ones.
            sent = numbers if number == 0 else numbers // 8
            model = replace(hardware, network=link).message_ms(sent, None)
            name = f"96 GPUs, {row.sub_batch}"
            yield "6 from 5", name, "single pass, ms", kind, row.single[number], model
