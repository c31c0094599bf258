"""Table 5: the largest model that can be trained."""

from __future__ import annotations

from reproduction import largest
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Frames, Needs


def build(context: Context) -> Frames:
    """With the paper's 4-bit states."""
    return largest.build("4-bit-optimizers", EXHIBIT.name, "paper-4bit", context)


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="The largest model that can be trained in a GPU's memory",
    needs=Needs.NOTHING,
    source="shapes of published models, and one step of small ones",
    build=build,
    find=largest.find,
)
