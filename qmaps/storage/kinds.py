"""Kinds of files and folders that are no checkpoints of torch: so that a sound one is called so."""

from __future__ import annotations

import zipfile
from pathlib import Path

from qmaps.storage.files import exists

HDF5 = "an HDF5 file, such as Keras saves"
KERAS = "a model of Keras"
ORBAX = "a checkpoint of Orbax, which JAX uses"

BEGINNINGS = {
    b"GGUF": "a model in GGUF, of llama.cpp",
    b"\x89HDF\r\n\x1a\n": HDF5,
    b"\x93NUMPY": "an array of NumPy",
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a file compressed by gzip",
    b"\x28\xb5\x2f\xfd": "a file compressed by zstd",
    b"SQLite format 3\0": "a database of SQLite",
    b"{": "a JSON file",
    b"[": "a JSON file",
}
"""First bytes of a file."""

ENDINGS = {
    ".pdparams": "a model of Paddle",
    ".index": "an index of TensorFlow",
    ".ckpt.meta": "a graph of TensorFlow",
}
"""Ends of a file's name, where its first bytes say too little."""

MEMBERS = {
    "model.weights.h5": KERAS,
    ".npy": "a file of NumPy arrays, such as MLX and JAX save",
    "constants.pkl": "a TorchScript model",
}
"""Ends of the names of records in a zip archive."""

IN_FOLDERS = {
    "_CHECKPOINT_METADATA": ORBAX,
    "manifest.ocdbt": ORBAX,
    "*/manifest.ocdbt": ORBAX,
    "saved_model.pb": "a SavedModel of TensorFlow",
    "*.ckpt*.index": "a checkpoint of TensorFlow",
    "*.pdopt": "a folder of several optimizers of Paddle",
    "*.npz": "a folder of NumPy arrays, such as MLX and JAX save",
    "adapter_config.json": "an adapter of PEFT without an optimizer",
    "config.json": "a model of Hugging Face without an optimizer",
}
"""Files in a folder, as a pattern."""

ADVICE = (
    "which is not read; save the optimizer's state_dict() with torch, or its tensors in a "
    "safetensors file by the names PARAMETER.STATE, such as layer.weight.exp_avg"
)


def kind_of(path: Path) -> str | None:
    """Return what a file or folder is; None for a kind unknown here, or a checkpoint of torch."""
    if path.is_dir():
        return next((kind for name, kind in IN_FOLDERS.items() if any(path.glob(name))), None)
    for ending, kind in ENDINGS.items():
        if path.name.endswith(ending):
            return kind
    try:
        with path.open("rb") as file:
            begin = file.read(16)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            held = (k for end, k in MEMBERS.items() if any(name.endswith(end) for name in names))
            return next(held, None)
    except Exception:  # zipfile raises many kinds on damaged files
        return None
    if begin[8:9] == b"{" and begin[4:8] == bytes(4):  # a length in 8 bytes, then JSON
        return "a safetensors file, whose name must end with .safetensors"
    return next((kind for start, kind in BEGINNINGS.items() if begin.startswith(start)), None)


def refusal(path: Path) -> str | None:
    """Return the message for a file or folder of a known other kind; None for all else."""
    kind = kind_of(path) if exists(path) else None
    return kind and f"{str(path)!r} is {kind}, {ADVICE}"
