"""Write ONNX graphs by hand, with random weights: a few lines a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and random weights; every method returns the name of the tensor that it made."""

    def __init__(self, name: str, seed: int = 0, opset: int = 18) -> None:
        self.name, self.opset = name, opset
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.count = 0

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def constant(self, value: np.ndarray | np.floating[Any], stem: str = "constant") -> str:
        self.count += 1
        name = f"{stem}_{self.count}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Return normal random weights; by default scaled by the fan-in so that activations keep their size."""
        if scale is None:
            fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
            scale = float(np.sqrt(2.0 / max(1, fan_in)))
        return self.constant(self.random.normal(0, scale, shape).astype(np.float32), "weight")

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        self.count += 1
        out = f"{op.lower()}_{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=f"{op}_{self.count}", domain=domain, **attributes))
        return out

    def conv(
        self,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        pad: int | tuple[int, int] | None = None,
        dilation: int = 1,
        group: int = 1,
        bias: bool = True,
    ) -> str:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        vertical, horizontal = (height // 2, width // 2) if pad is None else ((pad, pad) if isinstance(pad, int) else pad)
        operands = [x, self.weight(outputs, inputs // group, height, width)]
        if bias:
            operands.append(self.weight(outputs, scale=0.1))
        return self.node(
            "Conv",
            *operands,
            kernel_shape=[height, width],
            strides=[stride, stride],
            dilations=[dilation, dilation],
            pads=[vertical, horizontal, vertical, horizontal],
            group=group,
        )

    def deconv(
        self, x: str, inputs: int, outputs: int, kernel: int, *, stride: int, pad: int, output_padding: int = 0, bias: bool = True
    ) -> str:
        operands = [
            x,
            self.weight(inputs, outputs, kernel, kernel, scale=float(np.sqrt(2.0 * stride * stride / (inputs * kernel * kernel)))),
        ]
        if bias:
            operands.append(self.weight(outputs, scale=0.1))
        return self.node(
            "ConvTranspose",
            *operands,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            output_padding=[output_padding, output_padding],
        )

    def batch_norm(self, x: str, channels: int) -> str:
        positive = self.random.uniform(0.5, 1.5, (2, channels)).astype(np.float32)
        return self.node(
            "BatchNormalization",
            x,
            self.constant(positive[0]),
            self.weight(channels, scale=0.1),
            self.weight(channels, scale=0.1),
            self.constant(positive[1]),
            epsilon=1e-5,
        )

    def linear(self, x: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        y = self.node("MatMul", x, self.weight(inputs, outputs))
        return self.node("Add", y, self.weight(outputs, scale=0.1)) if bias else y

    def relu(self, x: str) -> str:
        return self.node("Relu", x)

    def integers(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64), "sizes")

    def model(self, *outputs: str) -> onnx.ModelProto:
        """Return the checked model with the outputs' types inferred."""
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, [helper.make_empty_tensor_value_info(o) for o in outputs], self.weights
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred
