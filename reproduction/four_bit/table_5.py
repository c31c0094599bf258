"""Table 5: the largest model for training."""

from __future__ import annotations

from reproduction import max_model_size
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Frames, Needs


def build(context: Context) -> Frames:
    """With the paper's 4-bit states."""
    return max_model_size.build("4-bit-optimizers", EXHIBIT.name, "paper-4bit", context)


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="The largest model that can be trained in a GPU's memory",
    needs=Needs.NOTHING,
    source="shapes of published models, and one step of small ones",
    build=build,
    find=max_model_size.find,
)
