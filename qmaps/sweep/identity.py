"""Identity of the states of a sweep, found without reading them where possible."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from qmaps.capture import CapturedStates, snapshot
from qmaps.storage import checksums


def digest_of(states: CapturedStates) -> str:
    """A digest of what the states hold.

    A snapshot has checksums of its tensors, and a file of ``torch.save`` the CRC-32 of each
    record, so their digest is one of these. All other states are read.

    Args:
        states: states from anywhere.

    Raises:
        CaptureError: states that had to be read hold NaN or infinity, or cannot be read.
    """
    source = Path(states.source)
    if source.is_file():
        if source.suffix == ".safetensors" and checksums.KEY in snapshot.metadata(source):
            return snapshot.digest(source)
        if zipfile.is_zipfile(source):
            return _digest_of_zip(source)
    return states.fingerprint()


def _digest_of_zip(path: Path) -> str:
    with zipfile.ZipFile(path) as file:
        records = sorted((info.filename, info.file_size, info.CRC) for info in file.infolist())
    return hashlib.sha256(json.dumps(records).encode()).hexdigest()
