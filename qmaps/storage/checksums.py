"""Checksums (XXH3, 64 bits) of the files of qmaps, and their places.

- A file read in one piece (JSON, Parquet) holds a seal: the checksum of all of its other bytes.
- A safetensors file has a checksum of each tensor in its metadata.
- A file of ``torch.save`` is a zip archive with CRC-32 checksums; ``torch.load`` ignores
  them.

Files of earlier versions have no seal and no such metadata; they are read without a check.
"""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING

import xxhash

from qmaps.errors import BadValueError

if TYPE_CHECKING:  # commands that read no tensor start without torch
    from torch import Tensor

DIGITS = 16
"""Hexadecimal digits of a checksum as text."""

SEAL = b"qmaps-xxh3:"
UNSEALED = SEAL.decode() + "0" * DIGITS
"""The placeholder that a writer puts into a file once, for `sealed` to fill in."""

KEY = "qmaps_xxh3"
"""The name of the checksums in the metadata of a safetensors file."""

CHUNK = 2**18

FOLDER = 0x10
"""The attribute of folders in a zip archive."""

LOCAL = struct.Struct("<26xHH")
"""The header before a record of a zip archive: the lengths of its name and its other fields."""

DIRECTORY = struct.Struct("<4s24xHHH12x")
"""A record's entry in the archive's directory: a mark, and the lengths of what follows it."""

CRC_IN_HEADER, CRC_IN_DIRECTORY = 14, 16
"""Where the checksum is in these two."""

CRC_BEHIND = 0x08
"""The flag of a record whose checksum is behind it and not in its header."""

BEHIND = b"PK\x07\x08"
"""What may stand before a checksum that is behind its record."""


def of(*content: bytes | memoryview) -> str:
    """The checksum of the concatenation of all parts, in hexadecimal."""
    digest = xxhash.xxh3_64()
    for part in content:
        digest.update(part)
    return digest.hexdigest()


def sealed(content: bytes) -> bytes:
    """`content` with the digits of `UNSEALED` replaced by the checksum of all other bytes."""
    before, after = _around_seal(content)
    return before + of(before, after).encode() + after


def intact(content: bytes) -> bool | None:
    """Return True if the seal in `content` is right; None if there is none."""
    if SEAL not in content:
        return None
    before, after = _around_seal(content)
    return content[len(before) : len(before) + DIGITS] == of(before, after).encode()


def of_tensor(tensor: Tensor) -> str:
    """The checksum of a tensor's elements, in row-major order."""
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return of(plain.reshape(-1).view(torch.uint8).numpy().data)


def with_checksums(metadata: Mapping[str, str], tensors: Mapping[str, str]) -> dict[str, str]:
    """Add the checksums of itself and of tensors to metadata; their number sets its length."""
    checksums = [_of_metadata(metadata), *(tensors[name] for name in sorted(tensors))]
    return {**metadata, KEY: " ".join(checksums)}


def in_metadata(metadata: Mapping[str, str], tensors: Collection[str]) -> dict[str, str]:
    """The checksum of each tensor of a safetensors file; empty if it was written without them."""
    entries = {name: value for name, value in metadata.items() if name != KEY}
    if len(entries) > 1:  # we write one entry and the checksums, whose name may be what is damaged
        raise BadValueError(f"the metadata has an unknown entry {sorted(entries)[1]!r:.50}")
    if KEY not in metadata:
        return {}
    first, *checksums = metadata[KEY].split(" ")
    if first != _of_metadata(entries) or len(checksums) != len(tensors):
        raise BadValueError("the checksum of its metadata is wrong")
    return dict(zip(sorted(tensors), checksums, strict=True))


def check_archive(path: Path | IO[bytes], *, large: bool = True) -> None:
    """Verify the checksums of a zip archive, without those of `large` records if it is False.

    Archives without checksums, as after ``torch.serialization.set_crc32_options(False)``, are not
    verified. `zipfile` may raise other errors than ``BadZipFile`` on damage.
    """
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        # One flipped bit turns a record into a folder, which torch silently skips.
        if any(record.external_attr & FOLDER for record in records):
            raise zipfile.BadZipFile("a record is marked as a folder")
        if not any(record.CRC for record in records):
            return

        def read(record: zipfile.ZipInfo) -> None:
            with archive.open(record) as content:  # reading to the end verifies the checksum
                while content.read(CHUNK):
                    pass

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            for _ in threads.map(read, (r for r in records if large or r.file_size <= CHUNK)):
                pass


def start_of(record: zipfile.ZipInfo, file: IO[bytes]) -> int:
    """Return the place of a record's first byte in its archive."""
    file.seek(record.header_offset)
    header = LOCAL.unpack(file.read(LOCAL.size))
    return record.header_offset + LOCAL.size + int(sum(header))  # its name and what pads it


def mend_archive(file: IO[bytes]) -> None:
    """Update the checksums of an uncompressed zip archive whose records were changed."""
    with zipfile.ZipFile(file) as archive:
        records, entry = archive.infolist(), archive.start_dir
    for record in records:
        file.seek(start_of(record, file))
        crc, size = 0, record.file_size
        while size and (content := file.read(min(CHUNK, size))):
            crc, size = zlib.crc32(content, crc), size - len(content)
        places = [entry + CRC_IN_DIRECTORY]
        if record.flag_bits & CRC_BEHIND:
            after = file.tell()
            marked = file.read(len(BEHIND)) == BEHIND
            places.append(after + len(BEHIND) * marked)
        else:
            places.append(record.header_offset + CRC_IN_HEADER)
        for place in places:
            file.seek(place)
            file.write(struct.pack("<I", crc))
        file.seek(entry)
        listed = DIRECTORY.unpack(file.read(DIRECTORY.size))
        entry += DIRECTORY.size + sum(listed[1:])


def _around_seal(content: bytes) -> tuple[bytes, bytes]:
    """The bytes before and after the digits of the last seal."""
    start = content.rindex(SEAL) + len(SEAL)
    return content[:start], content[start + DIGITS :]


def _of_metadata(metadata: Mapping[str, str]) -> str:
    return of(json.dumps(dict(metadata), sort_keys=True).encode())
