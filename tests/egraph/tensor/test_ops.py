"""Every operator's shape rule and meaning agree with onnxruntime, and bad operands are reported."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as states

from egraph.errors import TypeMismatch
from egraph.tensor import TensorType, attributes, placeholder
from egraph.tensor.expr.evaluate import evaluate as evaluate_scope
from egraph.tensor.expr.index import Symbol, index, simplify
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Tensor
from egraph.tensor.ops import OPS, OpSpec, apply, infer
from egraph.tensor.ops.reference import evaluate
from egraph.tensor.ops.resize import COORDINATE_MODES, NEAREST_MODES
from tests.support.onnx_operators import model, run

SAMPLES = int(os.environ.get("EINSAT_OPERATOR_SAMPLES", "24"))
POSITIVE = {("Log", 0), ("Sqrt", 0), ("Pow", 0), ("Quantize", 1)}


def draw(generator: np.random.Generator, op: str, types: Sequence[TensorType], values: Mapping[str, Any]) -> list[np.ndarray]:
    """Return operands: mostly halves, so that comparisons and roundings meet ties, and some other fractions."""
    operands = []
    for position, type_ in enumerate(types):
        if type_.dtype == "bool":
            operands.append(generator.integers(0, 2, type_.sizes).astype(bool))
        elif type_.dtype in ("int8", "uint8"):
            operands.append(generator.integers(0, 128, type_.sizes).astype(type_.dtype))
        elif type_.dtype == "int64":
            size = types[0].sizes[values["axis"]] if "axis" in values else min(types[0].sizes) if op == "GatherND" else 1 << 20
            operands.append(generator.integers(-size, size, type_.sizes))
        else:
            array = generator.normal(size=type_.sizes) * 2
            array = np.where(generator.random(type_.sizes) < 0.5, np.round(2 * array) / 2, array)
            operands.append(np.asarray(np.abs(array) + 0.25 if (op, position) in POSITIVE else array, np.float32))
    return operands


NAMED = [
    spec for spec in OPS.values()
    if spec.name not in ("Expression", "Saturate", "Truncate", "Quantize", "Dequantize", "DequantizeBlocks")
    and spec.category != "recurrence"
]
"""Operators that onnxruntime has by name and whose attributes hold no sizes as text; other operators have their own tests."""


@pytest.mark.parametrize("spec", NAMED, ids=lambda spec: spec.name)
def test_shape_and_meaning_agree_with_onnxruntime(spec: OpSpec) -> None:
    random, generator = Random(spec.name), np.random.default_rng(7)
    compared, refused = 0, []
    for _ in range(SAMPLES):
        shapes, values = spec.sample(random)
        dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
        types = [TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
        node = apply(spec.name, *(placeholder(i, t) for i, t in enumerate(types)), **values)
        assert spec.meaning([Tensor(str(i), t.sizes, t.dtype) for i, t in enumerate(types)], values).shape == node.type.shape
        operands = draw(generator, spec.name, types, values)
        ours = evaluate([node], dict(zip(node.inputs, operands, strict=True)))[0]
        try:
            theirs = run(model(spec.name, types, values, node.type), operands)
        except (states.NotImplemented, states.RuntimeException, states.Fail, states.InvalidArgument) as error:
            refused.append(f"{values}: {error}")
            continue
        compared += 1
        assert theirs.shape == node.type.shape == ours.shape, (shapes, values)
        assert str(theirs.dtype) == node.type.dtype
        expected = theirs.astype(np.float64)
        scale = np.abs(expected, where=np.isfinite(expected), out=np.zeros_like(expected)).max()
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5 * max(scale, 1e-3), err_msg=f"{shapes} {values}")
    assert compared >= SAMPLES // 2, refused


MOVERS = [spec for spec in OPS.values() if spec.category in ("view", "movement") and "int64" in spec.dtypes]


@pytest.mark.parametrize("spec", MOVERS, ids=lambda spec: spec.name)
def test_movement_accepts_every_element_type(spec: OpSpec) -> None:
    shapes, values = spec.sample(Random(3))
    values |= {"value": 1.0} if "value" in values else {}  # every element type can represent it
    for dtype in ("int64", "bool", "bfloat16", "float64"):
        types = [TensorType(dtype, shapes[0]), *(TensorType(d, s) for d, s in zip(spec.sample_dtypes[1:], shapes[1:], strict=False))]
        types += [TensorType(dtype, shape) for shape in shapes[len(types) :]]
        assert infer(spec.name, tuple(types), attributes(**values)).dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("uint8", 255.0, True), ("uint8", 256.0, False), ("uint8", -1.0, False), ("int8", -128.0, True), ("int8", -math.inf, False),
        ("int64", 0.5, False), ("bool", 2.0, False), ("float32", -math.inf, True), ("bfloat16", 0.5, True),
    ],
)  # fmt: skip
def test_a_border_is_one_that_its_elements_can_have(dtype: str, value: float, fits: bool) -> None:
    bundle = attributes(before=(1,), after=(0,), mode="constant", value=value)
    with nullcontext() if fits else pytest.raises(TypeMismatch, match="cannot be"):
        infer("Pad", (TensorType(dtype, (2,)),), bundle)


@pytest.mark.parametrize("dtype", ["int64", "uint32", "uint64", "int8", "uint16", "int32"])
def test_only_what_int32_holds_is_cast_to_it(dtype: str) -> None:
    with pytest.raises(TypeMismatch, match="int32 does not hold") if dtype in ("int64", "uint32", "uint64") else nullcontext():
        infer("Cast", (TensorType(dtype, (2,)),), attributes(to="int32"))



@pytest.mark.parametrize("spec", NAMED, ids=lambda spec: spec.name)
def test_symbolic_sizes_mean_the_same(spec: OpSpec) -> None:
    """Symbolic sizes (one symbol for each size) give the same result or a refusal, never another result."""
    random, generator = Random(spec.name), np.random.default_rng(11)
    proved = 0
    for _ in range(SAMPLES):
        shapes, values = spec.sample(random)
        symbols = {size: Symbol(f"n{size}") for shape in shapes for size in shape if size > 1}
        symbols |= {size: Symbol(f"n{size}") for size in values.get("shape", ()) if size > 1}
        symbolic = [tuple(index(symbols[size]) if size > 1 else 1 for size in shape) for shape in shapes]
        renamed = {k: tuple(index(symbols[s]) if s > 1 else 1 for s in v) if k == "shape" else v for k, v in values.items()}
        try:
            shape = spec.shape(symbolic, renamed)
        except TypeMismatch:
            continue
        proved += 1
        scope = spec.meaning([Tensor(str(i), s) for i, s in enumerate(symbolic)], renamed)
        assert [str(simplify(size)) for size in scope.shape] == [str(simplify(size)) for size in shape]
        dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
        types = [TensorType(dtype, s) for dtype, s in zip(dtypes, shapes, strict=True)]
        operands = draw(generator, spec.name, types, values)
        arrays = {str(i): np.asarray(operand, np.float64) for i, operand in enumerate(operands)}
        concrete = evaluate_scope(spec.meaning([Tensor(str(i), s) for i, s in enumerate(shapes)], values), arrays)
        result = evaluate_scope(scope, arrays, symbols={symbol: size for size, symbol in symbols.items()})
        np.testing.assert_allclose(result, concrete, rtol=1e-12, atol=1e-12, err_msg=f"{shapes} {values}")
    assert proved, "no sample could be typed with symbolic sizes"


def test_reshape_of_symbolic_sizes_divides_inside_merged_axes_only() -> None:
    n, c, h, w = (index(Symbol(name)) for name in "nchw")
    spec, data = OPS["Reshape"], Tensor("0", (n, c, h, w))
    merged = spec.meaning([data], {"shape": (n, c * h * w)})
    assert format_scope(merged).count("//") == 2
    with pytest.raises(TypeMismatch, match="different numbers of elements"):
        spec.shape([data.shape], {"shape": (n, c * h)})


def _operand(*sizes: int | str, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, sizes)


CONV: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1, "layout": "NCHW"}
POOL: dict[str, Any] = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "layout": "NCHW"}
RESIZE: dict[str, Any] = {
    "sizes": (2, 6), "scales": (1.0, 2.0), "mode": "nearest", "coordinate_mode": "asymmetric", "nearest_mode": "floor",
    "cubic_coeff_a": -0.75, "exclude_outside": 0,
}  # fmt: skip
IMAGE = _operand(1, 4, 5, 5)

REFUSALS: tuple[tuple[str, str, tuple[TensorType, ...], dict[str, Any]], ...] = (
    ("not a core operator", "Sinh", (IMAGE,), {}),
    ("takes 2 operand", "Add", (IMAGE,), {}),
    ("missing attribute axis", "Softmax", (IMAGE,), {}),
    ("unknown attribute alpha", "Relu", (IMAGE,), {"alpha": 1.0}),
    ("attribute axis must be an int, got 1.0", "Softmax", (IMAGE,), {"axis": 1.0}),
    ("attribute axis must be an int, got True", "Softmax", (IMAGE,), {"axis": True}),
    ("attribute alpha must be a float, got 1", "Elu", (IMAGE,), {"alpha": 1}),
    ("attribute perm must be a tuple of ints", "Transpose", (IMAGE,), {"perm": (0, 1, 2, 3.0)}),
    ("attribute alpha must be finite, got nan", "Elu", (IMAGE,), {"alpha": float("nan")}),
    ("axis must be in 0..3", "Softmax", (IMAGE,), {"axis": 4}),
    (r"cannot broadcast \[2,3\] with \[2\]: 3 and 2", "Add", (_operand(2, 3), _operand(2)), {}),
    ("one element type, got float32, float64", "Add", (_operand(2), _operand(2, dtype="float64")), {}),
    ("operand 0 must be one of float32, float64, int32, got int64", "Add", (_operand(2, dtype="int64"),) * 2, {}),
    ("operand 0 must be one of bool", "Where", (_operand(2),) * 3, {}),
    ("indices must be int32 or int64", "Gather", (_operand(2), _operand(2)), {"axis": 0}),
    ("operand 0 has unknown sizes", "Relu", (_operand("batch", 3),), {}),
    ("operand 0 is empty", "Relu", (_operand(0, 3),), {}),
    ("slope .* does not broadcast", "PRelu", (_operand(1, 3), _operand(2, 3)), {}),
    ("different numbers of elements", "Reshape", (IMAGE,), {"shape": (3, 7)}),
    ("perm must order the 4 axes", "Transpose", (IMAGE,), {"perm": (0, 1, 1, 3)}),
    ("differs from operand 0 in axis 0: 2 and 3", "Concat", (_operand(2, 3), _operand(3, 3)), {"axis": 1}),
    ("position 5 is outside", "Slice", (_operand(5),), {"starts": (4,), "ends": (6,), "steps": (1,)}),
    ("select nothing", "Slice", (_operand(5),), {"starts": (3,), "ends": (3,), "steps": (1,)}),
    ("step of axis 0 must not be 0", "Slice", (_operand(5),), {"starts": (3,), "ends": (4,), "steps": (0,)}),
    ("must not be negative", "Pad", (_operand(5),), {"before": (-1,), "after": (0,), "mode": "constant", "value": 0.0}),
    ("reflect pads axis 0", "Pad", (_operand(5),), {"before": (5,), "after": (0,), "mode": "reflect", "value": 0.0}),
    ("summed sizes differ: 3 and 4", "MatMul", (_operand(2, 3), _operand(4, 2)), {}),
    ("input channels must be weight channels", "Conv", (IMAGE, _operand(2, 3, 1, 1)), CONV),
    ("group must divide the output channels: 3 by 2", "Conv", (IMAGE, _operand(3, 2, 1, 1)), {**CONV, "group": 2}),
    ("larger than spatial axis 0", "Conv", (IMAGE, _operand(2, 4, 6, 1)), CONV),
    ("pads .* must have 4 entries, got 2", "Conv", (IMAGE, _operand(2, 4, 1, 1)), {**CONV, "pads": (0, 0)}),
    ("layout must be one of 'NCHW', 'NHWC'", "Conv", (IMAGE, _operand(2, 4, 1, 1)), {**CONV, "layout": "NC"}),
    ("output_padding must be smaller", "ConvTranspose", (IMAGE, _operand(4, 2, 1, 1)), {**CONV, "output_padding": (1, 0)}),
    ("pads of spatial axis 1 must be smaller than the window", "MaxPool", (IMAGE,), {**POOL, "pads": (0, 2, 0, 0)}),
    ("lies in the padding alone", "MaxPool", (_operand(1, 1, 1, 1),), {**POOL, "pads": (1, 1, 1, 1), "dilations": (2, 1)}),
    ("count_include_pad must be 0 or 1", "AveragePool", (IMAGE,), {**POOL, "count_include_pad": 2}),
    ("sorted and distinct", "ReduceSum", (IMAGE,), {"axes": (2, 1)}),
    ("must be one of 'half_pixel'", "Resize", (_operand(2, 3),), {**RESIZE, "coordinate_mode": "tf_crop_and_resize"}),
    ("not a fraction", "Resize", (_operand(2, 3),), {**RESIZE, "scales": (1.0, 2.0001)}),
    ("scale 3.5 does not take size 3 to 6", "Resize", (_operand(2, 3),), {**RESIZE, "scales": (1.0, 3.5)}),
    ("keeps its size but has the scale", "Resize", (_operand(2, 6),), {**RESIZE, "scales": (1.0, 1.1)}),
    ("float32 rounding of the scale", "Resize", (_operand(1, 50),),
     {**RESIZE, "sizes": (1, 60), "scales": (1.0, float(np.float32(1.2)))}),
)  # fmt: skip


@pytest.mark.parametrize(("reason", "op", "types", "values"), REFUSALS, ids=[f"{row[1]}: {row[0]}" for row in REFUSALS])
def test_bad_operands_are_refused_with_the_reason(reason: str, op: str, types: tuple[TensorType, ...], values: dict[str, Any]) -> None:
    with pytest.raises(TypeMismatch, match=reason) as caught:
        infer(op, types, attributes(**values))
    assert caught.value.what.startswith(f"{op}: ")
    assert all(str(type_) in caught.value.where for type_ in types)


@pytest.mark.parametrize("coordinate_mode", COORDINATE_MODES)
@pytest.mark.parametrize("nearest_mode", NEAREST_MODES)
def test_nearest_resize_reads_the_neighbour_that_onnxruntime_reads(coordinate_mode: str, nearest_mode: str) -> None:
    """If a scale is no float32 value, the exact index agrees with float32 arithmetic or is refused."""
    random, compared = Random(5), 0
    for _ in range(30):
        length, count = random.randint(2, 60), random.randint(1, 120)
        scale = float(np.float32(count) / np.float32(length))
        if length == count:
            continue
        values = {**RESIZE, "sizes": (1, 1, 1, count), "scales": (1.0, 1.0, 1.0, scale)}
        values |= {"coordinate_mode": coordinate_mode, "nearest_mode": nearest_mode}
        x = placeholder(0, _operand(1, 1, 1, length))
        try:
            node = apply("Resize", x, **values)
        except TypeMismatch:
            continue
        compared += 1
        positions = np.arange(length, dtype=np.float32).reshape(1, 1, 1, length)
        theirs = run(model("Resize", [x.type], values, node.type), [positions])
        np.testing.assert_array_equal(evaluate([node], {x: positions})[0], theirs, err_msg=f"{length} to {count}")
    assert compared >= 10


def test_attributes_come_whole_or_as_keywords() -> None:
    x = placeholder(0, IMAGE)
    assert apply("Softmax", x, axis=1) is apply("Softmax", x, attributes=attributes(axis=1))
    with pytest.raises(TypeMismatch, match="not both"):
        apply("Softmax", x, attributes=attributes(axis=1), axis=1)


def test_flops_count_multiplications_and_additions() -> None:
    assert OPS["MatMul"].flops is not None
    assert OPS["MatMul"].flops([(5, 2, 3), (3, 7)], {}) == 2 * 5 * 2 * 3 * 7
    assert OPS["Conv"].flops is not None
    assert OPS["Conv"].flops([(1, 4, 5, 5), (6, 2, 3, 3)], {**CONV, "group": 2}) == 2 * (6 * 3 * 3) * (2 * 3 * 3)
