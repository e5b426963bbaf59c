"""Operators that onnxruntime's own optimiser fuses: decomposed again, so that the search sees their parts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from egraph.onnx.importer import contraction
from egraph.onnx.importer.elementwise import Handler, swish
from egraph.onnx.importer.movement import slice_axis
from egraph.onnx.importer.normalization import root_mean_square_normalized
from egraph.onnx.importer.state import Call, NotCore
from egraph.tensor import Node

MASKED = -10_000.0
"""The number that is added to the scores of masked keys unless a node states another."""
ACTIVATIONS = frozenset({"Relu", "Tanh", "Sigmoid"})
"""Fused activations without parameters."""


# Activations


def _gelu(approximate: str) -> Handler:
    """gelu(x + bias)"""

    def handler(call: Call) -> Node:
        x = call.apply("Add", call[0], call[1]) if call.has(1) else call[0]
        return call.apply("Gelu", x, approximate=approximate)

    return handler


# Normalisations


def _only_first(call: Call, *indices: int) -> None:
    if any(index < len(call.node.output) and call.node.output[index] in call.state.used for index in indices):
        raise NotCore("the statistics are used")


def _layer_normalized(call: Call, x: Node, scale: Node, bias: Node | None) -> Node:
    axis = x.type.rank - 1
    if bias is None:
        bias = call.like(np.zeros(x.type.sizes[-1]))
    return call.apply("LayerNormalization", x, scale, bias, axis=axis, epsilon=float(call.attribute("epsilon", 1e-12)))


def _simplified_layer_normalization(call: Call) -> list[Node | None]:
    _only_first(call, 1)
    result = root_mean_square_normalized(call, call[0], call[1], int(call.attribute("axis", -1)), float(call.attribute("epsilon", 1e-5)))
    return [result, None][: len(call.node.output)]


def _skipped(call: Call, bias: int) -> Node:
    """Return input + skip + bias."""
    total = call.apply("Add", call[0], call[1])
    return call.apply("Add", total, call[bias]) if call.has(bias) else total


def _skip_layer_normalization(call: Call) -> list[Node | None]:
    _only_first(call, 1, 2)
    total = _skipped(call, 4)
    result = _layer_normalized(call, total, call[2], call[3] if call.has(3) else None)
    return [result, None, None, total][: len(call.node.output)]


def _skip_simplified_layer_normalization(call: Call) -> list[Node | None]:
    _only_first(call, 1, 2)
    total = _skipped(call, 3)
    result = root_mean_square_normalized(call, total, call[2], -1, float(call.attribute("epsilon", 1e-12)))
    return [result, None, None, total][: len(call.node.output)]


def _embed_layer_normalization(call: Call) -> list[Node | None]:
    """Layer normalisation of words[ids] + positions + segments[segment ids]"""
    _only_first(call, 2)
    if call.has(7) or call.has(8):
        raise NotCore("a mask, or positions that are given")
    length = call.shape(0)[1]
    total = call.apply("Add", call.apply("Gather", call[2], call[0], axis=0), slice_axis(call, call[3], 0, 0, length))
    if call.has(4):
        total = call.apply("Add", total, call.apply("Gather", call[4], call[1], axis=0))
    bias = call[6] if call.has(6) else call.constant(np.zeros(total.type.sizes[-1]), total.type.dtype)
    result = call.apply("LayerNormalization", total, call[5], bias, axis=2, epsilon=float(call.attribute("epsilon", 1e-12)))
    return [result, call.constant(np.zeros(call.shape(0)[0]), "int32"), None][: len(call.node.output)]


# Products


def _fused_matmul(call: Call) -> Node:
    """alpha A' B'"""
    if call.attribute("transBatchA", 0) or call.attribute("transBatchB", 0):
        raise NotCore("batches are transposed")
    operands = []
    for index, name in enumerate(("transA", "transB")):
        rank = len(call.shape(index))
        if rank < 2:
            raise NotCore("an operand is a vector")
        order = [*range(rank - 2), rank - 1, rank - 2] if call.attribute(name, 0) else list(range(rank))
        operands.append(call.transpose(call[index], order))
    product = call.apply("MatMul", *operands)
    alpha = float(call.attribute("alpha", 1.0))
    return product if alpha == 1.0 else call.apply("Mul", product, call.like(alpha))


# Attention


def _heads(call: Call, x: Node, heads: int) -> Node:
    """Return [batch, heads, length, size] of [batch, length, heads * size]."""
    batch, length, width = x.type.sizes
    return call.transpose(call.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _attended(call: Call, query: Node, key: Node, value: Node, bias: Node | None) -> Node:
    """softmax(scale q k' + bias) v of [batch, heads, length, size], with the heads joined again"""
    if int(call.attribute("unidirectional", 0)):
        raise NotCore("later keys are masked")
    size = query.type.sizes[-1]
    scale = float(call.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    scores = call.apply("MatMul", query, call.transpose(key, (0, 1, 3, 2)))
    scores = call.apply("Mul", scores, call.constant(scale, query.type.dtype))
    if bias is not None:
        scores = call.apply("Add", scores, bias)
    result = call.transpose(call.apply("MatMul", call.apply("Softmax", scores, axis=3), value), (0, 2, 1, 3))
    batch, length, heads, width = result.type.sizes
    return call.reshape(result, (batch, length, heads * width))


def _mask_bias(call: Call, index: int, rows: tuple[int, ...], dtype: str) -> Node | None:
    """Return the addend of the scores for a mask of keys (1 for visible keys), or for the number of visible keys in each row."""
    if not call.has(index):
        return None
    (batch, keys), shape = rows, call.shape(index)
    if shape not in ((batch,), (batch, keys)) or call[index].type.dtype != "int32":
        raise NotCore("a mask of another form")
    numbers = call.apply("Cast", call[index], to="float32")
    if len(shape) == 2:
        hidden = call.apply("Equal", numbers, call.constant(0, "float32"))
    else:
        hidden = call.apply("GreaterOrEqual", call.constant(np.arange(keys), "float32"), call.reshape(numbers, (batch, 1)))
    masked = call.constant(float(call.attribute("mask_filter_value", MASKED)), dtype)
    return call.reshape(call.apply("Where", hidden, masked, call.constant(0, dtype)), (batch, 1, 1, keys))


def _attention(call: Call) -> list[Node | None]:
    """Attention of x W + b, whose columns are queries, keys and values"""
    if any(call.has(index) for index in (4, 6)) or call.attribute("do_rotary", 0) or call.attribute("qkv_hidden_sizes"):
        raise NotCore("keys of the past, or parts of other sizes")
    if len(call.node.output) > 1 and call.node.output[1] in call.state.used:
        raise NotCore("the keys are used")
    heads, width = int(call.required("num_heads")), call.shape(1)[1] // 3
    product = call.apply("MatMul", call[0], call[1])
    product = call.apply("Add", product, call[2]) if call.has(2) else product
    query, key, value = (_heads(call, slice_axis(call, product, 2, k * width, (k + 1) * width), heads) for k in range(3))
    bias = _mask_bias(call, 3, call.shape(0)[:2], product.type.dtype)
    if call.has(5):
        bias = call[5] if bias is None else call.apply("Add", bias, call[5])
    return [_attended(call, query, key, value, bias), None][: len(call.node.output)]


def _multi_head_attention(call: Call) -> list[Node | None]:
    """Attention of separate queries, keys and values, each [batch, length, heads * size]"""
    if any(call.has(index) for index in range(6, 10)) or not (call.has(1) and call.has(2)):
        raise NotCore("keys of the past, or packed ones")
    if any(name in call.state.used for name in call.node.output[1:]):
        raise NotCore("the keys are used")
    if any(len(call.shape(index)) != 3 for index in range(3)):
        raise NotCore("heads stand apart")
    heads, parts, start = int(call.required("num_heads")), [], 0
    for index in range(3):
        part, width = call[index], call.shape(index)[2]
        if call.has(3):
            part = call.apply("Add", part, slice_axis(call, call[3], 0, start, start + width))
        start += width
        parts.append(_heads(call, part, heads))
    bias = _mask_bias(call, 4, call.shape(1)[:2], parts[0].type.dtype)
    if call.has(5):
        bias = call[5] if bias is None else call.apply("Add", bias, call[5])
    return [_attended(call, parts[0], parts[1], parts[2], bias), None, None, None][: len(call.node.output)]


def _with_activation(op: str) -> Handler:
    """Return the handler of an ONNX operator followed by an activation."""

    def handler(call: Call) -> Node:
        name, result = str(call.attribute("activation", "")), contraction.HANDLERS[op](call)
        if call.has(3) or name not in ACTIVATIONS or isinstance(result, list):
            raise NotCore(f"a sum before the activation, or the activation {name}")
        return call.apply(name, result)

    return handler


STANDARD_HANDLERS: Mapping[str, Handler] = {"SimplifiedLayerNormalization": _simplified_layer_normalization}
"""Operators that onnxruntime adds to ONNX's own domain."""
HANDLERS: Mapping[str, Handler] = {
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": swish(1.702),
    "FusedMatMul": _fused_matmul,
    "FusedConv": _with_activation("Conv"),
    "FusedGemm": _with_activation("Gemm"),
    "SkipLayerNormalization": _skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": _skip_simplified_layer_normalization,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
}
"""Handlers of operators of the domain com.microsoft."""
