"""Run an ONNX graph with JAX's functions, so that XLA compiles it. Covers the operators of the networks that are compared on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax
from onnx import numpy_helper

Array = Any
"""An array of JAX; an array of numpy if it controls the computation."""
LAYOUT = ("NCHW", "OIHW", "NCHW")


def _pairs(pads: Sequence[int]) -> list[tuple[int, int]]:
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))


def _conv(a: Mapping[str, Any], x: Array, w: Array, b: Array | None = None) -> Array:
    y = lax.conv_general_dilated(
        x, w, a.get("strides", [1, 1]), _pairs(a.get("pads", [0] * 4)), rhs_dilation=a.get("dilations", [1, 1]),
        dimension_numbers=LAYOUT, feature_group_count=a.get("group", 1),
    )  # fmt: skip
    return y if b is None else y + b[:, None, None]


def _deconv(a: Mapping[str, Any], x: Array, w: Array, b: Array | None = None) -> Array:
    if a.get("group", 1) != 1 or set(a.get("dilations", [1, 1])) != {1}:
        raise LookupError("bench/jax_model.py transposes convolutions without groups and dilation only")
    padding = [
        (taps - 1 - before, taps - 1 - after + more)
        for taps, (before, after), more in zip(w.shape[2:], _pairs(a.get("pads", [0] * 4)), a.get("output_padding", [0, 0]), strict=True)
    ]  # fmt: skip
    flipped = jnp.flip(w, (2, 3)).transpose(1, 0, 2, 3)
    y = lax.conv_general_dilated(x, flipped, (1, 1), padding, lhs_dilation=a.get("strides", [1, 1]), dimension_numbers=LAYOUT)
    return y if b is None else y + b[:, None, None]


def _max_pool(a: Mapping[str, Any], x: Array) -> Array:
    window, strides = (1, 1, *a["kernel_shape"]), (1, 1, *a.get("strides", [1, 1]))
    lowest = np.array(-np.inf, x.dtype)
    return lax.reduce_window(x, lowest, lax.max, window, strides, [(0, 0), (0, 0), *_pairs(a.get("pads", [0] * 4))])


def _average_pool(a: Mapping[str, Any], x: Array) -> Array:
    def summed(array: Array) -> Array:
        window, strides = (1, 1, *a["kernel_shape"]), (1, 1, *a.get("strides", [1, 1]))
        pads = [(0, 0), (0, 0), *_pairs(a.get("pads", [0] * 4))]
        return lax.reduce_window(array, np.array(0, array.dtype), lax.add, window, strides, pads)

    return summed(x) / (np.prod(a["kernel_shape"]) if a.get("count_include_pad", 0) else summed(jnp.ones_like(x)))


def _cast(a: Mapping[str, Any], x: Array) -> Array:
    return x.astype(a["floats"] if a["to"] == onnx.TensorProto.FLOAT else onnx.helper.tensor_dtype_to_np_dtype(a["to"]))


def _layer_norm(a: Mapping[str, Any], x: Array, scale: Array, bias: Array | None = None) -> Array:
    axes = tuple(range(a.get("axis", -1) % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    y = centred * lax.rsqrt((centred * centred).mean(axes, keepdims=True) + a.get("epsilon", 1e-5)) * scale
    return y if bias is None else y + bias


def _axes(a: Mapping[str, Any], axes: Array | None) -> tuple[int, ...] | None:
    listed = a.get("axes") if axes is None else axes
    return None if listed is None else tuple(int(axis) for axis in listed)


def _split(a: Mapping[str, Any], x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis, parts = a.get("axis", 0), a["outputs"]
    return tuple(jnp.split(x, parts if sizes is None else [int(each) for each in np.cumsum(sizes)[:-1]], axis))


def _batch_norm(a: Mapping[str, Any], x: Array, s: Array, b: Array, m: Array, v: Array) -> Array:
    factor = s / jnp.sqrt(v + a.get("epsilon", 1e-5))
    return x * factor[:, None, None] + (b - m * factor)[:, None, None]


def _reshape(a: Mapping[str, Any], x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[axis] if size == 0 else int(size) for axis, size in enumerate(shape)])


def _pad(a: Mapping[str, Any], x: Array, pads: Array, value: Array | None = None) -> Array:
    if a.get("mode", b"constant") != b"constant" or value is not None:
        raise LookupError("bench/jax_model.py pads by zeros only")
    return jnp.pad(x, _pairs([int(each) for each in pads]))


OPERATORS: Mapping[str, Callable[..., Array]] = {
    "Add": lambda a, x, y: x + y,
    "And": lambda a, x, y: jnp.logical_and(x, y),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": lambda a, x, low=None, high=None: jnp.clip(x, low, high),
    "Concat": lambda a, *x: jnp.concatenate(x, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _deconv,
    "Div": lambda a, x, y: x / y,
    "Erf": lambda a, x: jax.scipy.special.erf(x),
    "Flatten": lambda a, x: x.reshape(int(np.prod(x.shape[: a.get("axis", 1)])), -1),
    "Gather": lambda a, x, indices: jnp.take(x, indices, axis=a.get("axis", 0)),
    "Gelu": lambda a, x: jax.nn.gelu(x, approximate=a.get("approximate", b"none") == b"tanh"),
    "Gemm": lambda a, x, w, b=0: x @ (w.T if a.get("transB") else w) + b,
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdims=True),
    "IsNaN": lambda a, x: jnp.isnan(x),
    "LayerNormalization": _layer_norm,
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": _max_pool,
    "Mul": lambda a, x, y: x * y,
    "PRelu": lambda a, x, s: jnp.where(x > 0, x, x * s),
    "Pad": _pad,
    "Pow": lambda a, x, y: x**y,
    "ReduceMean": lambda a, x, axes=None: x.mean(_axes(a, axes), keepdims=bool(a.get("keepdims", 1))),
    "ReduceSum": lambda a, x, axes=None: x.sum(_axes(a, axes), keepdims=bool(a.get("keepdims", 1))),
    "Relu": lambda a, x: jax.nn.relu(x),
    "Reshape": _reshape,
    "Sigmoid": lambda a, x: jax.nn.sigmoid(x),
    "Softmax": lambda a, x: jax.nn.softmax(x, a.get("axis", -1)),
    "Split": _split,
    "Sqrt": lambda a, x: jnp.sqrt(x),
    "Squeeze": lambda a, x, axes=None: jnp.squeeze(x, _axes(a, axes)),
    "Sub": lambda a, x, y: x - y,
    "Sum": lambda a, *x: sum(x[1:], start=x[0]),
    "Tanh": lambda a, x: jnp.tanh(x),
    "Transpose": lambda a, x: x.transpose(a["perm"]),
    "Unsqueeze": lambda a, x, axes=None: jnp.expand_dims(x, _axes(a, axes) or ()),
    "Where": lambda a, condition, x, y: jnp.where(condition, x, y),
}


class JaxModel:
    """The graph's nodes, one function each: ``model(weights, *operands)``. Raises LookupError naming operators that are not in the table.

    ``weights`` are the model's float tensors; integers and single floats control the computation and are known when it is compiled. Floats
    have the type of the given weights.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        constants = {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"}
        constants |= {t.name: t for t in model.graph.initializer}
        values = {name: numpy_helper.to_array(tensor) for name, tensor in constants.items()}
        self.weights = {name: value for name, value in values.items() if value.dtype.kind == "f" and value.size > 1}
        self._settings = {name: value for name, value in values.items() if name not in self.weights}
        self._nodes = [node for node in model.graph.node if node.output[0] not in constants]
        if missing := sorted({node.op_type for node in self._nodes} - set(OPERATORS)):
            raise LookupError(f"bench/jax_model.py does not translate {', '.join(missing)}")
        self.inputs = [each.name for each in model.graph.input]
        self.outputs = [each.name for each in model.graph.output]

    def __call__(self, weights: Mapping[str, Array], *operands: Array) -> list[Array]:
        floats = next((each.dtype for each in weights.values()), np.dtype(np.float32))
        with np.errstate(over="ignore"):  # in half precision, what masks add is infinite
            settings = {name: value.astype(floats) if value.dtype.kind == "f" else value for name, value in self._settings.items()}
        values = {**settings, **weights, **dict(zip(self.inputs, operands, strict=True))}
        for node in self._nodes:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            attributes |= {"outputs": len(node.output), "floats": floats}
            result = OPERATORS[node.op_type](attributes, *[values[each] if each else None for each in node.input])
            values |= zip(node.output, result if isinstance(result, tuple) else (result,), strict=False)
        return [values[name] for name in self.outputs]
