"""Read a safetensors file by mapping it: nothing is loaded before it is touched.

The format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runtime.dtypes import numpy_dtype
from runtime.errors import ArtefactError

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
LONGEST_HEADER = 100_000_000


class Weights(Mapping[str, np.ndarray]):
    """Read-only arrays by name, backed by the mapped file."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ArtefactError(f"the weights cannot be read: {error}", where=str(path), fix="optimise the model again") from error
        length = int.from_bytes(self._data[:8], "little")
        try:
            if not 0 < length <= min(LONGEST_HEADER, len(self._data) - 8):
                raise ValueError(f"header of {length} bytes in a file of {len(self._data)}")
            header = json.loads(self._data[8 : 8 + length])
            header.pop("__metadata__", None)
            self._arrays = {name: self._array(name, entry, 8 + length) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ArtefactError(f"the weights are damaged: {error}", where=str(path), fix="optimise the model again") from error

    def _array(self, name: str, entry: Mapping[str, Any], start: int) -> np.ndarray:
        dtype, shape = numpy_dtype(DTYPES[entry["dtype"]]), list(entry["shape"])
        first, last = entry["data_offsets"]
        count = int(np.prod(shape, dtype=np.int64))
        if last - first != count * dtype.itemsize or start + last > len(self._data):
            raise ValueError(f"tensor {name!r} does not fit its data")
        return np.frombuffer(self._data, dtype, count, start + first).reshape(shape)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
