"""Models whose sums of products of bytes are exact in onnxruntime on every processor.

On a processor without instructions for products of bytes, onnxruntime adds pairs of products of unsigned by signed bytes in 16 bits,
which saturate, so its results differ from ONNX. Products by unsigned bytes are exact everywhere. A signed byte with its zero point equals
the unsigned byte that is 128 greater with a zero point that is 128 greater.

onnxruntime has an option that does this itself (``session.x64quantprecision``), for more operators. It names the unsigned copy after the
constant, and refuses a model in which two operands name one constant. For this option, each operand gets its own constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper


@dataclass(frozen=True)
class Operands:
    """The positions of a product's right operand and of both zero points. The left zero point is None if the product quantises its left
    operand itself.
    """

    right: int
    right_zero: int
    left_zero: int | None = None


_MATMUL, _LINEAR = (Operands(1, 3, 2),), (Operands(3, 5, 2),)
_ONNX: Mapping[str, tuple[Operands, ...]] = {
    "MatMulInteger": _MATMUL, "ConvInteger": _MATMUL, "QLinearMatMul": _LINEAR, "QLinearConv": _LINEAR,
}  # fmt: skip
PRODUCTS: Mapping[str, Mapping[str, tuple[Operands, ...]]] = {
    "": _ONNX,
    "ai.onnx": _ONNX,
    "com.microsoft": {
        "QGemm": _LINEAR, "MatMulIntegerToFloat": (Operands(1, 5, 4),), "DynamicQuantizeMatMul": (Operands(1, 3),),
        "DynamicQuantizeLSTM": (Operands(1, 9), Operands(2, 11)),
    },
}  # fmt: skip
"""The products of bytes, by domain and operator."""
SHIFT = 128
MARKS = (b"Integer", b"QLinear", b"Quantize", b"QAttention", b"QGemm")
"""Names of which at least one occurs in the file of every model whose products of bytes onnxruntime may make unsigned."""


def exact_file(model: bytes) -> bytes:
    """Return the bytes of a model's file with exact sums of products of bytes; unchanged if it has no such products."""
    if not any(name.encode() in model for operators in PRODUCTS.values() for name in operators):
        return separate_file(model)
    exact: bytes = with_exact_bytes(onnx.load_from_string(model)).SerializeToString()
    return exact


def separate_file(model: bytes) -> bytes:
    """Return the bytes of a model's file in which no two operands name one constant of signed bytes; unchanged if none do."""
    if not any(mark in model for mark in MARKS):
        return model
    shared = onnx.load_from_string(model)
    separate = with_separate_bytes(shared)
    data: bytes = model if separate is shared else separate.SerializeToString(deterministic=True)
    return data


def with_separate_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which each operand has its own constant of signed bytes; constants that subgraphs read stay shared."""
    given = {value.name for value in model.graph.input}
    tensors = {tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.INT8} - given
    nodes = {node.output[0] for node in model.graph.node if _is_bytes(node)}
    uses = Counter(name for node in model.graph.node for name in node.input if name in tensors or name in nodes)
    if not any(count > 1 for count in uses.values()):
        return model
    separate = onnx.ModelProto()
    separate.CopyFrom(model)
    graph, copied = separate.graph, Counter[str]()
    constants = {tensor.name: tensor for tensor in model.graph.initializer} | {n.output[0]: n for n in model.graph.node if n.output}
    front: list[onnx.NodeProto] = []
    for node in graph.node:
        for position, name in enumerate(node.input):
            if uses[name] > 1 and (number := copied[name]):
                node.input[position] = copy = f"{name}.einsat.{number}"
                if name in tensors:
                    graph.initializer.add().CopyFrom(constants[name])
                    graph.initializer[-1].name = copy
                else:
                    front.append(onnx.NodeProto())
                    front[-1].CopyFrom(constants[name])
                    front[-1].name = front[-1].output[0] = copy
            copied[name] += 1
    nodes_after = list(graph.node)
    del graph.node[:]
    graph.node.extend([*front, *nodes_after])
    return separate


def _is_bytes(node: onnx.NodeProto) -> bool:
    """Return whether a node is a constant of signed bytes."""
    return node.op_type == "Constant" and any(each.name == "value" and each.t.data_type == TensorProto.INT8 for each in node.attribute)


def with_exact_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose products of bytes have unsigned bytes on the right; products in subgraphs stay unchanged."""
    exact = onnx.ModelProto()
    exact.CopyFrom(with_separate_bytes(model))
    graph = exact.graph
    types = _types(exact)
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

    def at(node: onnx.NodeProto, position: int) -> str:
        return node.input[position] if position < len(node.input) else ""

    def multiplies_unsigned_by_signed(node: onnx.NodeProto, product: Operands) -> bool:
        """Return whether a product multiplies unsigned by signed bytes.

        Types behind onnxruntime's own operators are not inferred, but a zero point has the type of its operand.
        """
        left: int | None = TensorProto.UINT8
        if product.left_zero is not None:
            left = types.get(node.input[0], types.get(at(node, product.left_zero)))
        return (left, types.get(at(node, product.right))) == (TensorProto.UINT8, TensorProto.INT8)

    for node in nodes:
        for product in PRODUCTS.get(node.domain, {}).get(node.op_type, ()):
            if multiplies_unsigned_by_signed(node, product):
                zero = at(node, product.right_zero)
                node.input.extend([""] * (product.right_zero + 1 - len(node.input)))
                node.input[product.right] = unsigned(node.input[product.right])
                node.input[product.right_zero] = unsigned(zero) if zero else "einsat.zero"
        graph.node.append(node)
    graph.initializer.append(helper.make_tensor("einsat.shift", TensorProto.INT32, (), [SHIFT]))
    graph.initializer.append(helper.make_tensor("einsat.zero", TensorProto.UINT8, (), [SHIFT]))
    return exact


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element types that are known."""
    with suppress(Exception):  # types that cannot be inferred stay unknown
        model = onnx.shape_inference.infer_shapes(model)
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in model.graph.initializer}
