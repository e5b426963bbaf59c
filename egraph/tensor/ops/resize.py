"""Resize: nearest, linear and cubic interpolation as exact index arithmetic, one axis after the other.

An output position x reads the input around the rational coordinate (a x + b) / q. Its integer part and its
remainder are index expressions, so interpolation weights are exact. Input positions are clamped to the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from egraph.errors import TypeMismatch
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.index import Index, Iterator, Size, index
from egraph.tensor.expr.scope import ONE, ZERO, IndexNumber, Scalar, Scope, Tensor, inside, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import same_dtype
from egraph.tensor.ops.sampling import Sample
from egraph.tensor.ops.scopes import add, clamped_read, multiply, pointwise, read
from egraph.tensor.ops.sizes import at_least, entries, equal, is_one, known, one_of, refuse, show
from egraph.tensor.ops.spec import OpSpec, Shape, Values

MODES = ("nearest", "linear", "cubic")
COORDINATE_MODES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
LARGEST_DENOMINATOR = 4096


def exact_scale(scale: float, size: Size, result: Size) -> Fraction:
    """Return the rational that a float32 scale stands for; refuse when it is not a simple one."""
    source, target = known(size), known(result)
    if not 2**-20 < scale < 2**20 or (source is not None and target is not None and abs(source * scale - target) > 1):
        refuse(f"scale {scale!r} does not take size {show(size)} to {show(result)}")
    candidates = [] if source is None or target is None else [Fraction(target, source)]
    candidates.append(Fraction(scale).limit_denominator(LARGEST_DENOMINATOR))
    fitting = [c for c in candidates if c > 0 and np.float32(c.numerator) / np.float32(c.denominator) == np.float32(scale)]
    if not fitting:
        refuse(f"scale {scale!r} is not a fraction with a denominator up to {LARGEST_DENOMINATOR}")
    return fitting[0]


def coordinate(mode: str, scale: Fraction, size: Size, result: Size) -> tuple[Size, Size, Size]:
    """Return (a, b, q): output position x reads around (a x + b) / q."""
    p, q = scale.denominator, scale.numerator
    match mode:
        case "asymmetric":
            return p, 0, q
        case "align_corners":
            return (0, 0, 1) if is_one(result) else (size - 1, 0, result - 1)
        case "pytorch_half_pixel" if is_one(result):
            return 0, 0, 1
        case "half_pixel" | "pytorch_half_pixel":
            return 2 * p, p - q, 2 * q
        case _:  # half_pixel_symmetric: centre the result on the input, size/2 (1 - result/(scale size))
            return 2 * p, size * q - result * p + p - q, 2 * q


def _shape(shapes: Sequence[Shape], a: Values) -> Shape:
    rank = len(shapes[0])
    if not rank:
        refuse("operand must have at least one axis")
    sizes = entries(a["sizes"], rank, "sizes")
    entries(a["scales"], rank, "scales")
    one_of(a["mode"], MODES, "mode")
    one_of(a["coordinate_mode"], COORDINATE_MODES, "coordinate_mode")
    if a["exclude_outside"] not in (0, 1):
        refuse(f"exclude_outside must be 0 or 1, got {a['exclude_outside']}")
    if a["mode"] == "nearest":
        one_of(a["nearest_mode"], NEAREST_MODES, "nearest_mode")
    for axis in _resized_axes(shapes[0], a):
        at_least(sizes[axis], 1, f"size of axis {axis} must be at least 1")
        if equal(sizes[axis], shapes[0][axis]):
            refuse(f"axis {axis} keeps its size but has the scale {a['scales'][axis]}; implementations differ in whether they copy it")
        scale = exact_scale(a["scales"][axis], shapes[0][axis], sizes[axis])
        if a["mode"] == "nearest":
            _rounds_exactly(a, scale, shapes[0][axis], sizes[axis])
    return tuple(sizes)


def _resized_axes(shape: Shape, a: Values) -> list[int]:
    """Return the axes that change: another size, or another scale than 1."""
    return [axis for axis, size in enumerate(shape) if not (equal(size, a["sizes"][axis]) and a["scales"][axis] == 1.0)]


def _nearest(mode: str, step: Size, shift: Size, divisor: Size, x: Any) -> Any:
    """Round (step x + shift) / divisor to an integer."""
    match mode:
        case "floor":
            return _floor_ratio(step, shift, divisor, x)
        case "ceil":
            return _floor_ratio(step, shift + divisor - 1, divisor, x)
        case "round_prefer_ceil":
            return _floor_ratio(2 * step, 2 * shift + divisor, 2 * divisor, x)
        case _:  # round_prefer_floor
            return _floor_ratio(2 * step, 2 * shift + divisor - 1, 2 * divisor, x)


def _floor_ratio(step: Size, shift: Size, divisor: Size, x: Any) -> Any:
    """(step x + shift) // divisor, in lowest terms so that ``(4 x + 1) // 8`` reads ``x // 2``"""
    common = math.gcd(known(step) or 1, known(divisor) or 1) if known(step) != 0 else 1
    if isinstance(step, int) and isinstance(divisor, int) and common > 1:
        return (step // common * x + shift // common) // (divisor // common)
    return (step * x + shift) // divisor


def _rounds_exactly(a: Values, scale: Fraction, size: Size, result: Size) -> None:
    """Refuse a resize if the rounding of float32 coordinates, which implementations use, may pick another neighbour."""
    length, count = known(size), known(result)
    if length is None or count is None:
        return
    mode = a["coordinate_mode"]
    x = np.arange(count, dtype=np.float32)
    half, factor = np.float32(0.5), np.float32(float(scale))
    match mode:
        case "asymmetric":
            source_coordinate = x / factor
        case "align_corners":
            source_coordinate = x * np.float32(length - 1) / np.float32(max(count - 1, 1))
        case "pytorch_half_pixel" if count == 1:
            source_coordinate = x
        case "half_pixel_symmetric":
            offset = np.float32(length) / np.float32(2) * (np.float32(1) - np.float32(count) / (factor * np.float32(length)))
            source_coordinate = offset + ((x + half) / factor - half)
        case _:
            source_coordinate = (x + half) / factor - half
    # A centre computed from the scale is exact only if the scale is; otherwise both neighbours must agree.
    inexact = mode == "half_pixel_symmetric" and Fraction(float(factor)) * length != count
    doubt = np.float32(2**-20 * (length + 1) if inexact else 0)
    step, shift, divisor = coordinate(mode, scale, size, result)
    exact = np.array([_nearest(a["nearest_mode"], step, shift, divisor, k) for k in range(count)])
    for moved in (source_coordinate - doubt, source_coordinate + doubt):
        rounded = {
            "floor": np.floor(moved), "ceil": np.ceil(moved), "round_prefer_ceil": np.floor(moved + half),
            "round_prefer_floor": np.ceil(moved - half),
        }[a["nearest_mode"]]  # fmt: skip
        wrong = np.flatnonzero(np.clip(rounded, 0, length - 1) != np.clip(exact, 0, length - 1))
        if wrong.size:
            refuse(f"float32 rounding of the scale {float(scale)} decides which neighbour position {wrong[0]} reads")


def _meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, shape = operands[0], tuple(a["sizes"])
    axes = _resized_axes(data.shape, a)
    transforms = {
        axis: coordinate(a["coordinate_mode"], exact_scale(a["scales"][axis], data.shape[axis], shape[axis]), data.shape[axis], shape[axis])
        for axis in axes
    }
    source: Tensor | Scope = data
    if a["mode"] == "nearest":
        clamped = [axis for axis in axes if not _stays_inside(a, transforms[axis], data.shape[axis], shape[axis])]
        for axis in clamped:
            source = _interpolate(source, axis, shape[axis], transforms[axis], a, f"r{axis}_")
        exact = [axis for axis in axes if axis not in clamped]

        def body(indices: tuple[Index, ...]) -> Scalar:
            return read(source, [_nearest(a["nearest_mode"], *transforms[k], i) if k in exact else i for k, i in enumerate(indices)])

        return pointwise("i", shape, body) if exact or not isinstance(source, Scope) else source
    for order, axis in enumerate(axes):
        source = _interpolate(source, axis, shape[axis], transforms[axis], a, "i" if order == len(axes) - 1 else f"r{axis}_")
    return source if isinstance(source, Scope) else pointwise("i", shape, lambda i: read(data, i))


def _stays_inside(a: Values, transform: tuple[Size, Size, Size], size: Size, result: Size) -> bool:
    """Return whether ranges show that every position reads inside the tensor without a clamp."""
    position = index(_nearest(a["nearest_mode"], *transform, index(Iterator("i", 0, result))))
    return all(truth(condition) for condition in inside(position, 0, size))


def _interpolate(source: Tensor | Scope, axis: int, result: Size, transform: tuple[Size, Size, Size], a: Values, prefix: str) -> Scope:
    """Resize one axis."""
    step, shift, divisor = transform

    def body(indices: tuple[Index, ...]) -> Scalar:
        def tap(position: Index) -> Scalar:
            return clamped_read(source, (*indices[:axis], position, *indices[axis + 1 :]), axis)

        if a["mode"] == "nearest":
            return tap(index(_nearest(a["nearest_mode"], step, shift, divisor, indices[axis])))
        value = index(step * indices[axis] + shift)
        low = value // divisor
        part: Scalar = call("div", IndexNumber(value % divisor), IndexNumber(index(divisor)))
        positions = [low, low + 1] if a["mode"] == "linear" else [low - 1, low, low + 1, low + 2]
        weights = [call("sub", ONE, part), part] if a["mode"] == "linear" else _cubic_weights(part, number(a["cubic_coeff_a"]))
        if not a["exclude_outside"]:
            return add(*(multiply(weight, tap(p)) for weight, p in zip(weights, positions, strict=True)))
        kept = [guarded(inside(p, 0, source.shape[axis]), weight, ZERO) for weight, p in zip(weights, positions, strict=True)]
        return call("div", add(*(multiply(weight, tap(p)) for weight, p in zip(kept, positions, strict=True))), add(*kept))

    return pointwise(prefix, (*source.shape[:axis], result, *source.shape[axis + 1 :]), body)


def _cubic_weights(t: Scalar, a: Scalar) -> list[Scalar]:
    """Return the weights of the four taps around the coordinate, whose fractional part is t (Keys' kernel)."""

    def near(d: Scalar) -> Scalar:  # ((a + 2) d - (a + 3)) d d + 1
        return add(multiply(call("sub", multiply(add(a, number(2)), d), add(a, number(3))), d, d), ONE)

    def far(d: Scalar) -> Scalar:  # ((a d - 5 a) d + 8 a) d - 4 a
        inner = add(multiply(call("sub", multiply(a, d), multiply(number(5), a)), d), multiply(number(8), a))
        return call("sub", multiply(inner, d), multiply(number(4), a))

    u = call("sub", ONE, t)
    return [far(add(t, ONE)), near(t), near(u), far(add(u, ONE))]


def _sample(random: Random) -> Sample:
    mode = random.choice(MODES)
    coordinate_mode = random.choice(COORDINATE_MODES)
    shape = (random.choice((1, 2)), random.choice((1, 3)), random.choice((1, 3, 4, 5)), random.choice((2, 4, 5, 7)))
    sizes, scales = list(shape), [1.0] * 4
    for axis in (2, 3):
        if random.random() < 0.5:
            scales[axis] = random.choice((2.0, 3.0, 0.5, 1.5, 2.5))
            sizes[axis] = int(shape[axis] * scales[axis])
        else:
            sizes[axis] = random.choice((1, 2, 3, 5, 8))
            scales[axis] = float(np.float32(sizes[axis]) / np.float32(shape[axis]))
    values: dict[str, object] = {
        "sizes": tuple(sizes), "scales": tuple(scales), "mode": mode, "coordinate_mode": coordinate_mode,
        "nearest_mode": random.choice(NEAREST_MODES) if mode == "nearest" else "round_prefer_floor",
        "cubic_coeff_a": random.choice((-0.75, -0.5)) if mode == "cubic" else -0.75,
        "exclude_outside": random.choice((0, 1)) if mode == "cubic" else 0,
    }  # fmt: skip
    try:
        _shape([shape], values)
    except TypeMismatch:
        return _sample(random)
    return (shape,), values


RESIZE: tuple[OpSpec, ...] = (
    OpSpec(
        "Resize", 1, "movement", _shape, _meaning, _sample,
        attributes=("coordinate_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode", "scales", "sizes"), dtype=same_dtype,
        notes="tf_crop_and_resize and antialias are left opaque; attributes that the mode does not use hold their ONNX defaults",
    ),
)  # fmt: skip
