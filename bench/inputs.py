"""Random inputs for the benchmark's models: normal floats or drawn pictures, token ids below 1000, masks of ragged rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx

TOKENS = 1000
Shapes = Mapping[str, tuple[int, ...]]
Draw: TypeAlias = Callable[[tuple[int, ...], np.random.Generator], np.ndarray]
"""A function that returns an input of a shape."""


def parse_shapes(texts: Sequence[str]) -> Shapes:
    """Parse the flags that fix input sizes: ``x:1,3,48,192``."""
    pairs = (text.rpartition(":") for text in texts)
    return {name: tuple(int(size) for size in sizes.split(",")) for name, _, sizes in pairs}


def feeds_for(
    model: onnx.ModelProto, shapes: Shapes, seed: int = 0, draw: Draw | None = None, integers: Mapping[str, tuple[int, int]] = {}
) -> dict[str, np.ndarray]:
    """Return random inputs; ``shapes``: for inputs whose sizes the model leaves open; ``draw``: for floats that are not noise.

    ``integers``: by input, the least integer and the first one that is too large.
    """
    random = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = shapes.get(value.name) or tuple(d.dim_value for d in tensor.shape.dim)
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = draw(shape, random) if draw else random.normal(size=shape).astype(np.float32)
        elif "mask" in value.name:
            feeds[value.name] = ragged_mask(shape, random).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feeds[value.name] = np.asarray(random.integers(*integers.get(value.name, (0, TOKENS)), shape), dtype)
    return feeds


def ragged_mask(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return ones, then zeros, in each row: of any length from 1, or from half of the row if there is only one."""
    *rows, length = shape
    least = (length + 1) // 2 if np.prod(rows) == 1 else 1
    return np.arange(length) < random.integers(least, length + 1, rows)[..., None]
