"""Table 2: the largest model for fine-tuning."""

from __future__ import annotations

from reproduction import max_model_size
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Frames, Needs


def build(context: Context) -> Frames:
    """With the paper's 8-bit states."""
    return max_model_size.build("8-bit-optimizers", EXHIBIT.name, "paper-8bit", context)


EXHIBIT = Exhibit(
    name="table-2",
    covers=("Table 2",),
    title="The largest model that can be fine-tuned in a GPU's memory",
    needs=Needs.NOTHING,
    source="shapes of published models, and one step of small ones",
    build=build,
    find=max_model_size.find,
)
