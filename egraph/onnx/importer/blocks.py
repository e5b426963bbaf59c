"""Weights of four or eight bits with scales in blocks: products by them, and their dequantisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node
from egraph.tensor.ops.blocks import BITS

AS_BYTES = 4
"""The accuracy level of a product from which onnxruntime also rounds activations to bytes."""
WIDTHS: Mapping[str, int] = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
"""The number of bits of the element types of blocks."""


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Return unsigned numbers packed into bytes along the last axis, the first in the lowest bits, zeros behind the last."""
    a_byte = 8 // bits
    missing = -values.shape[-1] % a_byte
    whole = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)]).astype(np.uint8)
    parts = whole.reshape(*whole.shape[:-1], -1, a_byte) << (bits * np.arange(a_byte, dtype=np.uint8))
    return np.asarray(parts.sum(-1), np.uint8)


def _known(call: Call, index: int, dtype: str) -> np.ndarray:
    if call[index].type.dtype != dtype:
        raise NotCore(f"operand {index} is {call[index].type.dtype}, not {dtype}")
    return call.known(index)


def _matmul_n_bits(call: Call) -> Node:
    """A dequantize(B)' + bias"""
    bits, block = int(call.attribute("bits", 4)), int(call.required("block_size"))
    size, columns = int(call.required("K")), int(call.required("N"))
    if bits not in BITS or block * bits % 8:
        raise NotCore(f"{bits} bits in blocks of {block}")
    if int(call.attribute("accuracy_level", 0)) >= AS_BYTES:
        raise NotCore("the other operand is rounded to bytes")
    if call.has(4):
        raise NotCore("rows are assigned to blocks one by one")
    if len(call.shape(0)) < 2:
        raise NotCore("an operand is a vector")
    blocks = -(-size // block)
    zeros_shape = (columns, -(-blocks * bits // 8))
    if call.has(3):
        zeros = _known(call, 3, "uint8").reshape(zeros_shape)
    else:
        zeros = packed(np.full((columns, blocks), 1 << (bits - 1)), bits)
    weight = call.apply(
        "DequantizeBlocks",
        call.constant(_known(call, 1, "uint8").reshape(columns, blocks, block * bits // 8), "uint8"),
        call.constant(_known(call, 2, "float32").reshape(columns, blocks), "float32"),
        call.constant(zeros, "uint8"), bits=bits, size=size,
    )  # fmt: skip
    result = call.apply("MatMul", call[0], call.transpose(weight, (1, 0)))
    return call.apply("Add", result, call[5]) if call.has(5) else result


def dequantized_blocks(call: Call) -> Node:
    """(x - zero point) * scale, one of both for each block of neighbours along an axis, for weights alone"""
    dtype, block, shape = call[0].type.dtype, int(call.required("block_size")), call.shape(0)
    axis = axis_of(int(call.attribute("axis", 1)), len(shape))
    bits = WIDTHS.get(dtype)
    if bits is None or block * bits % 8:
        raise NotCore(f"blocks of {block} of {dtype}")
    if int(call.attribute("output_dtype", 0)) not in (0, 1):
        raise NotCore("the result is not float32")
    shift = 0 if dtype.startswith("u") else 1 << (bits - 1)
    scales = np.moveaxis(_known(call, 1, "float32"), axis, -1)
    zeros = call.known(2).astype(np.int32) if call.has(2) else np.zeros(call.shape(1), np.int32)
    values = np.moveaxis(call.known(0).astype(np.int32) + shift, axis, -1)
    *lead, size = values.shape
    blocks = -(-size // block)
    if scales.shape != (*lead, blocks) or zeros.shape != call.shape(1):
        raise NotCore("scales or zero points do not belong to the blocks")
    whole = np.pad(values, [(0, 0)] * len(lead) + [(0, blocks * block - size)]).reshape(*lead, blocks, block)
    weight = call.apply(
        "DequantizeBlocks", call.constant(packed(whole, bits), "uint8"), call.constant(np.ascontiguousarray(scales), "float32"),
        call.constant(packed(np.moveaxis(zeros + shift, axis, -1), bits), "uint8"), bits=bits, size=size,
    )  # fmt: skip
    order = list(range(len(shape) - 1))
    return call.transpose(weight, (*order[:axis], len(shape) - 1, *order[axis:]))


ONNXRUNTIME_HANDLERS: Mapping[str, Handler] = {"MatMulNBits": _matmul_n_bits}
"""Handlers of operators of the domain com.microsoft."""
