"""Reads of elements and rows at places, and writes to places known at compile time: GatherElements, ScatterElements, ScatterND."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.movement import slice_axis
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node

MOST_RUNS = 16
"""The most runs of consecutive rows that are cut out and joined; rows in more runs are gathered one by one."""


def _flat(places: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """Return positions in the flattened axes of these sizes; negative ones count from the end."""
    if any(np.any(place < -size) or np.any(place >= size) for place, size in zip(places, sizes, strict=True)):
        raise NotCore("an index is out of range")
    if not places:
        return np.zeros((), np.int64)
    wrapped = [np.where(place < 0, place + size, place).astype(np.int64) for place, size in zip(places, sizes, strict=True)]
    return np.asarray(np.ravel_multi_index(tuple(wrapped), tuple(sizes)), np.int64)


def _elements(call: Call) -> np.ndarray:
    """Return the position in the flattened data that each index of a GatherElements or ScatterElements refers to."""
    shape, indices = call.shape(0), call.known(1)
    axis = axis_of(int(call.attribute("axis", 0)), len(shape))
    if indices.ndim != len(shape) or any(n > size for k, (n, size) in enumerate(zip(indices.shape, shape, strict=True)) if k != axis):
        raise NotCore("the indices do not fit the data")
    if indices.size * 8 > call.state.fold_limit_bytes:
        raise NotCore("the places take more than constants may")
    places = list[np.ndarray](np.indices(indices.shape))
    places[axis] = indices
    return _flat(places, shape)


def _gather_elements(call: Call) -> Node:
    if call.data(1) is None:
        return call.apply("GatherElements", call[0], call[1], axis=axis_of(int(call.attribute("axis", 0)), len(call.shape(0))))
    places = _elements(call)
    return call.apply("Gather", call.reshape(call[0], (math.prod(call.shape(0)),)), call.constant(places, "int64"), axis=0)


def _scatter_elements(call: Call) -> Node:
    return _replaced(call, _elements(call).reshape(-1), math.prod(call.shape(0)))


def _scatter_nd(call: Call) -> Node:
    shape, indices = call.shape(0), call.known(1)
    depth = indices.shape[-1]
    return _replaced(call, _flat(list(np.moveaxis(indices, -1, 0)), shape[:depth]).reshape(-1), math.prod(shape[:depth]))


def _replaced(call: Call, places: np.ndarray, rows: int) -> Node:
    """Return the data with some rows replaced by those of the updates; the last of several updates of one row wins."""
    if str(call.attribute("reduction", "none")) != "none":
        raise NotCore("updates are added")
    shape = call.shape(0)
    if (rows + places.size) * 8 > call.state.fold_limit_bytes:
        raise NotCore("the places take more than constants may")
    if math.prod(call.shape(2)) * rows != math.prod(shape) * places.size or not places.size:
        raise NotCore("the updates do not fit the indices")
    source = np.arange(rows)
    source[places] = rows + np.arange(places.size)
    width = math.prod(shape) // rows
    data, updates = call.reshape(call[0], (rows, width)), call.reshape(call[2], (places.size, width))
    starts = [0, *(np.flatnonzero((np.diff(source) != 1) | (source[1:] == rows)) + 1).tolist(), rows]
    if len(starts) - 1 > MOST_RUNS:
        both = call.apply("Concat", data, updates, axis=0)
        return call.reshape(call.apply("Gather", both, call.constant(source, "int64"), axis=0), shape)
    parts = []
    for start, end in pairwise(starts):
        first = int(source[start])
        node, at = (data, first) if first < rows else (updates, first - rows)
        parts.append(slice_axis(call, node, 0, at, at + end - start))
    return call.reshape(parts[0] if len(parts) == 1 else call.apply("Concat", *parts, axis=0), shape)


HANDLERS: Mapping[str, Handler] = {
    "GatherElements": _gather_elements,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
