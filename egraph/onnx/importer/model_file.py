"""Read a model file, convert it to a supported opset, and map its external data, refusing files outside the model's folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from egraph.errors import ModelError
from egraph.onnx.importer.order import nodes_inside, subgraphs
from egraph.onnx.types import dtype_name

OLDEST = 7
"""The oldest opset that is read without conversion: from this opset on, broadcasting is numpy's."""
_PACKED = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})


def read_model(source: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """Return the model (external data is not loaded) and the folder of its external data."""
    if isinstance(source, onnx.ModelProto):
        model, folder, where = onnx.ModelProto(), None, "the given ModelProto"
        model.CopyFrom(source)
    else:
        path = Path(source)
        model, folder, where = _parse(path), path.parent, str(path)
    if not model.HasField("graph"):
        raise ModelError("the file holds no graph, so it is not an ONNX model", where=where, fix="give a .onnx file")
    if not model.graph.output:
        raise ModelError("the graph is empty: it has no outputs", where=where, fix="export the model again with at least one output")
    return model, folder


def _parse(path: Path) -> onnx.ModelProto:
    if path.is_dir():
        raise ModelError("the model path is a folder", where=str(path), fix=f"name the file in it, for example {path / 'model.onnx'}")
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError("the model file does not exist", where=str(path), fix="check the path") from error
    except OSError as error:
        raise ModelError(f"the model file cannot be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"the file is not an ONNX model, or it is truncated ({len(data)} bytes)", where=str(path),
            fix="give a complete .onnx file; a model above 2 GB needs external data (onnx.save with save_as_external_data=True)",
        ) from error
    return model


def to_array(tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray:
    """Return a tensor's data: a memory map for external data, else a view of (or copy from) the proto."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        try:
            return np.asarray(numpy_helper.to_array(tensor))
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"the data does not fit the tensor's type and shape: {error}", where=f"tensor {tensor.name!r}",
                             fix="export the model again") from error
    path, offset, length = _external(tensor, folder)
    name, shape = dtype_name(tensor.data_type), tuple(tensor.dims)
    if name in _PACKED or length == 0:
        inline = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        with path.open("rb") as file:
            file.seek(offset)
            inline.raw_data = file.read(length)
        return np.asarray(numpy_helper.to_array(inline))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(path, dtype=dtype.newbyteorder("<"), mode="r", offset=offset, shape=shape)


def _external(tensor: onnx.TensorProto, folder: Path | None) -> tuple[Path, int, int]:
    """Return (file, offset, length) of an external tensor after checking them."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    where = f"tensor {tensor.name!r}, external data {entries.get('location', '')!r}"
    if folder is None:
        raise ModelError("external data has no folder to be found in", where=where, fix="give the path of the model file")
    location, root = entries.get("location", ""), folder.resolve()
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(root):
        raise ModelError("external data lies outside the model's folder", where=where, fix=f"put the file beside the model in {folder}")
    if not path.is_file():
        what = "the external data is a folder, not a file" if path.is_dir() else "the external data file does not exist"
        raise ModelError(what, where=where, fix=f"copy it to {folder / location}")
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    elements = int(np.prod(tensor.dims, dtype=np.int64))
    packed = {"int2": 4, "uint2": 4}.get(dtype_name(tensor.data_type), 2) if dtype_name(tensor.data_type) in _PACKED else 1
    expected = (elements * itemsize + packed - 1) // packed
    try:
        offset, length = int(entries.get("offset", 0) or 0), int(entries.get("length", expected) or expected)
    except ValueError as error:
        raise ModelError("external data has an offset or length that is not a number", where=where, fix="export the model again") from error
    size = path.stat().st_size
    if offset < 0 or length != expected or offset + length > size:
        raise ModelError(
            f"external data of {length} bytes at offset {offset} does not fit: the tensor needs {expected}, the file has {size}",
            where=where, fix="export the model again; the file may be truncated",
        )
    return path, offset, length


def tensors_inside(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in a node's attributes and subgraphs."""
    for inner in nodes_inside(node):
        for attribute in inner.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in subgraphs(inner):
            yield from graph.initializer


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph, including those in its nodes."""
    yield from graph.initializer
    for node in graph.node:
        yield from tensors_inside(node)


def embed_external(tensors: Iterable[onnx.TensorProto], folder: Path | None) -> None:
    """Copy external data into the tensors themselves, so that they are valid in any folder."""
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = numpy_helper.from_array(np.array(to_array(tensor, folder)), tensor.name)
            tensor.CopyFrom(data)


def prepared(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model at a supported opset, its functions inlined if onnx can do it, and notes on the changes."""
    notes: list[str] = []
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    newest = onnx.defs.onnx_opset_version()
    if not model.opset_import:
        version = 1  # models of IR version 2 and older state no opset
        model.opset_import.append(onnx.helper.make_opsetid("", 1))
    if version > newest:
        raise ModelError(f"opset {version} is newer than the onnx package knows ({newest})", where="the model's opset_import",
                         fix="pip install --upgrade onnx, or export the model with an older opset")
    if 0 < version < OLDEST:
        try:
            model = onnx.version_converter.convert_version(model, OLDEST)
        except Exception as error:  # the converter raises any exception of its C++
            raise ModelError(
                f"opset {version} is older than {OLDEST} and cannot be converted: {' '.join(str(error).split())[:200]}",
                where="the model's opset_import", fix="export the model again with opset 9 or newer",
            ) from error
        notes.append(f"converted from opset {version} to {OLDEST}")
    if model.functions:
        try:
            inlined = onnx.inliner.inline_local_functions(model)
        except Exception as error:  # the inliner raises any exception of its C++
            notes.append(f"the model's functions are kept as they are: {' '.join(str(error).split())[:200]}")
        else:
            model = inlined
    return model, tuple(notes)
