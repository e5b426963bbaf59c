"""Products of bytes in the place of products of numbers: what a kernel of precision ``int8`` runs.

In a program, ``onednn.matmul@int8`` stands for the product x W of numbers, as its twin in float32 does, and has the range that x was
seen in. When the program is planned it becomes two kernels of the language: x is quantised, to bytes q with x near s (q - z), and bytes
are multiplied by W near w t[n], quantised once with a scale of its own for every output:

    y[m,n] = s t[n] sum_k q[m,k] w[k,n] - s t[n] z sum_k w[k,n],

where the second term is a constant. Bias and activation follow in the same call, in float32. Kernels that read the same x share q.
Convolutions pad with 0, which has to be a byte's 0: their z is 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

import numpy as np

from egraph.errors import LowerError
from egraph.tensor import (
    Implementation,
    Kernel,
    Node,
    Program,
    TensorType,
    attributes,
    bind,
    make,
    placeholder,
    placeholders,
    rewrite,
    walk,
)
from egraph.tensor.ops import apply
from egraph.tensor.ops.quantisation import LIMITS
from egraph.tensor.storage import bound, renamed
from lower.packing import Tensors
from lower.views import Reason, Window, contiguous, read

PRECISION = "int8"
WEIGHTS = "int8"
LARGEST_WEIGHT = LIMITS[WEIGHTS][1]
"""Weights lie between this number and its negative, so that 0 is in the middle."""
MEASURED_RANGE = (-4.0, 4.0)
"""The range of operands of kernels that are timed alone, on random numbers: times do not depend on it."""
MOST_ADDED = (2**31 - 1) // (255 * 128)
"""The most products of two bytes whose sum surely fits into an int32."""


@dataclass(frozen=True)
class Quantised:
    """What a fragment's product of numbers is in bytes."""

    fragment: Node
    """Over the same operands, but for the weights, which are bytes, and further ones."""
    nodes: Mapping[Node, Node]
    """What stands for every node of the fragment before."""
    source: int
    """The operand that is quantised, by index. Its bytes are a further operand, then scales, then, of a product, offsets."""
    weights: int
    """The weights, by index, in numbers and in bytes."""
    window: Window
    """Which elements of the weights, as they lie, the product multiplies by."""
    outputs_axis: int
    """The axis of these along which every output has its own scale."""
    scales: TensorType

    @property
    def has_offsets(self) -> bool:
        """Return whether bytes of the quantised operand may mean 0 with any number."""
        return self.outputs_axis != 0


@lru_cache(maxsize=1 << 14)
def quantised(fragment: Node, dtype: str = "uint8") -> Quantised | Reason:
    """Return a fragment with its product by weights in bytes, ``dtype`` for the other operand, or why there is none."""
    anchors = [node for node in walk((fragment,)) if node.op in ("MatMul", "Conv", "ConvTranspose")]
    if len(anchors) != 1 or anchors[0].op == "ConvTranspose" or any(node.type.dtype != "float32" for node in walk((fragment,))):
        return "one product or convolution of float32 becomes one of bytes"
    (anchor,) = anchors
    operands = [read(operand, lambda leaf: contiguous(leaf.type.sizes)) for operand in anchor.inputs]
    if isinstance(operands[0], str) or isinstance(operands[1], str) or len(operands) != 2:
        return "the operands of a product of bytes are not views of what is stored"
    (source, _), (weights, window) = operands[0], operands[1]
    if not weights.attribute("constant") or source.attribute("constant"):
        return "only a product by constant weights becomes one of bytes"
    is_product = anchor.op == "MatMul"
    if is_product and len(window.shape) != 2:
        return "the weights are no matrix"
    outputs_axis = 1 if is_product else 0
    outputs = window.shape[outputs_axis]
    added = int(np.prod(window.shape)) // max(1, outputs)
    if added > MOST_ADDED:
        return f"sums of {added:,} products of bytes may exceed an int32"
    layout = "" if is_product else anchor.string("layout")
    shape = (outputs,) + (1,) * (anchor.type.rank - 2 if layout == "NCHW" else 0)

    count = 1 + max(leaf.integer("index") for leaf in placeholders(fragment))
    bytes_leaf = placeholder(count, TensorType(dtype, source.type.shape))
    weights_leaf = placeholder(weights.integer("index"), TensorType(WEIGHTS, window.shape), constant=True)
    scales = placeholder(count + 1, TensorType("float32", shape), constant=True)

    def viewed(old: Node, below: tuple[Node, ...]) -> Node:
        return bytes_leaf if old is source else make(old.op, below, old.attributes, TensorType(dtype, old.type.shape))

    seen = rewrite((anchor.inputs[0],), viewed)[anchor.inputs[0]]
    result = make(anchor.op, (seen, weights_leaf), anchor.attributes, TensorType("int32", anchor.type.shape))
    result = apply("Cast", result, to="float32")
    result = apply("Mul", result, scales)
    if is_product:
        result = apply("Add", result, placeholder(count + 2, TensorType("float32", shape), constant=True))
    nodes = rewrite((fragment,), lambda old, below: result if old is anchor else make(old.op, below, old.attributes, old.type))
    new = nodes[fragment]
    if weights in placeholders(new):
        return "the weights are read beside the product, too"
    return Quantised(new, nodes, source.integer("index"), weights.integer("index"), window, outputs_axis, scales.type)


@dataclass(frozen=True)
class Scale:
    """How numbers become bytes: x is near ``step`` (q - ``zero``)."""

    step: float
    zero: int
    dtype: str

    @staticmethod
    def of(seen: tuple[float, float], *, has_offsets: bool) -> Scale:
        """Return the scale for numbers in a range; without offsets, 0 is the byte 0."""
        low, high = min(0.0, seen[0]), max(0.0, seen[1])
        dtype = "uint8" if has_offsets or low == 0 else "int8"
        least, most = LIMITS[dtype]
        step = float(np.float32(max(high / most, low / -most) if dtype == "int8" else (high - low) / (most - least)))
        step = step if np.isfinite(step) and step > 0 else 1.0
        return Scale(step, round(-low / step) if has_offsets else 0, dtype)

    @property
    def constants(self) -> dict[Node, np.ndarray]:
        """Return step and zero as constants with their values."""
        step, zero = np.array(self.step, np.float32), np.array(self.zero, self.dtype)
        digests = {f"einsat.step.{self.step!r}": step, f"einsat.zero.{self.dtype}.{self.zero}": zero}
        return {_constant(digest, TensorType(value.dtype.name, ())): value for digest, value in digests.items()}


def kernel_scale(kernel: Kernel) -> Scale:
    """Return how the operand that a kernel quantises becomes bytes, by the range that it was seen in."""
    if kernel.source_range is None:
        fix = "optimise the model with --inputs: the program that is written has the ranges of its operands"
        raise LowerError("a kernel computes in bytes, and the range of its operand is not known", where=str(kernel.output), fix=fix)
    return Scale.of(kernel.source_range, has_offsets=_parts(kernel).has_offsets)


def quantised_weights(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weights in bytes, with the scales of the outputs along an axis: the largest weight of each is the largest byte."""
    others = tuple(each for each in range(weights.ndim) if each != axis)
    scales = np.max(np.abs(weights), axis=others, keepdims=True, initial=0.0) / np.float32(LARGEST_WEIGHT)
    scales = np.where(scales > 0, scales, np.float32(1))
    return np.rint(weights / scales).astype(WEIGHTS), scales.reshape(-1)


def source_of(kernel: Kernel) -> Node:
    """Return the value that a kernel quantises."""
    return kernel.inputs[_parts(kernel).source]


def is_quantised(kernel: Kernel) -> bool:
    """Return whether a kernel computes in bytes."""
    return kernel.implementation.precision == PRECISION


def expanded(program: Program, generated: Implementation) -> Program:
    """Return the program with the kernels that products of bytes are made of; ``generated``: what quantises."""
    if not any(map(is_quantised, program.kernels)):
        return program
    new: dict[Node, Node] = {}
    inside: dict[Node, Node] = {}
    made: dict[str, Callable[[], np.ndarray]] = {}
    kernels: dict[Node, Kernel] = {}
    for kernel in program.kernels:
        inputs, fragment = [new.get(node, node) for node in kernel.inputs], kernel.fragment
        nodes: Mapping[Node, Node] = {node: node for node in walk((fragment,))}
        implementation = kernel.implementation
        if is_quantised(kernel):
            scale, weights = kernel_scale(kernel), inputs[_parts(kernel).weights]
            parts = _parts(kernel, scale.dtype)
            quantising = _quantising(inputs[parts.source], scale, generated)
            kernels.setdefault(quantising.output, quantising)
            made |= {node.string("digest"): partial(np.asarray, value) for node, value in scale.constants.items()}
            fragment, nodes = parts.fragment, parts.nodes
            inputs[parts.weights], further = _weights(weights, parts, scale, program.graph.tensors, made)
            if all(leaf.integer("index") != parts.source for leaf in placeholders(fragment)):
                inputs[parts.source] = quantising.output
            inputs = [*inputs[: 1 + max(leaf.integer("index") for leaf in placeholders(kernel.fragment))], quantising.output, *further]
            implementation = implementation.in_precision("float32")
        before, after = bound(kernel.fragment, kernel.inputs), bound(fragment, inputs)
        inside |= {before[old]: after[now] for old, now in nodes.items() if old.op != "Placeholder" and now in after}
        new[kernel.output] = after[fragment]
        kernels[new[kernel.output]] = replace(
            kernel, fragment=fragment, inputs=tuple(inputs), output=new[kernel.output], implementation=implementation
        )
    graph = replace(renamed(program.graph, {**inside, **new}), tensors=Tensors(program.graph.tensors, made))
    return replace(program, graph=graph, kernels=tuple(kernels.values()))


def _parts(kernel: Kernel, dtype: str = "uint8") -> Quantised:
    parts = quantised(kernel.fragment, dtype)
    if isinstance(parts, str):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {parts}", where=str(kernel.output))
    return parts


def _quantising(source: Node, scale: Scale, generated: Implementation) -> Kernel:
    """Return the kernel that makes bytes of a value."""
    inputs = (source, *scale.constants)
    leaves = [placeholder(index, node.type, constant=index > 0) for index, node in enumerate(inputs)]
    fragment = apply("Quantize", *leaves)
    return Kernel(fragment, inputs, bind(fragment, inputs), generated)


def _weights(
    weights: Node, parts: Quantised, scale: Scale, tensors: Mapping[str, np.ndarray], made: dict[str, Callable[[], np.ndarray]]
) -> tuple[Node, list[Node]]:
    """Return weights in bytes, and scales and offsets of the outputs; ``made`` gets how each is computed."""
    if weights.op != "Constant":
        raise LowerError("weights are quantised after they are computed", where=str(weights))
    digest, axis = weights.string("digest"), parts.outputs_axis
    part = hashlib.sha256(repr((parts.window, axis)).encode()).hexdigest()[:16]

    @cache
    def values() -> tuple[np.ndarray, np.ndarray]:
        array, window = np.ascontiguousarray(tensors[digest]).reshape(-1)[parts.window.offset :], parts.window
        strides = [stride * array.itemsize for stride in window.strides]
        return quantised_weights(np.lib.stride_tricks.as_strided(array, window.shape, strides, writeable=False), axis)

    def scales() -> np.ndarray:
        return (values()[1] * np.float32(scale.step)).reshape(parts.scales.sizes)

    def offsets() -> np.ndarray:
        sums = values()[0].sum(axis=0, dtype=np.int64)
        return np.asarray(-scale.zero * sums * scales().astype(np.float64), np.float32)

    name = f"{digest}.{part}"
    in_bytes = _constant(f"{name}.{WEIGHTS}", TensorType(WEIGHTS, parts.window.shape))
    made[in_bytes.string("digest")] = lambda: values()[0]
    further = {f"{name}.scales.{scale.step!r}": scales}
    if parts.has_offsets:
        further[f"{name}.offsets.{scale.step!r}.{scale.zero}"] = offsets
    made |= further
    return in_bytes, [_constant(each, parts.scales) for each in further]


def _constant(digest: str, type: TensorType) -> Node:
    return make("Constant", (), attributes(digest=digest), type)
