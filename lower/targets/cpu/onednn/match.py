"""Match a whole fragment: anchor, prologue views, epilogue, destination.

Sums of products of bytes are exact. Steps after them in the same call are computed in float32, in the order of the fragment, and a final
byte is rounded half to even and saturated. So sums of int32 with other int32 are not fused: float32 would round each before they are added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from egraph.tensor import ELEMENT_TYPES, PLAIN, Node, placeholders, walk
from egraph.tensor.ops.dtypes import BYTES
from egraph.tensor.storage import stored, stored_types
from lower.calls.call import Anchor, Argument, Base, LibraryCall, PostOperation
from lower.calls.contractions import convolution, convolution_as_matmul, matmul, transposed_convolution
from lower.calls.epilogue import Resolver, Spine, first_call, unsized
from lower.quantised import PRECISION as IN_BYTES
from lower.quantised import precisions_in_bytes, quantised
from lower.targets.cpu.onednn.reductions import global_pooling, layer_normalization, local_response, pooling, reduction, resampling
from lower.targets.cpu.tiles import ROUNDED, SPLIT, split_is_slow
from lower.views import Reason, Window, contiguous, image_orders, in_one_order, lying
from runtime.processor import x86_flags

LANES, MOST_LANES = 16, 64
SAFE_BLOCK_BYTES = 1 << 19
"""The most bytes of weights of one block of outputs for which a strided deconvolution sums in one go, so that its epilogue is right."""


def _swapped_products(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """A product computed as its transpose: B^T A^T is written row by row if A B is wanted column by column."""
    anchors = matmul(node, base)
    return anchors if isinstance(anchors, str) else tuple(map(_swapped, anchors))


def _swapped(anchor: Anchor) -> Anchor:
    """Return the call that computes the transpose of a product, without a bias: its rows are the columns of the product."""
    left, right = anchor.arguments

    def turned(window: Window) -> Window:
        rank = len(window.shape)
        return window.transpose((*range(rank - 2), rank - 1, rank - 2))

    def arrange(window: Window) -> Window | Reason:
        arranged = anchor.arrange(window)
        return arranged if isinstance(arranged, str) else turned(arranged)

    arguments = (replace(right, role=left.role, window=turned(right.window)), replace(left, role=right.role, window=turned(left.window)))
    return replace(anchor, arguments=arguments, arrange=arrange, bias_axis=None)


def _deconvolution(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """A transposed convolution, with an epilogue only if it does not sum in parts."""
    anchors = transposed_convolution(node, base)
    return anchors if isinstance(anchors, str) else tuple(replace(anchor, fuses_nothing=_partial_sums(node)) for anchor in anchors)


def _partial_sums(node: Node) -> Reason:
    """Return why a strided deconvolution may have no epilogue; empty if it may.

    If the weights do not fit in the cache, oneDNN 3.2 (brgconv_strided) sums over blocks of input channels and applies bias and
    post-operations to every partial sum. Wrong results were seen from 1 MiB on, with 1 MiB of cache.
    """
    a: dict[str, Any] = dict(node.attributes)
    if all(step == 1 for step in a["strides"]):
        return ""
    inputs, outputs, *taps = node.inputs[1].type.sizes
    lanes = min(MOST_LANES, -(-outputs // LANES) * LANES)
    block_bytes = 4 * inputs // a["group"] * math.prod(taps) * lanes
    if block_bytes <= SAFE_BLOCK_BYTES:
        return ""
    return f"a strided deconvolution with {block_bytes >> 10} KiB of weights for {lanes} outputs sums in parts, before its epilogue"


IMPLEMENTATIONS: tuple[tuple[str, tuple[str, ...], Resolver], ...] = (
    ("onednn.convolution", ("Conv",), convolution),
    ("onednn.matmul", ("Conv",), convolution_as_matmul),
    ("onednn.matmul", ("MatMul",), matmul),
    ("onednn.deconvolution", ("ConvTranspose",), _deconvolution),
    ("onednn.pooling", ("AveragePool",), pooling),
    ("onednn.pooling", ("ReduceMean",), global_pooling),
    ("onednn.reduction", ("ReduceSum", "ReduceMean"), reduction),
    ("onednn.layer_normalization", ("LayerNormalization",), layer_normalization),
    ("onednn.lrn", ("LRN",), local_response),
    ("onednn.resampling", ("Resize",), resampling),
)
"""Every way to run an operator by the library: (name, operators, resolver)."""

READ_ROUNDED: Mapping[str, tuple[str, ...]] = {"convolution": ("src", "weights"), "matmul": ("src", "weights")}
"""The operands, by primitive, that kernels of a lower precision read rounded to it; sums and all other operands stay float32."""

READ_STORED: Mapping[str, str] = {"layer_normalization": "bfloat16"}
"""The element type, by primitive, in which operands and results of kernels that compute in float32 may be stored."""
PRODUCTS = ("MatMul", "Conv")
X86_FEATURES = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Instructions that multiply bytes into int32. Without them the library uses int16, which saturates, so that its sums are wrong."""
MOST_POST_OPERATIONS, MOST_OF_BYTES = 6, 16
"""The most post-operations of one call, and those after a product of bytes: a result that becomes bytes and numbers again takes nine."""
IMAGE_PRIMITIVES = ("convolution", "deconvolution", "pooling", "resampling")
"""Primitives for which the library has fast kernels only if source and result lie in memory in the same order."""


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the library implementations of an operator."""
    return tuple(name for name, ops, _ in IMPLEMENTATIONS if op in ops)


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the library call that computes ``fragment``, or why there is none.

    ``bases[i]`` is where placeholder i lies and ``destination`` where the result goes (row-major by default). If ``destination`` is given
    and has gaps, the call may be one of several pieces.
    """
    implementation, _, precision = implementation.partition("@")
    if precision == IN_BYTES:
        parts = quantised(fragment)
        return parts if isinstance(parts, str) else match(parts.fragment, implementation, destination=destination)
    types, fragment = stored_types(fragment), stored(fragment).fragment
    if is_integer(fragment) and (reason := unsuitable_integers(fragment)):
        return reason
    if (reason := unsized(fragment)) is not None:
        return reason
    resolvers = {op: resolver for name, ops, resolver in IMPLEMENTATIONS if name == implementation for op in ops}

    def completed(anchor: Anchor, matched: Spine) -> LibraryCall | Reason:
        call = _complete(anchor, matched, fragment, splits=destination is not None)
        if isinstance(call, str):
            return call
        if precision and (call.primitive not in READ_ROUNDED or matched.anchor.type.dtype != "float32"):
            return f"the library's {call.primitive} of {matched.anchor.type.dtype} rounds no operand"
        rounded_to = ELEMENT_TYPES[ROUNDED if precision == SPLIT else precision] if precision else ""
        readable = "" if precision == SPLIT else rounded_to or READ_STORED.get(call.primitive)
        if refused := types - {readable}:
            return f"the library's {call.primitive} of {precision or PLAIN} reads and writes no {', '.join(sorted(refused))}"
        if precision == SPLIT:
            if (reason := split_is_slow() or _unsplittable(call)) is not None:
                return reason
            call = replace(call, parameters={**call.parameters, "split": True})
        return call.reading(rounded_to, READ_ROUNDED[call.primitive]) if precision else call

    lies, into = lying(bases), destination or contiguous(fragment.type.sizes)
    call = first_call(fragment, resolvers, into, lies, completed)
    is_moved = destination is not None or any(node.op == "Transpose" for node in walk((fragment,)))
    if isinstance(call, str) and is_moved and "MatMul" in resolvers and not is_integer(fragment):
        swapped = first_call(fragment, {"MatMul": _swapped_products}, into, lies, completed)
        return call if isinstance(swapped, str) else swapped
    return call


def operand_precisions(fragment: Node, implementation: str) -> Mapping[int, frozenset[str]] | Reason:
    """Return the precisions to which a call rounds each operand of a fragment: several if it reads one in several roles."""
    call = match(fragment, implementation)
    if isinstance(call, str):
        return call
    if implementation.endswith(f"@{IN_BYTES}"):
        return precisions_in_bytes(fragment)
    return call.precisions(lambda argument: implementation.partition("@")[2] if argument.dtype else PLAIN)


def _complete(anchor: Anchor, matched: Spine, fragment: Node, *, splits: bool) -> LibraryCall | Reason:
    of_bytes = matched.anchor.inputs[0].type.dtype in BYTES
    if of_bytes and (refused := unsuitable_arguments(fragment, anchor, anchor.arguments)):
        return refused
    destination = anchor.arrange(matched.destination)
    if isinstance(destination, str):
        return destination
    most = MOST_OF_BYTES if of_bytes else MOST_POST_OPERATIONS
    if len(matched.post_operations) > most:
        return f"{len(matched.post_operations)} post-operations are more than {most}"
    if matched.post_operations and anchor.fuses_nothing:
        return anchor.fuses_nothing
    arguments, post_operations = list(anchor.arguments), []
    for position, operation in enumerate(matched.post_operations):
        if operation.kind not in anchor.fuses:
            return f"{anchor.primitive} takes no {operation.kind} post-operation"
        if operation.window is None:
            post_operations.append({k: v for k, v in _plain(operation).items() if k in ("kind", "algorithm", "alpha", "beta")})
            continue
        window = anchor.arrange(operation.window)
        if isinstance(window, str):
            return window
        window = window.unbroadcast()
        if operation.kind == "prelu" and sum(size > 1 for size in window.shape) > 1:
            return "the slopes of a PRelu post-operation vary along more than one axis"
        assert operation.operand is not None
        if position == 0 and operation.algorithm == "add" and _is_bias(window, destination, anchor):
            arguments.append(Argument("bias", operation.operand, _bias_window(window, anchor)))
            continue
        slow = _unbroadcastable(anchor.primitive, window, destination)
        if slow:
            return slow
        post_operations.append(
            {"kind": "binary", "algorithm": operation.algorithm, "argument": len(arguments), **_converted(operation.operand, fragment)}
        )
        arguments.append(Argument("", operation.operand, window))
    pieces: tuple[tuple[int, int], ...] = ()
    if anchor.primitive in IMAGE_PRIMITIVES:
        ordered = in_one_order([arguments[0].window, destination], image_orders(len(destination.shape))[of_bytes:])
        if ordered is None and splits and not any(operation["kind"] == "binary" for operation in post_operations):
            ordered, pieces = _in_pieces(anchor, arguments, destination)
        if ordered is None:
            return "source and result do not lie densely in one order, and only the reference implementation bridges that"
        arguments[0], destination = replace(arguments[0], window=ordered[0]), ordered[1]
        if anchor.primitive == "convolution" and _is_scalar_epilogue(post_operations, destination):
            return "after a convolution of data that is not channels last, the library applies this function to one number at a time"
    if anchor.primitive == "reduction" and not (arguments[0].window.is_contiguous and destination.is_contiguous):
        return "source or result is not row-major, and only the reference implementation reduces such"
    if anchor.primitive == "matmul":
        arguments = [replace(argument, window=argument.window.as_matrix()) for argument in arguments]
        destination = destination.as_matrix()
        slow = _unsupported_product(arguments, destination)
        if slow:
            return slow
    if not all(window.is_nested for window in (destination, *(argument.window for argument in arguments))):
        return "the strides of a window overlap, which the library's descriptors do not allow"
    return LibraryCall(anchor.primitive, anchor.parameters, tuple(arguments), destination, tuple(post_operations), pieces)


def _unsplittable(call: LibraryCall) -> Reason | None:
    """Return why a convolution is not computed from split operands; None if it is."""
    source, weights = call.arguments[:2]
    if call.primitive != "convolution" or not weights.packed or len(weights.window.shape) > len(source.window.shape):
        return "convolutions by constant weights alone, without groups, have operands that are split"
    return None


def _converted(operand: int, fragment: Node) -> dict[str, str]:
    """Return that a constant of a post-operation is read as float32, if it holds whole numbers.

    The library would convert it for every vector of results: for one byte, a zero point, that takes longer than the convolution itself.
    """
    leaf = next(leaf for leaf in placeholders(fragment) if leaf.integer("index") == operand)
    return {"dtype": PLAIN} if leaf.attribute("constant") and leaf.type.dtype in (*BYTES, "int32") else {}


def _unbroadcastable(primitive: str, operand: Window, destination: Window) -> Reason | None:
    """Return why only the reference implementation, or none, takes an operand of this shape in a post-operation; None if others do."""
    shape, result = operand.shape, destination.shape
    if primitive == "matmul" and shape == result:
        pairs = zip(shape, operand.strides, destination.strides, strict=True)
        if any(size > 1 and stride != written for size, stride, written in pairs):
            return "an operand of a post-operation does not lie as the result does"
    if primitive == "matmul" and shape != result:
        if shape[-1] > 1 and not destination.is_contiguous:
            return "the library crashes where an operand of a post-operation varies along the columns of a result with other strides"
        if shape[-2] > 1:
            return "an operand of a post-operation varies along the rows, but is not the result's shape"
        if shape[-1] == 1 and any(size > 1 for size in shape):
            return "an operand of a post-operation varies, but not along the columns"
    if primitive == "convolution" and any(size > 1 for size in shape[2:]):
        last = (0, *range(2, len(result)), 1)
        if operand.in_order(last) is None or destination.in_order(last) is None:
            return "an operand of a post-operation varies along spatial axes of data that is not channels last"
    return None


def _is_scalar_epilogue(post_operations: Sequence[Mapping[str, Any]], destination: Window) -> bool:
    """Return whether the library computes a fused function without vectors, which takes longer than the convolution itself.

    A convolution to 240 channels of 28 x 28 took 73 us alone, 1000 with HardSwish, and 84 with HardSwish and channels last.
    """
    functions = {operation["algorithm"] for operation in post_operations if operation["kind"] == "eltwise"}
    channels_last = (0, *range(2, len(destination.shape)), 1)
    return bool(functions - {"relu"}) and destination.in_order(channels_last) is None


def _unsupported_product(arguments: Sequence[Argument], destination: Window) -> Reason | None:
    """Return why only the reference implementation computes a product with operands and result in these windows; None if others do."""
    if not _has_unit_stride(destination, (-1,)) and destination.shape[-2] > 1:
        return "the result is written column by column, which only the reference implementation does"
    if any(not argument.packed and not _has_unit_stride(argument.window, (-1, -2)) for argument in arguments[:2]):
        return "an operand has neither its rows nor its columns side by side, and only the reference implementation takes that"
    return None


def _has_unit_stride(window: Window, axes: tuple[int, ...]) -> bool:
    """Return whether elements lie side by side along one of the axes."""
    return any(window.shape[axis] == 1 or window.strides[axis] == 1 for axis in axes)


def _in_pieces(
    anchor: Anchor, arguments: Sequence[Argument], destination: Window
) -> tuple[list[Window] | None, tuple[tuple[int, int], ...]]:
    """Return the windows of the first of several runs that write a result with gaps, and each run's beginnings relative to the first.

    A run computes one position of the outer axes, dense in memory: one image, or one row if no padding makes rows differ.
    """
    source = arguments[0].window
    rank = len(source.shape)
    for axes in image_orders(rank):
        if source.in_order(axes) is None:
            continue
        shapes, steps = [list(source.shape), list(destination.shape)], [0] * rank
        for axis in axes[:-1]:
            step = _step_between(anchor, arguments, axis)
            if step is None and destination.shape[axis] > 1:
                break
            if step is not None:
                stride, extent = step
                shapes[0][axis], shapes[1][axis], steps[axis] = extent, 1, stride
            pieces = [Window(w.offset, tuple(s), w.strides) for w, s in zip((source, destination), shapes, strict=True)]
            if (windows := in_one_order(pieces, (axes,))) is not None:
                counts = [range(size) if step else range(1) for size, step in zip(destination.shape, steps, strict=True)]
                begins = tuple(
                    (
                        sum(at * step * stride for at, step, stride in zip(position, steps, source.strides, strict=True)),
                        sum(at * stride for at, stride in zip(position, destination.strides, strict=True)),
                    )
                    for position in product(*counts)
                )
                return windows, begins
    return None, ()


def _step_between(anchor: Anchor, arguments: Sequence[Argument], axis: int) -> tuple[int, int] | None:
    """Return how far apart along an axis neighbouring results read the source, and how many places each reads; None if they differ.

    They differ by padding, or if each result sums over the axis.
    """
    if axis == 0:
        return 1, 1
    space, parameters = axis - 2, anchor.parameters
    if anchor.primitive not in ("convolution", "pooling") or space < 0:
        return None
    if parameters["pads_before"][space] or parameters["pads_after"][space]:
        return None
    spatial = len(parameters["strides"])
    taps = parameters["kernel"] if anchor.primitive == "pooling" else arguments[1].window.shape[-spatial:]
    return parameters["strides"][space], (taps[space] - 1) * parameters["dilations"][space] + 1


def _plain(operation: PostOperation) -> dict[str, Any]:
    bare = replace(operation, window=None)
    return {"kind": bare.kind, "algorithm": bare.algorithm, "alpha": bare.alpha, "beta": bare.beta}


def _is_bias(window: Window, destination: Window, anchor: Anchor) -> bool:
    axis = anchor.bias_axis
    if axis is None:
        return False
    axis %= len(window.shape)
    expected = tuple(size if i == axis else 1 for i, size in enumerate(destination.shape))
    return window.shape == expected and (window.strides[axis] == 1 or window.shape[axis] == 1)


def _bias_window(window: Window, anchor: Anchor) -> Window:
    if anchor.primitive == "matmul":
        return Window(window.offset, window.shape, contiguous(window.shape).strides)
    size = window.shape[anchor.bias_axis or 0]
    return Window(window.offset, (size,), (1,))


def multiplies_bytes() -> bool:
    """Return whether the library's sums of products of bytes are exact on this processor."""
    return not x86_flags() or bool(X86_FEATURES & x86_flags())


def is_integer(fragment: Node) -> bool:
    """Return whether a fragment contains element types other than float32."""
    return any(node.type.dtype != "float32" for node in walk((fragment,)))


def unsuitable_integers(fragment: Node) -> Reason | None:
    """Return why no call of the library computes a fragment with other types than float32; None if one may."""
    products = [node for node in walk((fragment,)) if node.op in PRODUCTS]
    if not products or any(operand.type.dtype not in BYTES for node in products for operand in node.inputs):
        kinds = sorted({node.type.dtype for node in walk((fragment,))} - {"float32"})
        return f"the library is used for float32 and for products of bytes only, not for {', '.join(kinds)}"
    if not multiplies_bytes():
        return f"the processor has none of {', '.join(sorted(X86_FEATURES))}, without which the library's sums of bytes saturate"
    for node in walk((fragment,)):
        if node.type.dtype == "int32" and node.op not in (*PRODUCTS, "Placeholder", "Reshape", "Transpose"):
            return f"{node.op} of int32 after a product: the library would compute it in float32"
    return None


def unsuitable_arguments(fragment: Node, anchor: Anchor, arguments: Sequence[Argument]) -> Reason | None:
    """Return why the library does not take a product's operands in these roles; None if it does."""
    dtypes: Mapping[int, str] = {leaf.integer("index"): leaf.type.dtype for leaf in placeholders(fragment)}
    if dtypes[arguments[1].operand] != "int8":
        return "the library multiplies by signed bytes only"
    if anchor.primitive not in ("matmul", "convolution"):
        return f"the library's {anchor.primitive} takes no bytes"
    return None
