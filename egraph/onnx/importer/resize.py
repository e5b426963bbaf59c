"""Resize and Upsample in all their versions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node

_COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")


def _resized(call: Call, scales: list[float], sizes: list[int], mode: str, coordinate: str, nearest: str) -> Node:
    if min(sizes) < 1:
        raise NotCore("the result is empty")
    cubic = mode == "cubic"
    return call.apply(
        "Resize", call[0], sizes=tuple(sizes), scales=tuple(scales), mode=mode, coordinate_mode=coordinate,
        nearest_mode=nearest if mode == "nearest" else "round_prefer_floor",
        cubic_coeff_a=float(call.attribute("cubic_coeff_a", -0.75)) if cubic else -0.75,
        exclude_outside=int(call.attribute("exclude_outside", 0)) if cubic else 0,
    )  # fmt: skip


def _resize(call: Call) -> Node:
    if call.opset < 11:
        return _upsample(call)
    shape, mode = call.shape(0), str(call.attribute("mode", "nearest"))
    rank, coordinate = len(shape), str(call.attribute("coordinate_transformation_mode", "half_pixel"))
    if coordinate not in _COORDINATES or int(call.attribute("antialias", 0)):
        raise NotCore("cropping or antialiasing")
    axes = [axis_of(int(a), rank) for a in call.attribute("axes", range(rank))]
    by_sizes = call.has(3) and call.known(3).size > 0
    declared = [float(v) for v in (call.known(3) if by_sizes else call.known(2)).reshape(-1)]
    if len(declared) != len(axes):
        raise NotCore("sizes do not fit the axes")
    scales, sizes = [1.0] * rank, list(shape)
    policy = str(call.attribute("keep_aspect_ratio_policy", "stretch"))
    ratios = [value / shape[axis] for axis, value in zip(axes, declared, strict=True)]
    for axis, value, ratio in zip(axes, declared, ratios, strict=True):
        if not by_sizes:
            scales[axis], sizes[axis] = float(np.float32(value)), math.floor(np.float32(shape[axis]) * np.float32(value))
        elif policy == "stretch":
            scales[axis], sizes[axis] = float(np.float32(ratio)), int(value)
        else:
            raise NotCore(f"keep_aspect_ratio_policy {policy}")
    return _resized(call, scales, sizes, mode, coordinate, str(call.attribute("nearest_mode", "round_prefer_floor")))


def _upsample(call: Call) -> Node:
    """Resize with asymmetric coordinates"""
    shape, mode = call.shape(0), str(call.attribute("mode", "nearest"))
    declared = call.attribute("scales")
    scales = [float(np.float32(v)) for v in (declared if declared is not None else call.known(1).reshape(-1))]
    if len(scales) != len(shape) or (call.node.op_type == "Resize" and min(scales) < 1 and mode != "nearest"):
        raise NotCore("scales do not fit")
    sizes = [math.floor(np.float32(n) * np.float32(s)) for n, s in zip(shape, scales, strict=True)]
    if mode == "nearest" and min(scales) < 1 < max(scales):
        raise NotCore("version 10 rounds up where it shrinks and down where it grows")
    nearest = "ceil" if min(scales) < 1 else "floor"
    return _resized(call, scales, sizes, "linear" if mode in ("linear", "bilinear") else mode, "asymmetric", nearest)


HANDLERS: Mapping[str, Handler] = {"Resize": _resize, "Upsample": _upsample}
