"""Where every buffer of a plan lives: the arena, the weights, and the areas that change with each run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from runtime.dtypes import element_type, numpy_dtype
from runtime.errors import ArtefactError
from runtime.plan import Buffer, Plan


def pointer(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def extent(buffer: Buffer) -> tuple[int, int]:
    """Return the first and one past the last element that a window touches, from its area's start."""
    if 0 in buffer.shape:
        return buffer.offset, buffer.offset
    reaches = [(size - 1) * stride for size, stride in zip(buffer.shape, buffer.strides, strict=True)]
    return buffer.offset + sum(min(reach, 0) for reach in reaches), buffer.offset + sum(max(reach, 0) for reach in reaches) + 1


def byte_range(buffer: Buffer) -> tuple[int, int]:
    """Return the first and one past the last byte that a window touches, from its area's start."""
    first, last = extent(buffer)
    itemsize = numpy_dtype(buffer.dtype).itemsize
    return first * itemsize, last * itemsize


def window_over(buffer: Buffer, memory: np.ndarray, offset: int) -> np.ndarray:
    """Return a window's elements in flat memory; ``offset`` is the index of its first element there."""
    dtype = numpy_dtype(buffer.dtype)
    if 0 in buffer.shape:
        return np.empty(buffer.shape, dtype)
    strides = [stride * dtype.itemsize for stride in buffer.strides]
    return np.ndarray(buffer.shape, dtype, memory.view(np.uint8).data, offset * dtype.itemsize, strides)


def is_contiguous(buffer: Buffer) -> bool:
    """Return whether a window is its shape in row-major order."""
    expected = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=True):
        if size != 1 and stride != expected:
            return math.prod(buffer.shape) == 0
        expected *= size
    return True


class Areas:
    """Inputs and outputs, whose memory is given anew for each run: ``numbers`` by area and key, and the bytes that each needs."""

    def __init__(self, plan: Plan) -> None:
        self.numbers: dict[tuple[str, str], int] = {}
        self.sizes_bytes: list[int] = []
        for buffer in plan.buffers:
            if buffer.area in ("input", "output"):
                number = self.numbers.setdefault((buffer.area, buffer.key), len(self.sizes_bytes))
                if number == len(self.sizes_bytes):
                    self.sizes_bytes.append(0)
                self.sizes_bytes[number] = max(self.sizes_bytes[number], byte_range(buffer)[1])


class Storage:
    """Addresses of a plan's buffers in the host's memory."""

    def __init__(self, plan: Plan, weights: Mapping[str, np.ndarray], allocate: Callable[[int], np.ndarray]) -> None:
        self.plan, self.weights = plan, weights
        self.arena = allocate(plan.arena_bytes)
        self.numbers = Areas(plan).numbers
        self.bound: list[np.ndarray] = []
        self._views: dict[Buffer, np.ndarray] = {}
        for index, buffer in enumerate(plan.buffers):
            self._admit(index, buffer)

    def _admit(self, index: int, buffer: Buffer) -> None:
        where = f"buffer {index} of the plan: {buffer}"
        first, last = extent(buffer) if buffer.area != "host" else (0, 0)
        size_bytes = last * (numpy_dtype(buffer.dtype).itemsize if buffer.area != "host" else 0)
        if first < 0:
            raise ArtefactError("a window begins before its area", where=where)
        match buffer.area:
            case "arena" if size_bytes > self.plan.arena_bytes:
                raise ArtefactError(f"a window ends at byte {size_bytes} of an arena of {self.plan.arena_bytes}", where=where)
            case "weight":
                weight = self.weights.get(buffer.key)
                if weight is None:
                    raise ArtefactError(f"the weight {buffer.key!r} is missing", where=where, fix="optimise the model again")
                if not weight.flags.c_contiguous or size_bytes > weight.nbytes:
                    raise ArtefactError(f"a window ends at byte {size_bytes} of a weight of {weight.nbytes}", where=where)
            case _:
                pass

    def locate(self, buffer: Buffer) -> tuple[int | None, int]:
        """Return (None, address), or (area number, byte offset in it) if the address changes with each run."""
        offset_bytes = buffer.offset * element_type(buffer.dtype).size_bytes
        match buffer.area:
            case "arena":
                return None, pointer(self.arena) + offset_bytes
            case "weight":
                return None, pointer(self.weights[buffer.key]) + offset_bytes
            case "input" | "output":
                return self.numbers[buffer.area, buffer.key], offset_bytes
        raise ArtefactError(f"a kernel cannot work on a {buffer.area} buffer", where=str(buffer))

    def view(self, buffer: Buffer) -> np.ndarray:
        """Return a buffer's present contents without copying; the same array as before if its memory is the same."""
        if buffer.area not in ("arena", "weight"):
            return self._view(buffer)
        if buffer not in self._views:
            self._views[buffer] = self._view(buffer)
        return self._views[buffer]

    def _view(self, buffer: Buffer) -> np.ndarray:
        match buffer.area:
            case "arena":
                flat = self.arena
            case "weight":
                flat = self.weights[buffer.key].reshape(-1)
            case _:
                flat = self.bound[self.numbers[buffer.area, buffer.key]].reshape(-1)
        return window_over(buffer, flat, buffer.offset)

    def bind(self, areas: Sequence[np.ndarray]) -> list[int]:
        """Give the numbered areas their memory; return their addresses."""
        self.bound = list(areas)
        return [pointer(area) for area in areas]
