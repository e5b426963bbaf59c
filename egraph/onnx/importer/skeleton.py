"""A model's file without the numbers of its large weights, which is read in milliseconds whatever their size.

Parsing a file of 400 MB takes half a second, and searching it for a word a fifth of a second, during which no other Python thread runs.
The operators and the types of the weights are a few kilobytes of the file. The fields of protobuf's wire format state their lengths, so
the numbers are skipped.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import onnx
from google.protobuf.message import DecodeError

from egraph.onnx.importer.model_file import read_model

Content: TypeAlias = mmap.mmap | bytes
GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
NUMBERS = frozenset(
    onnx.TensorProto.DESCRIPTOR.fields_by_name[f"{kind}_data"].number
    for kind in ("raw", "float", "double", "int32", "int64", "uint64", "string")
)
"""The fields of a tensor that hold its numbers."""
KEPT_BYTES = 1024
"""Fields up to this size in bytes are kept."""
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""The wire types of protobuf."""


class Field(NamedTuple):
    """One field of a message: its number, and the positions of its start, the start of its content, and its end."""

    number: int
    start: int
    content: int
    stop: int


def skeleton(path: Path) -> onnx.ModelProto:
    """Return the model of a file, in which large constants of the graph have no numbers; raise ModelError like ``read_model``."""
    try:
        status = path.stat()
    except OSError:
        return read_model(path)[0]  # it reports the error
    return _skeleton(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _skeleton(path: Path, _changed_ns: int, size_bytes: int) -> onnx.ModelProto:
    """Return the cached skeleton. The time of the last change is part of the cache's key, so a rewritten file is read again."""
    model = onnx.ModelProto()
    if path.is_file() and size_bytes:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                model.ParseFromString(_model(content))
            except (DecodeError, ValueError, IndexError):
                return read_model(path)[0]
    return model if model.HasField("graph") else read_model(path)[0]


def _model(content: Content) -> bytes:
    kept = bytearray()
    for field in _fields(content, 0, len(content)):
        kept += _delimited(GRAPH, _graph(content, field)) if field.number == GRAPH else content[field.start : field.stop]
    return bytes(kept)


def _graph(content: Content, graph: Field) -> bytes:
    kept = bytearray()
    for field in _fields(content, graph.content, graph.stop):
        kept += _delimited(INITIALIZER, _tensor(content, field)) if field.number == INITIALIZER else content[field.start : field.stop]
    return bytes(kept)


def _tensor(content: Content, tensor: Field) -> bytes:
    fields = _fields(content, tensor.content, tensor.stop)
    return b"".join(
        content[field.start : field.stop] for field in fields if field.number not in NUMBERS or field.stop - field.content <= KEPT_BYTES
    )


def _fields(content: Content, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of a message; raise ValueError or IndexError if the bytes are no message."""
    at = start
    while at < stop:
        tag, inside = _varint(content, at)
        kind = tag & 7
        if kind == VARINT:
            _, after = _varint(content, inside)
        elif kind == BYTES:
            length, inside = _varint(content, inside)
            after = inside + length
        elif kind in (FIXED_64, FIXED_32):
            after = inside + (8 if kind == FIXED_64 else 4)
        else:
            raise ValueError(f"wire type {kind}")
        if after > stop:
            raise ValueError("the message is truncated")
        yield Field(tag >> 3, at, inside, after)
        at = after


def _varint(content: Content, at: int) -> tuple[int, int]:
    """Return the number at a position, in groups of seven bits from the lowest, and the position of its end."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _delimited(number: int, message: bytes) -> bytes:
    """Return a field that holds a message."""
    return _encoded(number << 3 | BYTES) + _encoded(len(message)) + message


def _encoded(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
