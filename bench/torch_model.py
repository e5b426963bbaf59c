"""Run an ONNX graph with torch functions, so that torch.compile can trace it (converters need torchvision)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

Tensor = torch.Tensor
SCALARS = ("Add", "Clip", "Div", "Mul", "Pow", "Sub")
SETTINGS = ("Pad", "ReduceMean", "ReduceSum", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Unsqueeze")
"""Operators whose later operands, if constant, control the computation: as tensors they would interrupt the compiled code. So would
single numbers in the operators above, where torch looks for attention."""


def _listed(value: Tensor | list[Any]) -> list[Any]:
    return value if isinstance(value, list) else value.tolist()


def _pad(x: Tensor, pads: list[int]) -> tuple[Tensor, list[int]]:
    """Return symmetric padding for an operator, padding the tensor itself if the sides differ."""
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
    padded, pads = _pad(x, a.get("pads", [0] * 4))
    total = F.avg_pool2d(padded, a["kernel_shape"], a.get("strides", [1, 1]), pads)
    if a.get("count_include_pad", 0):
        return total
    counted, _ = _pad(torch.ones_like(x[:1, :1]), a.get("pads", [0] * 4))
    return total / F.avg_pool2d(counted, a["kernel_shape"], a.get("strides", [1, 1]), pads)


def _batch_norm(a: Mapping[str, Any], x: Tensor, s: Tensor, b: Tensor, m: Tensor, v: Tensor) -> Tensor:
    return F.batch_norm(x, m, v, s, b, eps=a.get("epsilon", 1e-5))


def _gemm(a: Mapping[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return F.linear(x, w if a.get("transB") else w.T, b)


def _gather(a: Mapping[str, Any], x: Tensor, indices: Tensor) -> Tensor:
    axis = a.get("axis", 0) % x.ndim
    selected = torch.index_select(x, axis, indices.reshape(-1))
    return selected.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _constant_pad(a: Mapping[str, Any], x: Tensor, pads: Tensor, value: Tensor | None = None) -> Tensor:
    if a.get("mode", b"constant") != b"constant":
        raise LookupError("bench/torch_model.py pads by constants only")
    sides = _listed(pads)
    order = [side for axis in reversed(range(x.ndim)) for side in (sides[axis], sides[x.ndim + axis])]
    return F.pad(x, order, value=0.0 if value is None else float(value))


def _unsqueeze(a: Mapping[str, Any], x: Tensor, axes: Tensor | None = None) -> Tensor:
    new_axes = a["axes"] if axes is None else _listed(axes)
    rank = x.ndim + len(new_axes)
    for axis in sorted(axis % rank for axis in new_axes):
        x = x.unsqueeze(axis)
    return x


def _hard_sigmoid(a: Mapping[str, Any], x: Tensor) -> Tensor:
    return (a.get("alpha", 0.2) * x + a.get("beta", 0.5)).clamp(0, 1)


def _resize(
    a: Mapping[str, Any], x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | list[int] | None = None
) -> Tensor:
    """Interpolate images linearly, or repeat values by whole factors, where every rounding of coordinates reads the same ones."""
    given = [size * factor for size, factor in zip(x.shape, [] if scales is None else _listed(scales), strict=False)]
    target = given if sizes is None else _listed(sizes)
    where = a.get("coordinate_transformation_mode", b"half_pixel"), a.get("nearest_mode", b"round_prefer_floor")
    is_whole = target == [int(size) for size in target] and target[:2] == [*x.shape[:2]]
    if a.get("mode") == b"linear" and where[0] == b"half_pixel" and not a.get("antialias", 0) and is_whole and x.ndim == 4:
        return F.interpolate(x, [int(size) for size in target[2:]], mode="bilinear", align_corners=False)
    rounded = where[0] == b"half_pixel" and where[1].startswith(b"round")
    nearest = a.get("mode", b"nearest") == b"nearest" and (rounded or where == (b"asymmetric", b"floor"))
    factors = [int(large) // small for large, small in zip(target, x.shape, strict=False)]
    if not nearest or not target or [factor * size for factor, size in zip(factors, x.shape, strict=True)] != target:
        raise LookupError("bench/torch_model.py resizes images linearly, and others by nearest values and whole factors")
    for axis, factor in enumerate(factors):
        x = x.repeat_interleave(factor, axis) if factor > 1 else x
    return x


def _reshape(a: Mapping[str, Any], x: Tensor, shape: Tensor | list[int]) -> Tensor:
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(_listed(shape))])


def _slice(a: Mapping[str, Any], x: Tensor, *settings: Tensor | list[int] | None) -> Tensor:
    starts, ends, axes, steps = (None if value is None else _listed(value) for value in (*settings, None, None)[:4])
    assert starts is not None and ends is not None
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = k if axes is None else axes[k] % x.ndim, 1 if steps is None else steps[k]
        if step < 0:
            raise LookupError("bench/torch_model.py slices forwards only")
        x = x[(slice(None),) * axis + (slice(start, min(end, x.shape[axis]), step),)]
    return x


def _split(a: Mapping[str, Any], x: Tensor, sizes: Tensor | list[int] | None = None) -> tuple[Tensor, ...]:
    axis = a.get("axis", 0)
    return torch.split(x, x.shape[axis] // a["outputs"] if sizes is None else _listed(sizes), axis)


def _softmax_over_rest(a: Mapping[str, Any], x: Tensor) -> Tensor:
    """Softmax before opset 13: over all axes from the given one on."""
    axis = a.get("axis", 1) % x.ndim
    return torch.softmax(x.flatten(axis), axis).reshape(x.shape)


TYPES = {onnx.TensorProto.BOOL: torch.bool, onnx.TensorProto.INT64: torch.int64, onnx.TensorProto.INT32: torch.int32}
OPERATORS: Mapping[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "Add": lambda a, x, y: x + y,
    "And": lambda a, x, y: x & y,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": lambda a, x, low=None, high=None: torch.clamp(x, low, high),
    "Concat": lambda a, *x: torch.cat(x, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _deconv,
    "Div": lambda a, x, y: x / y,
    "Dropout": lambda a, x, *rest: x,
    "Erf": lambda a, x: torch.erf(x),
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gather": _gather,
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda a, x: F.hardswish(x),
    "Identity": lambda a, x: x,
    "IsNaN": lambda a, x: torch.isnan(x),
    "LRN": lambda a, x: F.local_response_norm(x, a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)),
    "LayerNormalization": lambda a, x, s, b: F.layer_norm(x, s.shape, s, b, a.get("epsilon", 1e-5)),
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": _max_pool,
    "Mul": lambda a, x, y: x * y,
    "PRelu": lambda a, x, s: torch.where(x > 0, x, x * s),
    "Pad": _constant_pad,
    "Pow": lambda a, x, y: x**y,
    "ReduceMean": lambda a, x, axes=None: x.mean(a["axes"] if axes is None else _listed(axes), keepdim=bool(a.get("keepdims", 1))),
    "ReduceSum": lambda a, x, axes=None: x.sum(a["axes"] if axes is None else _listed(axes), keepdim=bool(a.get("keepdims", 1))),
    "Relu": lambda a, x: F.relu(x),
    "Resize": _resize,
    "Reshape": _reshape,
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
    "Split": _split,
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Squeeze": lambda a, x, axes=None: x.squeeze(tuple(a["axes"] if axes is None else _listed(axes))),
    "Sub": lambda a, x, y: x - y,
    "Sum": lambda a, *x: sum(x[1:], start=x[0]),
    "Tanh": lambda a, x: torch.tanh(x),
    "Transpose": lambda a, x: x.permute(a["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": lambda a, condition, x, y: torch.where(condition, x, y),
}


class TorchModel(torch.nn.Module):
    """The graph's nodes, one torch function each. Raises LookupError naming operators that are not in the table.

    ``floats``: the type of the model's 32-bit floats, and of the operands.
    """

    def __init__(self, model: onnx.ModelProto, *, floats: torch.dtype = torch.float32) -> None:
        super().__init__()
        constants = {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"}
        constants |= {t.name: t for t in model.graph.initializer}
        self.weights: dict[str, Tensor] = {name: torch.from_numpy(numpy_helper.to_array(t).copy()) for name, t in constants.items()}
        self.weights = {name: w.to(floats) if w.dtype == torch.float32 else w for name, w in self.weights.items()}
        operators = {**OPERATORS, "Cast": lambda a, x: x.to({**TYPES, onnx.TensorProto.FLOAT: floats}[a["to"]])}
        nodes = [n for n in model.graph.node if n.output[0] not in constants]
        if missing := sorted({n.op_type for n in nodes} - set(operators)):
            raise LookupError(f"bench/torch_model.py does not translate {', '.join(missing)}")
        self.inputs = [i.name for i in model.graph.input]
        self.outputs = [o.name for o in model.graph.output]
        opset = next(o.version for o in model.opset_import if not o.domain)
        if opset < 13:
            operators["Softmax"] = _softmax_over_rest
        self.steps = [(operators[n.op_type], _attributes(n), tuple(map(self._operand, _kinds(n), n.input)), tuple(n.output)) for n in nodes]
        self.parameter_names = {name: f"weight{number}" for number, (name, w) in enumerate(self.weights.items()) if w.is_floating_point()}
        for name, parameter in self.parameter_names.items():  # torch may compute with these ahead of time
            self.register_parameter(parameter, torch.nn.Parameter(self.weights.pop(name), requires_grad=False))

    def _operand(self, kind: str, name: str) -> str | list[Any] | float:
        """Return an operand's name, or its value if torch should know it while it compiles."""
        weight = self.weights.get(name)
        if weight is None or kind == "tensor" or (kind == "scalar" and (weight.numel() != 1 or not weight.is_floating_point())):
            return name
        return weight.item() if kind == "scalar" else weight.tolist()

    def forward(self, *operands: Tensor) -> list[Tensor]:
        values = {name: getattr(self, parameter) for name, parameter in self.parameter_names.items()} | self.weights
        values |= zip(self.inputs, operands, strict=True)
        for function, attributes, inputs, outputs in self.steps:
            result = function(attributes, *[values.get(each) if isinstance(each, str) else each for each in inputs])
            values |= zip(outputs, result if isinstance(result, tuple) else (result,), strict=False)
        return [values[name] for name in self.outputs]


def _kinds(node: onnx.NodeProto) -> list[str]:
    """Return the kind of every operand: a tensor, a scalar, or a setting."""
    later = "setting" if node.op_type in SETTINGS else "scalar" if node.op_type in SCALARS else "tensor"
    return ["tensor" if later == "setting" else later, *([later] * (len(node.input) - 1))]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} | {"outputs": len(node.output)}
