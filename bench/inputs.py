"""Random inputs for the benchmark's models: normal floats, token ids below 1000, masks of ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

TOKENS = 1000
Shapes = Mapping[str, tuple[int, ...]]


def parse_shapes(texts: Sequence[str]) -> Shapes:
    """Parse the flags that make input sizes known: ``x:1,3,48,192``."""
    return {text.split(":")[0]: tuple(int(size) for size in text.split(":")[1].split(",")) for text in texts}


def feeds_for(model: onnx.ModelProto, shapes: Shapes, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs; ``shapes`` for inputs whose sizes the model leaves open."""
    random = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = shapes.get(value.name) or tuple(d.dim_value for d in tensor.shape.dim)
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = random.normal(size=shape).astype(np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
        else:
            feeds[value.name] = random.integers(0, TOKENS, shape)
    return feeds
