"""One file per format."""

from qmaps.capture.convert.formats.base import Format
from qmaps.capture.convert.formats.bitsandbytes_ import BitsAndBytes
from qmaps.capture.convert.formats.qmaps_ import Qmaps
from qmaps.capture.convert.formats.torch_ import Torch
from qmaps.capture.convert.formats.torchao_ import TorchAO

FORMATS: dict[str, Format] = {
    known.name: known for known in (BitsAndBytes(), TorchAO(), Qmaps(), Torch())
}
"""By name; a state_dict is of the first that recognizes it."""

__all__ = ["FORMATS", "Format"]
