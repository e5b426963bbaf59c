"""The meaning of a library's call: its recipe as operators, evaluated like everything on the reference device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.errors import ArtefactError, LibraryMissing

if TYPE_CHECKING:
    from egraph.tensor import Node

DROPPED_BITS: Mapping[str, int] = {"tf32": 13, "bf16": 16}
"""Bits of a float32's fraction that a precision lacks."""


def evaluate_call(spec: Mapping[str, Any], operands: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Return the result of a call, computed in float64 from its recipe alone and rounded to float32."""
    try:
        from egraph.tensor import TensorType, placeholder
        from egraph.tensor.ops.parts import evaluate_in_parts
    except ImportError as error:
        what = "library calls are executed by the meanings of their operators here, and the package that holds them is not installed"
        raise LibraryMissing(what, fix="pip install einsat") from error
    leaves = {placeholder(i, TensorType("float32", each.shape)): each for i, each in enumerate(operands)}
    fragment = _fragment(spec, list(leaves), shape)
    if fragment.type.sizes != shape:
        raise ArtefactError(f"a call of {spec['primitive']} computes {fragment.type.sizes}, and its result is {shape}")
    multiplied = [spec["arguments"][role] for role in ("src", "weights")]
    precision = spec.get("precision", "float32")
    leaves = {leaf: rounded(each, precision) if i in multiplied else each for i, (leaf, each) in enumerate(leaves.items())}
    result, start = np.empty(math.prod(shape), np.float32), 0
    with np.errstate(all="ignore"):
        for part in evaluate_in_parts(fragment, leaves):
            result[start : start + part.size] = part.reshape(-1)
            start += part.size
    return result.reshape(shape)


def rounded(array: np.ndarray, precision: str) -> np.ndarray:
    """Return float32 numbers rounded to nearest as by tensor cores; beyond the range of fp16 they become infinite."""
    if precision == "fp16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    dropped_bits = DROPPED_BITS.get(precision)
    if dropped_bits is None:
        return array
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    half = np.uint32(1 << (dropped_bits - 1))
    kept = (bits + half) & np.uint32(0xFFFFFFFF << dropped_bits & 0xFFFFFFFF)
    return np.where(np.isfinite(array), kept.view(np.float32), array)


def _fragment(spec: Mapping[str, Any], leaves: Sequence[Node], shape: tuple[int, ...]) -> Node:
    from egraph.tensor.ops import apply

    roles = {role: leaves[position] for role, position in spec["arguments"].items()}
    source, weights = roles["src"], roles["weights"]
    if spec["primitive"] == "matmul":
        result = apply("MatMul", source, weights)
    else:
        windows: dict[str, Any] = {
            "strides": tuple(spec["strides"]), "dilations": tuple(spec["dilations"]),
            "pads": (*spec["pads_before"], *spec["pads_after"]), "layout": "NCHW",
        }  # fmt: skip
        channels = source.type.sizes[1]
        if spec["primitive"] == "convolution":
            result = apply("Conv", source, weights, group=channels // weights.type.sizes[1], **windows)
        else:
            group, none = shape[1] // weights.type.sizes[1], (0,) * len(spec["strides"])
            result = apply("ConvTranspose", source, weights, group=group, output_padding=none, **windows)
    for operation in spec["post_ops"]:
        if operation["kind"] == "binary":
            result = apply("Add", result, leaves[operation["argument"]])
    if "bias" in roles:
        result = apply("Add", result, roles["bias"])
    for operation in spec["post_ops"]:
        if operation["kind"] == "eltwise":
            is_relu = operation["algorithm"] == "relu"
            result = apply("Relu", result) if is_relu else apply("Gelu", result, approximate="tanh")
    return result
