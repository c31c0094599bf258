"""CRC-32 checksums of the files that qmaps writes, and how each kind of file carries them.

- A file that is read whole (JSON, Parquet) holds a seal: the checksum of all of its other bytes.
- A safetensors file, of which single tensors are read, has a checksum of each in its metadata.
- A file of ``torch.save`` is a zip archive, which has checksums; ``torch.load`` does not look at
  them.

Files of earlier versions have no seal and no such metadata, and are read without.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from qmaps.errors import BadValueError

SEAL = b"qmaps-crc32:"
UNSEALED = SEAL.decode() + "0" * 8
"""What a writer puts somewhere into a file, once, for `sealed` to fill in."""

KEY = "qmaps_crc32"
"""The metadata of a safetensors file that has its checksums."""

CHUNK = 2**18

FOLDER = 0x10
"""The attribute of folders in a zip archive."""


def sealed(content: bytes) -> bytes:
    """`content` with the checksum of everything else in the place of `UNSEALED`."""
    before, after = _around_seal(content)
    return before + _shown(zlib.crc32(after, zlib.crc32(before))).encode() + after


def intact(content: bytes) -> bool | None:
    """Whether the seal in `content` fits; None if there is none."""
    if SEAL not in content:
        return None
    before, after = _around_seal(content)
    found = content[len(before) : len(before) + 8]
    return found == _shown(zlib.crc32(after, zlib.crc32(before))).encode()


def of_tensor(tensor: Tensor) -> int:
    """The checksum of a tensor's elements, in row-major order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data)


def with_checksums(metadata: Mapping[str, str], tensors: Mapping[str, int]) -> dict[str, str]:
    """The metadata of a safetensors file with checksums, whose text is of the same length always.

    Args:
        metadata: what else it has; the first checksum is that of all of it.
        tensors: the checksum of each tensor.
    """
    own = [_of_metadata(metadata), *(tensors[name] for name in sorted(tensors))]
    return {**metadata, KEY: " ".join(map(_shown, own))}


def in_metadata(metadata: Mapping[str, str], tensors: Collection[str]) -> dict[str, int]:
    """The checksum of each tensor of a safetensors file; empty if it was written without.

    Raises:
        BadValueError: the metadata is damaged.
    """
    rest = {name: value for name, value in metadata.items() if name != KEY}
    if len(rest) > 1:  # we write one entry and the checksums, whose name may be what is damaged
        raise BadValueError(f"metadata of the name {sorted(rest)[1]!r:.50} is unknown")
    if KEY not in metadata:
        return {}
    first, *others = metadata[KEY].split(" ")
    if first != _shown(_of_metadata(rest)) or len(others) != len(tensors):
        raise BadValueError("the checksum of its metadata is wrong")
    try:
        return {name: int(text, 16) for name, text in zip(sorted(tensors), others, strict=True)}
    except ValueError:
        raise BadValueError("the checksums in its metadata are damaged") from None


def check_archive(path: Path) -> None:
    """Raise unless every record of a zip archive has its checksum, reading all of it once.

    Without checksums, as ``torch.serialization.set_crc32_options(False)`` writes archives, nothing
    is checked.

    Raises:
        zipfile.BadZipFile: and others, as `zipfile` does on damaged files.
    """
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        # One bit makes a record a folder, for which torch reads nothing and tells no one.
        if any(record.external_attr & FOLDER for record in records):
            raise zipfile.BadZipFile("a record is marked as a folder")
        if not any(record.CRC for record in records):
            return

        def read(record: zipfile.ZipInfo) -> None:
            with archive.open(record) as content:  # which compares the checksum at its end
                while content.read(CHUNK):
                    pass

        # Small records cost more to hand to a thread than to read.
        large = [record for record in records if record.file_size > CHUNK]
        for record in records:
            if record.file_size <= CHUNK:
                read(record)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            for _ in threads.map(read, large):
                pass


def _around_seal(content: bytes) -> tuple[bytes, bytes]:
    """What stands before and after the digits of the last seal."""
    start = content.rindex(SEAL) + len(SEAL)
    return content[:start], content[start + 8 :]


def _of_metadata(metadata: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(dict(metadata), sort_keys=True).encode())


def _shown(checksum: int) -> str:
    return f"{checksum:08x}"
