"""The places of an exported model's constants: in the model, streamed into a file beside it, or separately in memory."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx

from egraph.onnx.types import array_type, element_type, to_tensor

ALIGNMENT_BYTES = 4096
INLINE_BYTES = 1024
"""Tensors up to this size in bytes always stay in the model, because shape inference and people read them."""
CHUNK_ELEMENTS = 1 << 22


class Inline:
    """Keep every constant in the model."""

    def tensor(self, array: np.ndarray, name: str) -> onnx.TensorProto:
        return to_tensor(array, name)


class External:
    """Stream constants into one file, aligned so that they can be memory-mapped."""

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file, self._location = file, location

    def tensor(self, array: np.ndarray, name: str) -> onnx.TensorProto:
        """Write the data and return a tensor that refers to it."""
        dtype = array_type(array).dtype
        if array.nbytes <= INLINE_BYTES or dtype == "string" or array.dtype.itemsize * array.size != array.nbytes or "4" in dtype[:6]:
            return to_tensor(array, name)
        offset = -(-self._file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._file.write(b"\0" * (offset - self._file.tell()))
        flat = array.reshape(-1)
        for start in range(0, flat.size, CHUNK_ELEMENTS):  # in chunks, so that a memory map may be larger than memory
            part = np.ascontiguousarray(flat[start : start + CHUNK_ELEMENTS])
            self._file.write(part.view(np.uint8).data)
        return _elsewhere(array, name, self._location, offset)


class Apart:
    """Keep large constants out of the model, for a session that receives them: they are neither copied nor written."""

    def __init__(self) -> None:
        self.constants: dict[str, np.ndarray] = {}

    def tensor(self, array: np.ndarray, name: str) -> onnx.TensorProto:
        """Return a tensor that names a kept array. Small arrays, and those of element types that numpy lacks, are stored in the model."""
        if array.nbytes <= INLINE_BYTES or not array.dtype.isbuiltin or array.dtype.kind not in "biuf":
            return to_tensor(array, name)
        self.constants[name] = np.ascontiguousarray(array)
        return _elsewhere(array, name, "memory", 0)


Store = Inline | External | Apart


def _elsewhere(array: np.ndarray, name: str, location: str, offset_bytes: int) -> onnx.TensorProto:
    """Return a tensor that states where its data is."""
    data_type = element_type(array_type(array).dtype)
    proto = onnx.TensorProto(name=name, data_type=data_type, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset_bytes), ("length", array.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto


def total_bytes(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def beside(path: Path) -> Path:
    """Return the name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.partial")
