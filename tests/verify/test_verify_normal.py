"""Normal forms preserve values: a separate evaluator agrees with the meanings of the operators and of their compositions."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Symbol, index
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import OPS
from tests.support.normal_values import check
from verify.normal import TooLarge

RATIONAL = (
    "Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "MatMul", "Conv", "ConvTranspose", "ReduceSum", "ReduceMean", "ReduceProd",
    "AveragePool", "Reshape", "Transpose", "Concat", "Slice", "Pad", "Expand", "Gather",
)  # fmt: skip
LARGE_FORMS = ("Resize",)
"""Operators of which some samples are refused as too large: interpolation weights of two axes are products of many terms."""


def sampled(name: str, random: Random) -> tuple[Scope, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the meaning of a sample of an operator, with real data and residues."""
    spec = OPS[name]
    shapes, attributes = spec.sample(random)
    dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
    scope = spec.meaning([Tensor(str(k), *operand) for k, operand in enumerate(zip(shapes, dtypes, strict=True))], attributes)
    generator = np.random.default_rng(random.randrange(1 << 30))
    real: dict[str, np.ndarray] = {}
    whole: dict[str, np.ndarray] = {}
    for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        if dtype == "int64":
            limit = shapes[0][attributes["axis"]] if "axis" in attributes else PRIME
            real[str(k)] = whole[str(k)] = generator.integers(-limit, limit, shape)
        else:
            real[str(k)] = generator.integers(0, 2, shape).astype(float) if dtype == "bool" else generator.normal(size=shape)
            if name in ("Log", "Sqrt", "Pow"):
                real[str(k)] = np.abs(real[str(k)]) + 0.1
            whole[str(k)] = generator.integers(1, PRIME, shape)
    return scope, real, whole


@pytest.mark.parametrize("name", sorted(name for name, spec in OPS.items() if spec.category != "recurrence"))
def test_the_normal_form_of_every_operator_keeps_its_value(name: str) -> None:
    random, compared = Random(name), 0
    for _ in range(8 if name.endswith("Normalization") else 5):
        scope, real, whole = sampled(name, random)
        if name in ("InstanceNormalization", "LayerNormalization") and real["0"].size > 60:
            continue  # too slow: three nested sums at every point
        try:
            check(scope, real, random)
        except TooLarge:
            assert name in LARGE_FORMS
            continue
        compared += 1
        if name in RATIONAL:
            check(scope, whole, random, exact=True)
    assert compared


UNARY = (
    "Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Exp", "HardSwish", "Softplus", "Sign", "Floor", "Ceil", "Round", "LeakyRelu", "Elu", "Clip",
    "Softsign", "Reciprocal", "Sqrt", "Log",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Less", "LessOrEqual", "Equal", "Div")
KINDS = ("unary", "unary", "binary", "binary", "where", "reduce", "scale", "pool", "pad", "concat", "transpose")
SHAPE = (2, 3, 4)
SIZES = tuple(Symbol(f"n{axis}") for axis in range(3))


@st.composite
def programs(draw: st.DrawFn) -> Scope:
    """Draw a composition of operators over two tensors of one shape, and one of a single row."""
    sizes = [index(s) if draw(st.booleans()) else n for s, n in zip(SIZES, SHAPE, strict=True)]
    tensors: list[Scope | Tensor] = [Tensor("0", tuple(sizes)), Tensor("1", tuple(sizes)), Tensor("2", (1, sizes[1], 1))]
    random = Random(draw(st.integers(0, 1 << 20)))
    for step in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        first = random.choice(tensors[2 * (len(tensors) > 3):])
        second = random.choice(tensors)
        name, attributes, operands = _step(kind, random, first, second, random.choice(tensors))
        if name is None:
            continue
        names = [f"t{step}_{k}" for k in range(len(operands))]
        leaves = [Tensor(n, o.shape) for n, o in zip(names, operands, strict=True)]
        meaning = OPS[name].meaning(leaves, attributes)
        tensors.append(inline(meaning, dict(zip(names, operands, strict=True))))
    last = tensors[-1]
    return last if isinstance(last, Scope) else OPS["Relu"].meaning([last], {})


def _step(
    kind: str, random: Random, first: Scope | Tensor, second: Scope | Tensor, third: Scope | Tensor
) -> tuple[str | None, Mapping[str, Any], list[Scope | Tensor]]:
    """Return an operator with its attributes and operands; the name is None if the operands do not fit."""
    attributes: dict[str, object] = {}
    match kind:
        case "unary":
            name = random.choice(UNARY)
            values: dict[str, dict[str, object]] = {"LeakyRelu": {"alpha": 0.25}, "Elu": {"alpha": 0.5}, "Clip": {"min": -0.5, "max": 0.75}}
            return name, values.get(name, attributes), [first]
        case "binary" if _fits(first, second):
            return random.choice(BINARY), attributes, [first, second]
        case "where" if _fits(first, second) and _fits(first, third) and _fits(second, third):
            return "Where", attributes, [first, second, third]
        case "reduce":
            kinds = ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
            return random.choice(kinds), {"axes": random.choice(((0,), (1,), (2,), (1, 2)))}, [first]
        case "scale":
            return random.choice(("Softmax", "LogSoftmax")), {"axis": random.randrange(3)}, [first]
        case "pool":
            window = {"kernel_shape": (2,), "strides": (1,), "pads": (1, 1), "dilations": (1,), "layout": random.choice(("NCHW", "NHWC"))}
            if random.random() < 0.5:
                return "MaxPool", window, [first]
            return "AveragePool", {**window, "count_include_pad": random.randint(0, 1)}, [first]
        case "pad":
            border = tuple(random.randint(0, 1) for _ in range(3)), tuple(random.randint(0, 1) for _ in range(3))
            return "Pad", {"before": border[0], "after": border[1], "mode": "constant", "value": 0.5}, [first]
        case "concat" if first.shape == second.shape:
            return "Concat", {"axis": 1}, [first, second]
        case "transpose":
            return "Transpose", {"perm": (0, 2, 1)}, [first]
    return None, attributes, []


def _fits(left: Scope | Tensor, right: Scope | Tensor) -> bool:
    return all(index(a) == index(b) or 1 in (a, b) for a, b in zip(left.shape, right.shape, strict=True))


@given(programs(), st.integers(0, 1 << 20))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_the_normal_form_of_a_composition_keeps_its_value(scope: Scope, seed: int) -> None:
    generator = np.random.default_rng(seed)
    data = {"0": generator.normal(size=SHAPE), "1": generator.normal(size=SHAPE), "2": generator.normal(size=(1, 3, 1))}
    try:
        with np.errstate(all="ignore"):
            check(scope, data, Random(seed), dict(zip(SIZES, SHAPE, strict=True)))
    except TooLarge:
        reject()
