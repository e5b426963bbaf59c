"""Products of bytes in the place of products of numbers: what a kernel of precision ``int8`` runs.

In a program, ``onednn.matmul@int8`` stands for the product x W of numbers, as its twin in float32 does, and records the range in which x
was seen. When the program is planned, the kernel becomes two kernels of the language. The first quantises x to bytes q, so that x is near
s (q - z). The second multiplies the bytes by W near w t[n], quantised once with a scale of its own for every output:

    y[m,n] = s t[n] sum_k q[m,k] w[k,n] - s t[n] z sum_k w[k,n],

where the second term is a constant. Bias and activation follow in the same call, in float32. Kernels that read the same x share q. If all
readers of x read it as q, the kernel that computes x writes q. Convolutions pad with 0, which must be the byte 0: their z is 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

import numpy as np

from egraph.errors import LowerError
from egraph.tensor import (
    PLAIN,
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

Reads = Callable[[Node, Implementation], "Mapping[int, frozenset[str]] | Reason"]
"""Returns the precisions in which an implementation reads a fragment's operands, or why it does not compute it."""
PRECISION = "int8"
WEIGHTS = "int8"
LARGEST_WEIGHT = LIMITS[WEIGHTS][1]
"""Weights lie between this number and its negative, so that 0 is in the middle."""
MEASURED_RANGE = (-4.0, 4.0)
"""The range of operands of kernels that are timed alone, on random numbers; times do not depend on it."""
MOST_ADDED = (2**31 - 1) // (255 * 128)
"""The most products of two bytes whose sum always fits into an int32."""


@dataclass(frozen=True)
class Quantised:
    """A fragment with its product of numbers as a product of bytes."""

    fragment: Node
    """The fragment over the same operands, except that the weights are bytes and further operands follow."""
    nodes: Mapping[Node, Node]
    """The new node of every node of the original fragment."""
    source: int
    """The index of the operand that is quantised. The further operands are its bytes, then scales, then, for a product, offsets."""
    weights: int
    """The index of the weights, both in numbers and in bytes."""
    window: Window
    """The window over the stored weights by which the product multiplies."""
    outputs_axis: int
    """The axis of the window along which every output has its own scale."""
    scales: TensorType

    @property
    def has_offsets(self) -> bool:
        """Return whether 0 may be quantised to a byte other than 0."""
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


def precisions_in_bytes(fragment: Node) -> dict[int, frozenset[str]]:
    """Return the precisions to which the twin in bytes of a fragment rounds each operand, by its number."""
    parts = quantised(fragment)
    in_bytes = () if isinstance(parts, str) else (parts.source, parts.weights)
    indices = (leaf.integer("index") for leaf in placeholders(fragment))
    return {index: frozenset({PRECISION if index in in_bytes else PLAIN}) for index in indices}


@dataclass(frozen=True)
class Scale:
    """How numbers become bytes: x is near ``step`` (q - ``zero``)."""

    step: float
    zero: int
    dtype: str

    @staticmethod
    def of(seen: tuple[float, float], *, has_offsets: bool) -> Scale:
        """Return the scale for numbers in a range; without offsets, 0 becomes the byte 0."""
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
        return _numbers({f"einsat.step.{self.step!r}": step, f"einsat.zero.{self.dtype}.{self.zero}": zero})

    @property
    def factors(self) -> dict[Node, np.ndarray]:
        """Return the factor of the numbers, and the number to add unless it is 0, before they are rounded to bytes.

        A product is faster than the quotient in ``Quantize``. Its last bit may differ, and then a byte may be the next one.
        """
        factor, zero = np.array(1 / self.step, np.float32), np.array(self.zero, np.float32)
        return _numbers({f"einsat.factor.{self.step!r}": factor} | ({f"einsat.zero.{self.zero}": zero} if self.zero else {}))


def kernel_scale(kernel: Kernel) -> Scale:
    """Return the scale of the operand that a kernel quantises, by the range in which it was seen."""
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


def expanded(program: Program, generated: Implementation, reads: Reads | None = None) -> Program:
    """Return the program with kernels of precision ``int8`` expanded into those that they consist of; ``generated`` quantises.

    If all readers of a value read it as the same bytes, its own kernel writes it in bytes, provided that ``reads`` accepts this for its
    implementation. No separate pass quantises it then.
    """
    if not any(map(is_quantised, program.kernels)):
        return program
    asked = _read_in_bytes(program) if reads else {}
    written: dict[Node, Scale] = {}
    new: dict[Node, Node] = {}
    inside: dict[Node, Node] = {}
    made: dict[str, Callable[[], np.ndarray]] = {}
    kernels: dict[Node, Kernel] = {}

    def kept(constants: Mapping[Node, np.ndarray]) -> tuple[Node, ...]:
        made.update({node.string("digest"): partial(np.asarray, value) for node, value in constants.items()})
        return tuple(constants)

    for kernel in program.kernels:
        inputs, fragment = [new.get(node, node) for node in kernel.inputs], kernel.fragment
        nodes: Mapping[Node, Node] = {node: node for node in walk((fragment,))}
        implementation = kernel.implementation
        if is_quantised(kernel):
            scale, weights = kernel_scale(kernel), inputs[_parts(kernel).weights]
            parts = _parts(kernel, scale.dtype)
            source = inputs[parts.source]
            if kernel.inputs[parts.source] not in written:
                quantising = _quantising(source, kept(scale.constants), generated)
                kernels.setdefault(quantising.output, quantising)
                source = quantising.output
            fragment, nodes = parts.fragment, parts.nodes
            inputs[parts.weights], further = _weights(weights, parts, scale, program.graph.tensors, made)
            if all(leaf.integer("index") != parts.source for leaf in placeholders(fragment)):
                inputs[parts.source] = source
            inputs = [*inputs[: 1 + max(leaf.integer("index") for leaf in placeholders(kernel.fragment))], source, *further]
            implementation = implementation.in_precision("float32")
        elif implementation.is_view and kernel.inputs[0] in written:
            written[kernel.output] = scale = written[kernel.inputs[0]]
            nodes = rewrite((fragment,), partial(_in_type, scale.dtype))
            fragment = nodes[fragment]
        target = fragment
        if kernel.output in asked and not implementation.is_view and reads is not None:
            in_bytes = _saturated(fragment, scale := asked[kernel.output], len(inputs))
            if not isinstance(reads(in_bytes, implementation), str):
                written[kernel.output], target = scale, in_bytes
                inputs.extend(kept(scale.factors))
        before, after = bound(kernel.fragment, kernel.inputs), bound(target, inputs)
        inside |= {before[old]: after[now] for old, now in nodes.items() if old.op != "Placeholder" and now in after}
        new[kernel.output] = after[target]
        kernels[new[kernel.output]] = replace(
            kernel, fragment=target, inputs=tuple(inputs), output=new[kernel.output], implementation=implementation
        )
    graph = replace(renamed(program.graph, {**new, **inside}), tensors=Tensors(program.graph.tensors, made))
    return replace(program, graph=graph, kernels=tuple(kernels.values()))


def _read_in_bytes(program: Program) -> dict[Node, Scale]:
    """Return the values that are read only as bytes of one scale, also behind views, except outputs of the program."""
    readers: dict[Node, list[Kernel]] = {}
    for kernel in program.kernels:
        for node in dict.fromkeys(kernel.inputs):
            readers.setdefault(node, []).append(kernel)
    roots, asked = set(program.graph.roots), dict[Node, Scale]()
    for kernel in reversed(program.kernels):
        scales = {_read_as(reader, kernel.output, asked) for reader in readers.get(kernel.output, ())}
        scale = scales.pop() if len(scales) == 1 else None
        if scale is not None and kernel.output not in roots:
            asked[kernel.output] = scale
    return asked


def _read_as(reader: Kernel, value: Node, asked: Mapping[Node, Scale]) -> Scale | None:
    """Return the scale of the bytes as which a kernel reads a value; None if it reads numbers."""
    if reader.implementation.is_view and len(reader.inputs) == 1:
        return asked.get(reader.output)
    if not is_quantised(reader):
        return None
    parts, scale = _parts(reader), kernel_scale(reader)
    others = {leaf.integer("index") for leaf in placeholders(parts.fragment)}
    is_number, positions = parts.source in others, [i for i, node in enumerate(reader.inputs) if node is value]
    return scale if positions == [parts.source] and not is_number else None


def _saturated(fragment: Node, scale: Scale, count: int) -> Node:
    """Return a fragment of ``count`` operands with its result in bytes; the factors are further operands."""
    factor, *zero = (placeholder(count + i, node.type, constant=True) for i, node in enumerate(scale.factors))
    scaled = apply("Mul", fragment, factor)
    return apply("Saturate", apply("Add", scaled, *zero) if zero else scaled, to=scale.dtype)


def _in_type(dtype: str, old: Node, below: tuple[Node, ...]) -> Node:
    """Return a node of a view over a value of another element type."""
    type = TensorType(dtype, old.type.shape)
    return placeholder(old.integer("index"), type) if old.op == "Placeholder" else make(old.op, below, old.attributes, type)


def _parts(kernel: Kernel, dtype: str = "uint8") -> Quantised:
    parts = quantised(kernel.fragment, dtype)
    if isinstance(parts, str):
        raise LowerError(f"{kernel.implementation} cannot compute this kernel: {parts}", where=str(kernel.output))
    return parts


def _quantising(source: Node, constants: tuple[Node, ...], generated: Implementation) -> Kernel:
    """Return the kernel that quantises a value."""
    inputs = (source, *constants)
    leaves = [placeholder(index, node.type, constant=index > 0) for index, node in enumerate(inputs)]
    fragment = apply("Quantize", *leaves)
    return Kernel(fragment, inputs, bind(fragment, inputs), generated)


def _weights(
    weights: Node, parts: Quantised, scale: Scale, tensors: Mapping[str, np.ndarray], made: dict[str, Callable[[], np.ndarray]]
) -> tuple[Node, list[Node]]:
    """Return weights in bytes, and scales and offsets of the outputs; ``made`` gets the functions that compute them."""
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


def _numbers(values: Mapping[str, np.ndarray]) -> dict[Node, np.ndarray]:
    """Return constants with these digests, and their values."""
    return {_constant(digest, TensorType(value.dtype.name, value.shape)): value for digest, value in values.items()}


def _constant(digest: str, type: TensorType) -> Node:
    return make("Constant", (), attributes(digest=digest), type)
