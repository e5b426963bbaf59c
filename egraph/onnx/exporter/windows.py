"""Convolutions and pools as ONNX nodes: NHWC between transposes, padding that is not smaller than the window as an explicit Pad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from egraph.errors import LowerError
from egraph.onnx.exporter.emitter import Emitter
from egraph.tensor import Node

LEAST = {"int8": -128, "uint8": 0}
"""The smallest number of each type of bytes, which never changes a maximum."""
Body = Callable[[Emitter, Node, dict[str, Any], Sequence[str], str], None]


def _channels_first(body: Body) -> Callable[[Emitter, Node, Sequence[str], str], None]:
    """Run ``body`` on NCHW data, between transposes if the node's layout is NHWC."""

    def form(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
        a = {name: list(value) if isinstance(value, tuple) else value for name, value in node.attributes}
        rank = node.type.rank
        if a.pop("layout") == "NCHW":
            body(e, node, a, operands, output)
            return
        data = e.add("Transpose", operands[:1], perm=[0, rank - 1, *range(1, rank - 1)])
        result = e.names.fresh(f"{output}_channels_first")
        body(e, node, a, [data, *operands[1:]], result)
        e.add("Transpose", [result], perm=[0, *range(2, rank), 1], output=output)

    return form


def _conv(e: Emitter, node: Node, a: dict[str, Any], operands: Sequence[str], output: str) -> None:
    op = "ConvInteger" if node.type.dtype == "int32" else node.op
    e.add(op, operands, output=output, kernel_shape=list(node.inputs[1].type.sizes[2:]), **a)


def _space(node: Node) -> tuple[int, ...]:
    sizes = node.inputs[0].type.sizes
    return sizes[2:] if node.attribute("layout") == "NCHW" else sizes[1:-1]


def _padded(e: Emitter, name: str, pads: list[int], value: float, dtype: str) -> str:
    """Pad the spatial axes of NCHW data."""
    count = len(pads) // 2
    full = [0, 0, *pads[:count], 0, 0, *pads[count:]]
    if e.opset >= 11:
        return e.add("Pad", [name, e.integers(full), e.constant(value, dtype)], mode="constant")
    return e.add("Pad", [name], pads=full, mode="constant", value=value)


def _too_wide(a: dict[str, Any]) -> bool:
    """Return whether a padding is at least as large as the window, which onnxruntime refuses."""
    return any(pad >= size for pad, size in zip(a["pads"], a["kernel_shape"] * 2, strict=True))


def _max_pool(e: Emitter, node: Node, a: dict[str, Any], operands: Sequence[str], output: str) -> None:
    data = operands[0]
    if _too_wide(a):
        data = _padded(e, data, a["pads"], LEAST.get(node.type.dtype, float("-inf")), node.type.dtype)
        a["pads"] = [0] * len(a["pads"])
    if e.opset < 10:
        _refuse_dilations(e, node, a)
    e.add("MaxPool", [data], output=output, **a)


def _average_pool(e: Emitter, node: Node, a: dict[str, Any], operands: Sequence[str], output: str) -> None:
    if e.opset < 19:
        _refuse_dilations(e, node, a)
    data, pads = operands[0], a["pads"]
    if not _too_wide(a):
        e.add("AveragePool", [data], output=output, **a)
        return
    counted, a["count_include_pad"], a["pads"] = a["count_include_pad"], 0, [0] * len(pads)
    data = _padded(e, data, pads, 0.0, node.type.dtype)
    if counted:
        e.add("AveragePool", [data], output=output, **a)
        return
    share = e.constant(_share_inside(_space(node), pads, a), node.type.dtype)
    e.add("Div", [e.add("AveragePool", [data], **a), share], output=output)


def _share_inside(space: Sequence[int], pads: list[int], a: dict[str, Any]) -> np.ndarray:
    """Return the share of every window's taps that lies inside the data, as [1, 1, spatial ...]."""
    result = np.ones((1, 1))
    dilations = a.get("dilations") or [1] * len(space)
    for axis, size in enumerate(space):
        before, after, taps = pads[axis], pads[axis + len(space)], a["kernel_shape"][axis]
        outputs = (size + before + after - (taps - 1) * dilations[axis] - 1) // a["strides"][axis] + 1
        starts = np.arange(outputs)[:, None] * a["strides"][axis] - before + np.arange(taps) * dilations[axis]
        result = result[..., None] * (((starts >= 0) & (starts < size)).mean(axis=1))
    return result


def _refuse_dilations(e: Emitter, node: Node, a: dict[str, Any]) -> None:
    """Drop dilations of 1; an opset without dilations cannot have others."""
    if any(n != 1 for n in a.pop("dilations")):
        raise LowerError(f"{node.op} with dilations needs a newer opset than {e.opset}", where=str(node.type),
                         fix="export the model with opset 19 or newer")


def _lrn(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    a: dict[str, Any] = dict(node.attributes)
    axis, rank = int(a.pop("axis")), node.type.rank
    if axis == 1:
        e.add("LRN", operands, output=output, **a)
        return
    perm = [k for k in range(rank) if k != axis]
    perm.insert(1, axis)
    inner = e.add("LRN", [e.add("Transpose", operands, perm=perm)], **a)
    e.add("Transpose", [inner], perm=[perm.index(k) for k in range(rank)], output=output)


FORMS: Mapping[str, Callable[[Emitter, Node, Sequence[str], str], None]] = {
    "Conv": _channels_first(_conv),
    "ConvTranspose": _channels_first(_conv),
    "MaxPool": _channels_first(_max_pool),
    "AveragePool": _channels_first(_average_pool),
    "LRN": _lrn,
}
