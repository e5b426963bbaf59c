"""Models whose sums of products of bytes are exact in onnxruntime on every processor.

Where a processor has no instructions for products of bytes, onnxruntime adds pairs of products of unsigned by signed bytes up in 16
bits, which saturate: what it computes is not what ONNX says. Products by unsigned bytes are exact everywhere, and a signed byte with its
zero point is the unsigned one that is 128 greater with a zero point that is 128 greater.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import onnx
from onnx import TensorProto, helper

WEIGHTS: Mapping[str, tuple[int, int]] = {
    "MatMulInteger": (1, 3), "QLinearMatMul": (3, 5), "QLinearConv": (3, 5), "ConvInteger": (1, 3),
}  # fmt: skip
"""The positions of the right operand and of its zero point."""
SHIFT = 128


def exact_file(model: bytes) -> bytes:
    """Return the bytes of a model's file with exact sums of products of bytes: the same where it has none."""
    if not any(name.encode() in model for name in WEIGHTS):
        return model
    exact: bytes = with_exact_bytes(onnx.load_from_string(model)).SerializeToString()
    return exact


def with_exact_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose products of bytes have unsigned ones on the right; those of subgraphs stay."""
    exact = onnx.ModelProto()
    exact.CopyFrom(model)
    graph = exact.graph
    types = _types(model)
    nodes = list(graph.node)
    del graph.node[:]
    made: dict[str, str] = {}

    def unsigned(name: str) -> str:
        if name not in made:
            wide, shifted, made[name] = (f"{name}.einsat.{part}" for part in ("wide", "shifted", "unsigned"))
            graph.node.extend(
                [
                    helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
                    helper.make_node("Add", [wide, "einsat.shift"], [shifted]),
                    helper.make_node("Cast", [shifted], [made[name]], to=TensorProto.UINT8),
                ]
            )
        return made[name]

    for node in nodes:
        at, zero = WEIGHTS.get(node.op_type, (0, 0)) if node.domain in ("", "ai.onnx") else (0, 0)
        if at and types.get(node.input[at]) == TensorProto.INT8 and types.get(node.input[0]) == TensorProto.UINT8:
            node.input[at] = unsigned(node.input[at])
            while len(node.input) <= zero:
                node.input.append("")
            node.input[zero] = unsigned(node.input[zero]) if node.input[zero] else "einsat.zero"
        graph.node.append(node)
    graph.initializer.append(helper.make_tensor("einsat.shift", TensorProto.INT32, (), [SHIFT]))
    graph.initializer.append(helper.make_tensor("einsat.zero", TensorProto.UINT8, (), [SHIFT]))
    return exact


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element types that are known."""
    with suppress(Exception):  # what cannot be inferred is left as it is
        model = onnx.shape_inference.infer_shapes(model)
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in model.graph.initializer}
