"""Reductions and pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.movement import pad_node
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.onnx.importer.window import Window, ceil_growth, window_of, without_overhang
from egraph.tensor import Node


def reduce(call: Call, op: str, node: Node, axes: tuple[int, ...], *, keep: bool) -> Node:
    """Reduce axes; drop them unless ``keep`` is true."""
    result = call.apply(op, node, axes=tuple(sorted(axes)))
    return result if keep else call.reshape(result, [n for k, n in enumerate(node.type.sizes) if k not in axes])


def _axes(call: Call) -> tuple[int, ...] | None:
    """Return the reduced axes, or None if the node reduces nothing."""
    rank = len(call.shape(0))
    declared = call.integers("axes", 1)
    if not declared and int(call.attribute("noop_with_empty_axes", 0)) == 1:
        return None
    return tuple(sorted({axis_of(axis, rank) for axis in declared or range(rank)})) or None


def _reduction(op: str, before: Callable[[Call, Node], Node] | None = None, after: str = "") -> Handler:
    def handler(call: Call) -> Node:
        axes = _axes(call)
        node = before(call, call[0]) if before else call[0]
        if axes is not None:
            node = reduce(call, op, node, axes, keep=int(call.attribute("keepdims", 1)) == 1)
        return call.apply(after, node) if after else node

    return handler


def _square(call: Call, node: Node) -> Node:
    return call.apply("Mul", node, node)


def _log_sum_exp(call: Call) -> Node:
    """m + log sum exp(x - m), with m the largest x, made finite, because inf - inf is NaN"""
    axes, keep = _axes(call), int(call.attribute("keepdims", 1)) == 1
    if axes is None:
        return call[0]
    most = float(np.finfo(call[0].type.dtype).max)
    largest = call.apply("Clip", call.apply("ReduceMax", call[0], axes=axes), min=-most, max=most)
    total = call.apply("ReduceSum", call.apply("Exp", call.apply("Sub", call[0], largest)), axes=axes)
    result = call.apply("Add", largest, call.apply("Log", total))
    return result if keep else call.reshape(result, [n for k, n in enumerate(call.shape(0)) if k not in axes])


def _place(call: Call) -> Node:
    """Return the place of the largest or smallest element along an axis: the first, or the last if the node requests it."""
    axis = axis_of(int(call.attribute("axis", 0)), len(call.shape(0)))
    result = call.apply(call.node.op_type, call[0], axis=axis, select_last_index=int(call.attribute("select_last_index", 0)))
    is_kept = int(call.attribute("keepdims", 1)) == 1
    return result if is_kept else call.reshape(result, [n for k, n in enumerate(call.shape(0)) if k != axis])


def _global_pool(op: str) -> Handler:
    def handler(call: Call) -> Node:
        return call.apply(op, call[0], axes=tuple(range(2, len(call.shape(0)))))

    return handler


def _pool_window(call: Call) -> Window:
    """Return a pool's window.

    onnxruntime ignores dilations if it computes the padding itself, and returns other sizes than ONNX; such pools have no core form.
    """
    window = window_of(call, call.attribute("kernel_shape", []), call.shape(0)[2:])
    if str(call.attribute("auto_pad", "NOTSET")).startswith("SAME") and max(window.dilations) > 1:
        raise NotCore("dilations with padding that is not stated")
    return without_overhang(window, call.shape(0)[2:]) if int(call.attribute("ceil_mode", 0)) else window


def _max_pool(call: Call) -> list[Node | None]:
    if call.uses_more_than_first():
        raise NotCore("the indices are used")
    space, window = call.shape(0)[2:], _pool_window(call)
    count, growth = len(space), ceil_growth(call, window, space)
    pads = (*window.pads[:count], *(p + g for p, g in zip(window.pads[count:], growth, strict=True)))
    result = call.apply("MaxPool", call[0], kernel_shape=window.kernel, strides=window.strides, pads=pads, dilations=window.dilations,
                        layout="NCHW")
    return [result] + [None] * (len(call.node.output) - 1)


def _average_pool(call: Call) -> Node:
    """Average. With ``ceil_mode`` and counted padding, only the stated padding counts, so it is added to the data."""
    space, window = call.shape(0)[2:], _pool_window(call)
    count, growth = len(space), ceil_growth(call, window, space)
    counted, data, pads = int(call.attribute("count_include_pad", 0)), call[0], window.pads
    if any(growth) and counted:
        data = pad_node(call, data, (0, 0, *pads[:count]), (0, 0, *pads[count:]))
        pads, counted = (0,) * (2 * count), 0
    pads = (*pads[:count], *(p + g for p, g in zip(pads[count:], growth, strict=True)))
    return call.apply("AveragePool", data, kernel_shape=window.kernel, strides=window.strides, pads=pads, dilations=window.dilations,
                      count_include_pad=counted, layout="NCHW")


def _lrn(call: Call) -> Node:
    values = {name: float(call.attribute(name, default)) for name, default in (("alpha", 0.0001), ("beta", 0.75), ("bias", 1.0))}
    return call.apply("LRN", call[0], size=int(call.required("size")), axis=1, **values)


def _lp_pool(call: Call) -> Node:
    """(window mean of x^2 times the window size) ^ 1/2, with padding that counts as zero"""
    if int(call.attribute("p", 2)) != 2 or int(call.attribute("ceil_mode", 0)):
        raise NotCore("only the Euclidean norm without ceil_mode")
    window = _pool_window(call)
    if call.opset < 19 and max(window.dilations) > 1:
        raise NotCore("an average over spread elements, which this opset cannot say")
    mean = call.apply("AveragePool", _square(call, call[0]), kernel_shape=window.kernel, strides=window.strides, pads=window.pads,
                      dilations=window.dilations, count_include_pad=1, layout="NCHW")
    return call.apply("Sqrt", call.apply("Mul", mean, call.like(math.prod(window.kernel))))


MOST_SUMMED = 128
"""The most elements of an axis whose cumulative sum is computed by one sum per element; for more, onnxruntime's one pass is faster."""


def _cumulative_sum(call: Call) -> Node:
    """y_i = sum_k (x_k if k <= i, else 0): a choice of 0 instead of a product with 0, so that infinities and NaN do not spread"""
    shape = call.shape(0)
    axis = axis_of(int(call.known(1).reshape(())), len(shape))
    count = shape[axis]
    if count > MOST_SUMMED:
        raise NotCore("a long sum")
    is_summed = np.tri(count, count, -int(call.attribute("exclusive", 0)), bool)
    if int(call.attribute("reverse", 0)):
        is_summed = is_summed[::-1, ::-1]
    rows = call.reshape(call[0], (*shape[:axis], 1, count, math.prod(shape[axis + 1 :])))
    kept = call.apply("Where", call.constant(is_summed[:, :, None], "bool"), rows, call.like(0))
    return call.reshape(call.apply("ReduceSum", kept, axes=(axis + 1,)), shape)


HANDLERS: Mapping[str, Handler] = {
    **{name: _reduction(name) for name in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd")},
    "ReduceL1": _reduction("ReduceSum", lambda call, node: call.apply("Abs", node)),
    "ReduceL2": _reduction("ReduceSum", _square, "Sqrt"),
    "ReduceSumSquare": _reduction("ReduceSum", _square),
    "ReduceLogSum": _reduction("ReduceSum", None, "Log"),
    "ReduceLogSumExp": _log_sum_exp,
    **dict.fromkeys(("ArgMax", "ArgMin"), _place),
    "GlobalAveragePool": _global_pool("ReduceMean"),
    "GlobalMaxPool": _global_pool("ReduceMax"),
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "LRN": _lrn,
    "CumSum": _cumulative_sum,
}
