"""Conversion of types and tensors between ONNX and this package.

Values that are not dense tensors keep a readable element type: ``seq(float32)``, ``optional(int64)``,
``map(int64,float32)``, ``sparse(float32)``; they only occur between opaque nodes.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np
import onnx
from onnx import helper, numpy_helper

from egraph.errors import ModelError
from egraph.tensor import Dim, Node, TensorType, numpy_dtype

_NESTED = re.compile(r"^(seq|optional|sparse)\((.*)\)$")
_MAP = re.compile(r"^map\((\w+),(.*)\)$")


def dtype_name(element: int) -> str:
    """Return the package's name of an ONNX element type: 1 -> 'float32'."""
    if element == onnx.TensorProto.STRING:
        return "string"
    if element == onnx.TensorProto.UNDEFINED:
        return "undefined"
    try:
        return str(helper.tensor_dtype_to_np_dtype(element).name)
    except KeyError as error:
        raise ModelError(f"there is no element type {element}", fix="export the model again, or pip install --upgrade onnx") from error


def element_type(name: str) -> int:
    """Return the ONNX element type of a name: 'float32' -> 1."""
    if name == "string":
        return int(onnx.TensorProto.STRING)
    if name == "undefined":
        return int(onnx.TensorProto.UNDEFINED)
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(name)))


def is_tensor(type: TensorType) -> bool:
    """Return whether a value of this type is a dense tensor of a known element type."""
    return "(" not in type.dtype and type.dtype not in ("undefined", "tuple")


def dims(shape: onnx.TensorShapeProto, name: str) -> tuple[Dim, ...]:
    """Return the sizes; an unknown size without a name is named after its tensor and axis."""
    result: list[Dim] = []
    for axis, dim in enumerate(shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            result.append(int(dim.dim_value))
        else:
            named = any(c.isalpha() for c in dim.dim_param) and dim.dim_param != "None"  # '?' and '-1' name nothing
            result.append(dim.dim_param if named else f"{name}_{axis}")
    return tuple(result)


def from_proto(proto: onnx.TypeProto, name: str = "unknown") -> TensorType:
    """Return the type that a TypeProto states; ``name`` names its unnamed dynamic sizes."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        return TensorType(dtype_name(tensor.elem_type), dims(tensor.shape, name) if tensor.HasField("shape") else None)
    if kind == "sequence_type":
        return TensorType(f"seq({from_proto(proto.sequence_type.elem_type).dtype})", None)
    if kind == "optional_type":
        return TensorType(f"optional({from_proto(proto.optional_type.elem_type).dtype})", None)
    if kind == "sparse_tensor_type":
        return TensorType(f"sparse({dtype_name(proto.sparse_tensor_type.elem_type)})", None)
    if kind == "map_type":
        key = dtype_name(proto.map_type.key_type)
        return TensorType(f"map({key},{from_proto(proto.map_type.value_type).dtype})", None)
    return TensorType("undefined", None)


def to_proto(type: TensorType) -> onnx.TypeProto:
    """Return the TypeProto of a type; an undefined type gives an empty one."""
    nested, mapping = _NESTED.match(type.dtype), _MAP.match(type.dtype)
    if mapping:
        return helper.make_map_type_proto(element_type(mapping[1]), to_proto(TensorType(mapping[2], None)))
    if nested:
        inner = TensorType(nested[2], None)
        match nested[1]:
            case "seq":
                return helper.make_sequence_type_proto(to_proto(inner))
            case "optional":
                return helper.make_optional_type_proto(to_proto(inner))
            case _:
                return helper.make_sparse_tensor_type_proto(element_type(inner.dtype), None)
    if type.dtype in ("undefined", "tuple"):
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(element_type(type.dtype), None if type.shape is None else list(type.shape))


def tensor_digest(array: np.ndarray) -> str:
    """Return a content hash (32 hex digits) of element type, shape and data."""
    name = "string" if array.dtype == np.object_ else array.dtype.name
    state = hashlib.sha256(f"{name}{array.shape}".encode())
    if array.dtype == np.object_:
        state.update(repr([v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]).encode())
    elif array.size:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()[:32]


def array_type(array: np.ndarray) -> TensorType:
    """Return the type of a numpy array."""
    return TensorType("string" if array.dtype.kind in "OUS" else array.dtype.name, tuple(int(n) for n in array.shape))


def to_tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    """Return a TensorProto that holds the array's data."""
    if array.dtype.kind in "OUS":
        values = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]
        return helper.make_tensor(name, onnx.TensorProto.STRING, list(array.shape), values)
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def opaque_proto(node: Node) -> onnx.NodeProto:
    """Return the ONNX node inside an Opaque node."""
    data = node.attribute("onnx")
    assert isinstance(data, bytes)
    return onnx.NodeProto.FromString(data)
