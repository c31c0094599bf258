"""Table 5: messages of the cluster: how many, how large, how late."""

from __future__ import annotations

import pandas as pd

import qmaps
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number
from reproduction.speedup import paper
from reproduction.speedup.write import read
from reproduction.verdict import beside

COMMAND = (
    "python -m reproduction.speedup --calibrate --nodes 1 --gpus-per-node 8 "
    "--out reports/speedup/measured"
)
TOLERANCE = 0.02
KB = 1024
"""Bytes of the paper's kB."""
OUTPUTS = 3072
"""Of the first fully connected layer."""
LARGEST = "activations of 12288"
WEIGHTS = 3 * 3 * 384 * 256
"""Of the largest convolution."""
UNSURE = " (?)"
"""The paper's own question mark, after the latency of its largest message."""
UNORDERED = tuple(f"{name} in {bits} bits" for name in ("size", "latency") for bits in (32, 8))
"""Larger messages take longer, whatever the network is: their order is no evidence."""
BITS = ("32 bits", "8 bits")
"""Of the paper's messages."""
QUANTIZERS = {f"{bits} bits": qmaps.quantizer(f"tensor/tree@{bits}s") for bits in (8, 4)}


def messages() -> dict[str, int]:
    """Messages of a node, with their numbers of elements."""
    nodes = paper.HARDWARE.nodes
    sent = {"gradient of conv 384-256": WEIGHTS // nodes}
    for row in paper.CLUSTER:
        sent[f"activations of {row.sub_batch}"] = row.sub_batch * paper.ALEXNET.features // nodes
    for samples in (128, 256):
        sent[f"fc 9216-3072 of {samples}"] = samples * OUTPUTS // nodes
    return sent


def printed() -> pd.DataFrame:
    """The paper's table: the inputs of the speed-up model, and the other rows."""
    columns = {"size": ("kB", "size_kb"), "latency": ("ms", "latency_ms")}
    cells = [
        (f"activations of {row.sub_batch}", f"{name} in {bits}", unit, number)
        for row in paper.CLUSTER
        for name, (unit, field) in columns.items()
        for bits, number in zip(BITS, getattr(row, field), strict=True)
    ]
    inputs = pd.DataFrame(cells, columns=["what", "quantity", "unit", "paper"])
    inputs["doubt"] = ""
    inputs["printed"] = inputs["paper"].map(number)
    unsure = inputs["paper"].eq(5) & inputs["unit"].eq("ms")
    inputs.loc[unsure, "printed"] += UNSURE
    inputs.loc[inputs["quantity"] == "size in 8 bits", "doubt"] = "sizes-of-4-bits"
    latest = (inputs["quantity"] == "latency in 8 bits") & (inputs["what"] == LARGEST)
    inputs.loc[latest, "doubt"] = "latency-of-12288"
    rows = pd.concat([published("8-bit-parallelism-2015", EXHIBIT.name), inputs])
    quantities = ["forward passes", *(f"{name} in {bits}" for name in columns for bits in BITS)]
    places = [
        (quantities.index(quantity), list(messages()).index(what))
        for quantity, what in zip(rows["quantity"], rows["what"], strict=True)
    ]
    return rows.iloc[sorted(range(len(rows)), key=places.__getitem__)].reset_index(drop=True)


def build(context: Context) -> Frames:
    """Passes and sizes by the speed-up model, times between two processes from the table read."""
    hardware, _ = read(context.file("speedup/measured/hardware.json", COMMAND))
    rows = []
    for what, count in messages().items():
        sizes = {"32 bits": 4 * count} | {k: q.nbytes((count,)) for k, q in QUANTIZERS.items()}
        rows += [
            {
                "what": what,
                "bits": bits,
                "numbers": count,
                "kb": nbytes / KB,
                "ms": hardware.network.ms(nbytes),
            }
            for bits, nbytes in sizes.items()
        ]
    samples = paper.HARDWARE.gpus * paper.ALEXNET.batch
    passes = [
        {"what": f"activations of {row.sub_batch}", "passes": samples // row.sub_batch}
        for row in paper.CLUSTER
    ]
    return {"messages": pd.DataFrame(rows), "passes": pd.DataFrame(passes)}


def find(frames: Frames) -> Finding:
    """Number by number, and the ratio of 8 bits to 32."""
    sent, passes = frames["messages"], frames["passes"]
    theirs = printed()
    ours = {
        (str(row.what), "forward passes"): float(str(row.passes)) for row in passes.itertuples()
    }
    for row in sent[sent["bits"].isin(BITS)].to_dict("records"):
        ours[row["what"], f"size in {row['bits']}"] = row["kb"]
        ours[row["what"], f"latency in {row['bits']}"] = row["ms"]
    sizes = theirs[theirs["quantity"].str.startswith("size")].pivot(
        index="what", columns="quantity", values="paper"
    )
    due = sent.pivot(index="what", columns="bits", values="kb")
    share = (due["8 bits"] / due["32 bits"]).max()
    claimed = (sizes["size in 8 bits"] / sizes["size in 32 bits"]).max()
    four = (due["4 bits"] / due["32 bits"]).max()
    return Finding(
        numbers=beside(theirs, ours, tolerance=TOLERANCE, unordered=UNORDERED),
        statements=[
            Claim(
                "An 8-bit message takes an eighth of a 32-bit one (by the sizes printed).",
                bool(abs(share - claimed) <= TOLERANCE * claimed),
                f"Printed are {number(claimed)} of it, due {number(share)}; 4 bits would take "
                f"{number(four)}.",
                doubt="sizes-of-4-bits",
            )
        ],
        why="Passes and sizes follow from the model: 96 GPUs of 128 samples, a node in 32 sends "
        "its part, a kB has 1024 bytes; the tolerance is 2 %. Latencies are inputs of the paper's "
        "model, read off charts of InfiniBand; ours are times of messages of the due size "
        "between two processes of one machine, for a look.",
        tables={"messages": sent},
    )


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="Messages of a cluster: forward passes, sizes and latencies",
    needs=Needs.REPORTS,
    timed="^latency",
    computed=("forward passes", "size in 32 bits", "size in 8 bits"),
    build=build,
    find=find,
    command=COMMAND,
)
