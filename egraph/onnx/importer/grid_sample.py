"""GridSample: read pixels at computed places, interpolated between four neighbours."""

from __future__ import annotations

from collections.abc import Mapping

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.integers import EXACT_TO
from egraph.onnx.importer.movement import pad_node, slice_axis
from egraph.onnx.importer.state import Call, NotCore
from egraph.tensor import Node


def _grid_sample(call: Call) -> Node:
    """Sample images bilinearly, channels last: each place reads a run of channels at each of its neighbours."""
    images, height, width = call.shape(0)[0], *call.shape(0)[2:]
    _, rows, columns, _ = call.shape(1)
    padding = str(call.attribute("padding_mode", "zeros"))
    if str(call.attribute("mode", "bilinear")) not in ("bilinear", "linear") or padding not in ("zeros", "border"):
        raise NotCore("places between pixels are rounded, reflected or interpolated by cubics")
    if height * width >= EXACT_TO or call[1].type.dtype != "float32":
        raise NotCore("float32 does not hold every place")
    channels, is_padded = call.shape(0)[1], padding == "zeros"
    pixels = call.reshape(call.transpose(call[0], (0, 2, 3, 1)), (images, height * width, channels))
    if is_padded:  # a row of zeros, read beyond the image's borders, so that no infinity there meets a share of 0
        pixels = pad_node(call, pixels, (0, 0, 0), (0, 1, 0))
    across, down = (_neighbours(call, axis, size, padding) for axis, size in enumerate((width, height)))
    parts = []
    for y, y_share in down:
        for x, x_share in across:
            place = call.apply("Add", call.apply("Mul", y, call.constant(width, "float32")), x)
            if is_padded:
                is_inside = call.apply("And", _is_inside(call, y, height), _is_inside(call, x, width))
                place = call.apply("Where", is_inside, place, call.constant(height * width, "float32"))
            else:  # NaN is no place: any pixel will do because its share is NaN
                place = call.apply("Where", call.apply("IsNaN", place), call.constant(0, "float32"), place)
            pixel = call.apply("GatherND", pixels, call.apply("Truncate", place, to="int64"), batch_dims=1)
            parts.append(call.apply("Mul", pixel, call.apply("Mul", y_share, x_share)))
    total = call.chain("Add", parts)
    return call.reshape(call.transpose(total, (0, 2, 1)), (images, channels, rows, columns))


def _neighbours(call: Call, axis: int, size: int, padding: str) -> list[tuple[Node, Node]]:
    """Return the whole places on both sides of the grid's position along an axis, each with its share: [images, places, 1]."""
    images, rows, columns, _ = call.shape(1)
    at = call.reshape(slice_axis(call, call[1], 3, axis, axis + 1), (images, rows * columns, 1))
    is_between_centres = bool(call.attribute("align_corners", 0))  # then -1 and 1 are centres of pixels, not the image's borders
    at = _shifted(call, at, 1)
    at = call.apply("Mul", at, call.constant((size - 1 if is_between_centres else size) / 2, "float32"))
    at = at if is_between_centres else _shifted(call, at, -0.5)
    at = _clipped(call, at, size) if padding == "border" else at
    low = call.apply("Floor", at)
    high_share = call.apply("Sub", at, low)
    high = _shifted(call, low, 1)
    if padding == "border":
        high = _clipped(call, high, size)
    return [(low, call.apply("Sub", call.constant(1, "float32"), high_share)), (high, high_share)]


def _shifted(call: Call, node: Node, by: float) -> Node:
    return call.apply("Add", node, call.constant(by, "float32"))


def _clipped(call: Call, place: Node, size: int) -> Node:
    return call.apply("Clip", place, min=0.0, max=float(size - 1))


def _is_inside(call: Call, place: Node, size: int) -> Node:
    low = call.apply("GreaterOrEqual", place, call.constant(0, "float32"))
    return call.apply("And", low, call.apply("LessOrEqual", place, call.constant(size - 1, "float32")))


HANDLERS: Mapping[str, Handler] = {"GridSample": _grid_sample}
