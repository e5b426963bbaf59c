"""Every operator's shape rule and meaning against onnxruntime, and what bad operands are told."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as states

from egraph.expr.scope import Tensor
from egraph.ir import TensorType, placeholder
from egraph.ops import OPS, OpSpec, apply
from egraph.ops.reference import evaluate
from tests.onnx_operators import model, run

SAMPLES = int(os.environ.get("EINSAT_OPERATOR_SAMPLES", "24"))
POSITIVE = {"Log", "Sqrt", "Pow"}


def draw(generator: np.random.Generator, op: str, types: Sequence[TensorType], values: Mapping[str, Any]) -> list[np.ndarray]:
    """Return operands: mostly halves, so that comparisons and roundings meet ties, and some fractions."""
    operands = []
    for position, type_ in enumerate(types):
        if type_.dtype == "bool":
            operands.append(generator.integers(0, 2, type_.sizes).astype(bool))
        elif type_.dtype == "int64":
            size = types[0].sizes[values["axis"]]
            operands.append(generator.integers(-size, size, type_.sizes))
        else:
            array = generator.normal(size=type_.sizes) * 2
            array = np.where(generator.random(type_.sizes) < 0.5, np.round(2 * array) / 2, array)
            operands.append(np.asarray(np.abs(array) + 0.25 if op in POSITIVE and position == 0 else array, np.float32))
    return operands


@pytest.mark.parametrize("spec", OPS.values(), ids=lambda spec: spec.name)
def test_shape_and_meaning_agree_with_onnxruntime(spec: OpSpec) -> None:
    random, generator = Random(spec.name), np.random.default_rng(7)
    compared, refused = 0, []
    for _ in range(SAMPLES):
        shapes, values = spec.sample(random)
        dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
        types = [TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
        node = apply(spec.name, *(placeholder(i, t) for i, t in enumerate(types)), **values)
        assert spec.meaning([Tensor(str(i), shape) for i, shape in enumerate(shapes)], values).shape == node.type.shape
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
