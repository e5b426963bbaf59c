"""Element types: their names here, in numpy, in DLPack, in ONNX and in onnxruntime's type strings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.errors import ExecutionError


@dataclass(frozen=True)
class ElementType:
    """One element type. ``dlpack_code`` and ``onnx_code`` are the numbers of those standards; ``size_bytes`` is an element's size in numpy
    and ml_dtypes, at least one byte."""

    name: str
    ort_name: str
    onnx_code: int
    dlpack_code: int
    size_bytes: int


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6

ELEMENT_TYPES = {
    element.name: element
    for element in (
        ElementType("float32", "float", 1, _FLOAT, 4),
        ElementType("uint8", "uint8", 2, _UINT, 1),
        ElementType("int8", "int8", 3, _INT, 1),
        ElementType("uint16", "uint16", 4, _UINT, 2),
        ElementType("int16", "int16", 5, _INT, 2),
        ElementType("int32", "int32", 6, _INT, 4),
        ElementType("int64", "int64", 7, _INT, 8),
        ElementType("string", "string", 8, _UINT, 8),
        ElementType("bool", "bool", 9, _BOOL, 1),
        ElementType("float16", "float16", 10, _FLOAT, 2),
        ElementType("float64", "double", 11, _FLOAT, 8),
        ElementType("uint32", "uint32", 12, _UINT, 4),
        ElementType("uint64", "uint64", 13, _UINT, 8),
        ElementType("complex64", "complex64", 14, _COMPLEX, 8),
        ElementType("complex128", "complex128", 15, _COMPLEX, 16),
        ElementType("bfloat16", "bfloat16", 16, _BFLOAT, 2),
        ElementType("float8_e4m3fn", "float8e4m3fn", 17, _UINT, 1),
        ElementType("float8_e4m3fnuz", "float8e4m3fnuz", 18, _UINT, 1),
        ElementType("float8_e5m2", "float8e5m2", 19, _UINT, 1),
        ElementType("float8_e5m2fnuz", "float8e5m2fnuz", 20, _UINT, 1),
        ElementType("uint4", "uint4", 21, _UINT, 1),
        ElementType("int4", "int4", 22, _INT, 1),
        ElementType("float4_e2m1fn", "float4e2m1", 23, _UINT, 1),
        ElementType("float8_e8m0fnu", "float8e8m0", 24, _UINT, 1),
        ElementType("uint2", "uint2", 25, _UINT, 1),
        ElementType("int2", "int2", 26, _INT, 1),
    )
}
PACKED_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}
"""Types of which onnxruntime stores several elements in a byte, the first one lowest, and their widths in bits."""
NUMPY_NATIVE = frozenset(
    name for name in ELEMENT_TYPES if name != "string" and name not in PACKED_BITS and not name.startswith(("bfloat", "float8"))
)


def element_type(name: str) -> ElementType:
    """Return an element type by name; raise an error if the name is unknown."""
    if name not in ELEMENT_TYPES:
        raise ExecutionError(f"unknown element type {name!r}", fix="optimise the model again with this version")
    return ELEMENT_TYPES[name]


def numpy_dtype(name: str) -> np.dtype:
    """Return the numpy dtype; types that numpy lacks come from ml_dtypes if it is installed, else as their bits."""
    if name == "string":
        return np.dtype(np.object_)
    if name in NUMPY_NATIVE:
        return np.dtype(name)
    try:
        import ml_dtypes  # only programs with these types need it
    except ImportError:
        return np.dtype(f"uint{8 * element_type(name).size_bytes}")
    dtype: np.dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype


def ort_type(name: str) -> str:
    """Return onnxruntime's spelling, as ``tensor(float)``; other names are returned unchanged."""
    return f"tensor({ELEMENT_TYPES[name].ort_name})" if name in ELEMENT_TYPES else name
