"""One file per format."""

from qmaps.convert.formats.base import Format
from qmaps.convert.formats.bitsandbytes_ import BitsAndBytes
from qmaps.convert.formats.qmaps_ import Qmaps
from qmaps.convert.formats.torch_ import Torch
from qmaps.convert.formats.torchao_ import TorchAO

FORMATS: dict[str, Format] = {
    known.name: known for known in (BitsAndBytes(), TorchAO(), Qmaps(), Torch())
}
"""By name; a state_dict is of the first that recognizes it."""

__all__ = ["FORMATS", "Format"]
