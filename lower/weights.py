"""Write constants as a safetensors file, streamed, each distinct tensor once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from egraph.errors import LowerError

ALIGNMENT_BYTES = 64
CHUNK_BYTES = 1 << 24
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""The format's names of element types."""


def write_weights(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name; arrays whose sizes keep the next one aligned come first."""
    order = sorted(tensors, key=lambda name: (tensors[name].nbytes % ALIGNMENT_BYTES != 0, -tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {}
    position = 0
    for name in order:
        array = tensors[name]
        if array.dtype.name not in NAMES:
            raise LowerError(f"a constant of type {array.dtype.name} cannot be stored as a weight", where=name)
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            _write_array(file, tensors[name])


def _write_array(file: BinaryIO, array: np.ndarray) -> None:
    # A mapped array of gigabytes is written in pieces, so that it is never in memory as a whole.
    flat = array.reshape(-1)
    step = max(1, CHUNK_BYTES // max(1, array.dtype.itemsize))
    for start in range(0, flat.size, step):
        piece = np.ascontiguousarray(flat[start : start + step])
        file.write(piece.view(np.uint8).data)
