"""One file per format."""

from qmaps.capture.conversion.formats.base import Format
from qmaps.capture.conversion.formats.bitsandbytes_ import BitsAndBytes
from qmaps.capture.conversion.formats.qmaps_ import Qmaps
from qmaps.capture.conversion.formats.torch_ import Torch
from qmaps.capture.conversion.formats.torchao_ import TorchAO

FORMATS: dict[str, Format] = {
    known.name: known for known in (BitsAndBytes(), TorchAO(), Qmaps(), Torch())
}
"""By name; a state_dict is of the first that recognizes it."""

__all__ = ["FORMATS", "Format"]
