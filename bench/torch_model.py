"""Run an ONNX graph with torch functions, so that torch.compile can trace it (converters need torchvision)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

Tensor = torch.Tensor


def _pad(x: Tensor, pads: list[int]) -> tuple[Tensor, list[int]]:
    """Return symmetric padding for an operator, padding the tensor itself where sides differ."""
    half = len(pads) // 2
    if pads[:half] == pads[half:]:
        return x, pads[:half]
    order = [side for axis in reversed(range(half)) for side in (pads[axis], pads[half + axis])]
    return F.pad(x, order), [0] * half


def _conv(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    x, pads = _pad(x, a.get("pads", [0] * 4))
    return F.conv2d(x, w, b, a.get("strides", [1, 1]), pads, a.get("dilations", [1, 1]), a.get("group", 1))


def _deconv(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.conv_transpose2d(x, w, b, a.get("strides", [1, 1]), a.get("pads", [0] * 4)[:2], a.get("output_padding", [0, 0]))


def _max_pool(a: Mapping[str, Any], x: Tensor) -> Tensor:
    pads = a.get("pads", [0] * 4)
    order = [side for axis in reversed(range(2)) for side in (pads[axis], pads[2 + axis])]
    return F.max_pool2d(F.pad(x, order, value=float("-inf")), a["kernel_shape"], a.get("strides", [1, 1]))


def _average_pool(a: Mapping[str, Any], x: Tensor) -> Tensor:
    x, pads = _pad(x, a.get("pads", [0] * 4))
    return F.avg_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]), pads, count_include_pad=bool(a.get("count_include_pad", 0)))


def _batch_norm(a: Mapping[str, Any], x: Tensor, s: Tensor, b: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return F.batch_norm(x, m, v, s, b, eps=a.get("epsilon", 1e-5))


def _gemm(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w if a.get("transB") else w.T, b)


OPERATORS: Mapping[str, Callable[..., Tensor]] = {
    "Add": lambda a, x, y: x + y,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": lambda a, *x: torch.cat(x, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _deconv,
    "Div": lambda a, x, y: x / y,
    "Dropout": lambda a, x, *rest: x,
    "Erf": lambda a, x: torch.erf(x),
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
    "LRN": lambda a, x: F.local_response_norm(x, a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)),
    "LayerNormalization": lambda a, x, s, b: F.layer_norm(x, s.shape, s, b, a.get("epsilon", 1e-5)),
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": _max_pool,
    "Mul": lambda a, x, y: x * y,
    "PRelu": lambda a, x, s: torch.where(x > 0, x, x * s),
    "Pow": lambda a, x, y: x**y,
    "ReduceMean": lambda a, x, axes: x.mean(tuple(axes.tolist()), keepdim=bool(a.get("keepdims", 1))),
    "Relu": lambda a, x: F.relu(x),
    "Reshape": lambda a, x, shape: x.reshape(shape.tolist()),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Sub": lambda a, x, y: x - y,
    "Sum": lambda a, *x: sum(x[1:], start=x[0]),
    "Tanh": lambda a, x: torch.tanh(x),
    "Transpose": lambda a, x: x.permute(a["perm"]),
}


class TorchModel(torch.nn.Module):
    """The graph's nodes, one torch function each. Raises KeyError naming an operator that is not in the table."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        self.weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in model.graph.initializer}
        self.inputs = [i.name for i in model.graph.input]
        self.outputs = [o.name for o in model.graph.output]
        self.steps = [
            (OPERATORS[n.op_type], {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}, tuple(n.input), n.output[0])
            for n in model.graph.node
        ]

    def forward(self, *operands: Tensor) -> list[Tensor]:
        values = dict(self.weights) | dict(zip(self.inputs, operands, strict=True))
        for function, attributes, inputs, output in self.steps:
            values[output] = function(attributes, *[values[name] for name in inputs])
        return [values[name] for name in self.outputs]
