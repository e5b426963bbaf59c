"""Match products and convolutions of bytes, with the steps that follow them, as calls of the kernels in bytes.c."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from egraph.tensor import PLAIN, Node, placeholders, walk
from egraph.tensor.ops.dtypes import BYTES
from lower.calls.call import Argument, Base, LibraryCall
from lower.calls.epilogue import Spine, spine, unsized
from lower.quantised import PRECISION as IN_BYTES
from lower.quantised import precisions_in_bytes, quantised
from lower.targets.cpu.epilogue import MATRIX_RANK, misplaced, product_operands, steps_of
from lower.views import Reason, Window, contiguous, lying, read

PRODUCT, TILES = "bytes.product", "bytes.tiles"
OPERATORS = ("MatMul", "Conv")
OF_INT32 = ("Add", "Sub")
"""Operators that are applied to sums in int32 before they become numbers."""
MOVES = ("Reshape", "Transpose")
READ = ("float32", "int32", *BYTES)
"""Element types of results, and of operands that the steps read."""
LEAST_OF_TILES = 8
IMAGE_RANK = 4
MOST_LANES = 16
"""Numbers in the longest vector, as bytes.c has it: columns of a packed constant are padded to a multiple."""
LARGEST = {"int8": 128, "uint8": 255}
"""The largest magnitude of a byte."""
MOST_ADDED = (2**31 - 1) // (255 * 255)
"""The number of products of two bytes whose sum always fits into an int32."""


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the implementations of an operator by itself."""
    return {"MatMul": (PRODUCT,), "Conv": (PRODUCT, TILES)}.get(op, ())


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the call that computes ``fragment``, or why there is none; operands and result are row-major by default.

    A fragment of float32 is computed as its twin in bytes, if the implementation says so.
    """
    implementation, _, precision = implementation.partition("@")
    if precision == IN_BYTES:
        parts = quantised(fragment)
        return parts if isinstance(parts, str) else match(parts.fragment, implementation, destination=destination)
    if precision:
        return f"sums of bytes are not computed in {precision}"
    if refused := _unsuitable(fragment):
        return refused

    base = lying(bases)
    matched = spine(fragment, frozenset(OPERATORS), destination or contiguous(fragment.type.sizes), base)
    if isinstance(matched, str):
        return matched
    if any(operand.type.dtype not in BYTES for operand in matched.anchor.inputs):
        return "it is no product of bytes"
    integers = _integer_steps(fragment, matched)
    steps = steps_of(matched.post_operations)
    if isinstance(integers, str) or isinstance(steps, str):
        return integers if isinstance(integers, str) else str(steps)
    operands = _product(matched.anchor, base)
    function, more = "bytes_product", list[int]()
    in_tiles = implementation == TILES
    if in_tiles and (unsuitable := _unsuitable_for_tiles(matched.anchor)):
        return unsuitable
    if isinstance(operands, str) and matched.anchor.op == "Conv":
        function, more = "bytes_tiles" if in_tiles else "bytes_convolution", _image_integers(matched.anchor)
        operands = _image(matched.anchor, base)
    if isinstance(operands, str):
        return operands
    arguments = (*operands, *steps[1])
    if refused := misplaced(matched.destination, arguments):
        return refused
    parameters: dict[str, Any] = {"function": function, "integers": [*more, integers, *steps[0]]}
    if not in_tiles and (elements := _packed_elements(fragment, matched.anchor, operands[1])):
        parameters["pack"] = {"operand": 1, "function": "bytes_pack", "elements": elements}
    return LibraryCall(function, parameters, arguments, matched.destination)


def _packed_elements(fragment: Node, anchor: Node, weights: Argument) -> int:
    """Return how many bytes packed weights take, if they are constants of signed bytes; 0 if the kernel reads weights as they lie.

    It does so for groups, and for an odd number of channels whose taps lie side by side. There the kernel pairs the last channel of a tap
    with the first one of the next tap, but packed weights pair channels of one tap alone.
    """
    leaf = next(leaf for leaf in placeholders(fragment) if leaf.integer("index") == weights.operand)
    if not leaf.attribute("constant") or leaf.type.dtype != "int8":
        return 0
    if len(weights.window.shape) == MATRIX_RANK:
        inputs, columns = weights.window.shape
        taps = 1
    else:
        columns, inputs, down, across = weights.window.shape
        taps = down * across
        if anchor.integer("group") > 1 or (inputs % 2 and across > 1):
            return 0
    return -(-columns // MOST_LANES) * MOST_LANES * taps * -(-inputs // 2) * 2


def operand_precisions(fragment: Node, implementation: str) -> Mapping[int, frozenset[str]] | Reason:
    """Return the precisions to which a call rounds each operand of a fragment."""
    call = match(fragment, implementation)
    if isinstance(call, str):
        return call
    if implementation.endswith(f"@{IN_BYTES}"):
        return precisions_in_bytes(fragment)
    return call.precisions(lambda _: PLAIN)


@lru_cache(maxsize=1 << 14)
def constant_orders(fragment: Node) -> Mapping[int, tuple[int, ...]]:
    """Return the order of axes in which constant weights are stored: taps first, columns last."""
    call = match(fragment, PRODUCT)
    if isinstance(call, str):  # an earlier version chose it: the launch reports why there is no call
        return {}
    argument = next(argument for argument in call.arguments if argument.role == "weights")
    leaf = next(leaf for leaf in placeholders(fragment) if leaf.integer("index") == argument.operand)
    sizes = leaf.type.sizes
    if not leaf.attribute("constant") or argument.window.shape != _viewed(argument, sizes):
        return {}
    order = (2, 3, 1, 0) if len(sizes) == IMAGE_RANK else tuple(range(len(sizes)))
    if len(sizes) != IMAGE_RANK and argument.window.strides[-1] != 1:
        order = (*order[:-2], order[-1], order[-2])
    return {argument.operand: order} if order != tuple(range(len(sizes))) else {}


def _viewed(argument: Argument, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of weights that are read whole, as they are or transposed."""
    if len(argument.window.shape) == IMAGE_RANK:
        return sizes
    matrix = sizes[:2] if len(sizes) == IMAGE_RANK else sizes
    is_transposed = len(sizes) == IMAGE_RANK or argument.window.strides[-1] != 1
    return tuple(reversed(matrix)) if is_transposed else matrix


def _unsuitable(fragment: Node) -> Reason | None:
    strange = next((node.type.dtype for node in walk((fragment,)) if node.type.dtype not in READ), None)
    return f"it holds {strange}" if strange is not None else unsized(fragment)


def _integer_steps(fragment: Node, matched: Spine) -> int | Reason:
    """Return how many steps are computed in int32; these are the first ones."""
    above = {matched.anchor}
    count = 0
    for node in walk((fragment,)):
        below = [operand for operand in node.inputs if operand in above]
        if node is matched.anchor or not below:
            continue
        above.add(node)
        if node.type.dtype != "int32" or node.op in MOVES:
            continue
        if node.op not in OF_INT32 or any(operand.type.dtype != "int32" for operand in node.inputs) or node.inputs[0] not in below:
            return f"{node.op} of int32 after a product is not computed"
        count += 1
    return count


def _product(anchor: Node, base: Base) -> tuple[Argument, ...] | Reason:
    """Return x [rows.., K] and weights [K, N] of a product by one matrix."""
    operands = product_operands(anchor, base)
    if isinstance(operands, str):
        return operands
    shape = operands[1].window.shape
    if len(shape) != MATRIX_RANK:
        return "the right operand is not one matrix"
    return f"sums of {shape[0]:,} products of bytes may exceed an int32" if shape[0] > MOST_ADDED else operands


def _image(anchor: Node, base: Base) -> tuple[Argument, ...] | Reason:
    """Return x [n, h, w, C] and weights [N, C / groups, th, tw] of a convolution of images."""
    a: dict[str, Any] = dict(anchor.attributes)
    if a["layout"] != "NHWC" or anchor.type.rank != IMAGE_RANK:
        return "it is no convolution of images with their channels last"
    source, weights = (read(operand, base) for operand in anchor.inputs)
    if isinstance(source, str) or isinstance(weights, str):
        return source if isinstance(source, str) else str(weights)
    shape = anchor.inputs[1].type.sizes
    if math.prod(shape[1:]) > MOST_ADDED:
        return f"sums of {math.prod(shape[1:]):,} products of bytes may exceed an int32"
    return Argument("src", source[0].integer("index"), source[1]), Argument("weights", weights[0].integer("index"), weights[1])


def _unsuitable_for_tiles(anchor: Node) -> Reason | None:
    a: dict[str, Any] = dict(anchor.attributes)
    if anchor.op != "Conv" or anchor.inputs[1].type.sizes[2:] != (3, 3) or {*a["strides"], *a["dilations"], a["group"]} != {1}:
        return "tiles are of 3 x 3 taps side by side, without groups and strides"
    channels = anchor.inputs[1].type.sizes[1]
    if channels < LEAST_OF_TILES:
        return f"for {channels} channels, transforming takes longer than multiplying"
    largest = math.prod(LARGEST[operand.type.dtype] for operand in anchor.inputs)
    return None if channels * 9 * 4 * largest < 2**31 else f"4 times a sum of {9 * channels:,} products may exceed an int32"


def _image_integers(anchor: Node) -> list[int]:
    a: dict[str, Any] = dict(anchor.attributes)
    taps = anchor.inputs[1].type.sizes[2:]
    return [*a["strides"], *a["pads"][:2], *a["dilations"], a["group"], *taps] if anchor.type.rank == IMAGE_RANK else []
