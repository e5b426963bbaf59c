"""LSTM, GRU and RNN as ONNX: a Scan over the products of the inputs with their weights, which ONNX's own operators compute internally."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, TensorProto, helper

from egraph.errors import LowerError
from egraph.onnx.exporter.emitter import Emitter
from egraph.tensor import Node
from egraph.tensor.ops.recurrence import GATES, UNITS

OLDEST_SCAN = 9


def recurrence(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    """Write one Scan per direction, and then concatenate all states."""
    if e.opset < OLDEST_SCAN:
        raise LowerError(f"{node.op} has no ONNX form before opset {OLDEST_SCAN}", where=str(node.type), fix="give the model a newer opset")
    products, packed = operands[:2]
    directions, batch, units = node.inputs[2].type.sizes
    gates, padded = GATES[node.op], node.inputs[1].type.sizes[1] * UNITS
    apart = e.add("Transpose", [packed], perm=[0, 2, 3, 1, 4])
    apart = _part(e, e.add("Reshape", [apart, e.integers([directions, units, gates, padded])]), 3, 0, units)
    weights = e.add("Reshape", [apart, e.integers([directions, units, gates * units])])
    steps, columns = node.inputs[0].type.sizes[0], gates * units
    results, cells = [], []
    for d in range(directions):
        is_backward = node.string("direction") == "reverse" or d == 1
        shapes = [[units, columns], *(list(operand.type.sizes[1:]) for operand in node.inputs[2:])]
        matrix, *initial = (
            e.add("Reshape", [_part(e, name, 0, d, d + 1), e.integers(shape)])
            for name, shape in zip([weights, *operands[2:]], shapes, strict=True)
        )
        late = initial.pop() if node.op == "GRU" else ""
        projected = _part(e, products, 2, d * columns, (d + 1) * columns)
        body, count = _body(e, node, matrix, late)
        names = [e.names.fresh("scanned") for _ in range(count + 1)]
        backward = [int(is_backward)]
        e.append(helper.make_node(
            "Scan", [*initial, projected], names, body=body, num_scan_inputs=1,
            scan_input_directions=backward, scan_output_directions=backward,
        ))  # fmt: skip
        results.append(e.add("Reshape", [names[-1], e.integers([steps, 1, batch, units])]))
        cells.append(e.add("Reshape", [names[count - 1], e.integers([1, 1, batch, units])]))
    hidden = e.add("Concat", results, axis=1)
    behind = [e.add("Concat", cells, axis=1)] if node.type.sizes[0] > steps else []
    e.add("Concat", [hidden, *behind], axis=0, output=output)


def _part(e: Emitter, name: str, axis: int, low: int, high: int) -> str:
    return e.add("Gather", [name, e.integers(range(low, high))], axis=axis)


def _body(outer: Emitter, node: Node, matrix: str, late: str) -> tuple[GraphProto, int]:
    """Return the body of one step (states and a row of products to new states and their kept parts), and the number of states."""
    _, batch, units = node.inputs[2].type.sizes
    columns = GATES[node.op] * units
    e = Emitter(outer.opset, outer.names, in_function=True)
    hidden, cell, projected = (e.names.fresh(name) for name in ("hidden", "cell", "given"))

    def gate(name: str, number: int) -> str:
        return _part(e, name, 1, number * units, (number + 1) * units)

    def product(name: str) -> str:
        return e.add("MatMul", [name, matrix])

    if node.op == "LSTM":
        total = e.add("Add", [projected, product(hidden)])
        i, o, f = (e.add("Sigmoid", [gate(total, number)]) for number in range(3))
        kept, added = e.add("Mul", [f, cell]), e.add("Mul", [i, e.add("Tanh", [gate(total, 3)])])
        changed = e.add("Add", [kept, added])
        states = [e.add("Mul", [o, e.add("Tanh", [changed])]), changed]
    elif node.op == "GRU":
        recurrent = product(hidden)
        z, r = (e.add("Sigmoid", [e.add("Add", [gate(projected, number), gate(recurrent, number)])]) for number in range(2))
        if node.integer("linear_before_reset"):
            scaled = e.add("Mul", [r, e.add("Add", [gate(recurrent, 2), late])])
        else:
            scaled = e.add("Add", [gate(product(e.add("Mul", [r, hidden])), 2), late])
        new = e.add("Tanh", [e.add("Add", [gate(projected, 2), scaled])])
        complement = e.add("Sub", [e.constant(1.0, node.type.dtype), z])
        states = [e.add("Add", [e.add("Mul", [complement, new]), e.add("Mul", [z, hidden])])]
    else:
        total = e.add("Add", [projected, product(hidden)])
        states = [e.add("Tanh" if node.string("activation") == "tanh" else "Relu", [total])]
    kept = e.add("Identity", states[:1])
    inputs = [hidden, *([cell] if node.op == "LSTM" else [])]
    described = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, units]) for name in (*inputs, *states, kept)]
    described.insert(len(inputs), helper.make_tensor_value_info(projected, TensorProto.FLOAT, [batch, columns]))
    body = helper.make_graph(e.nodes, "step", described[: len(inputs) + 1], described[len(inputs) + 1 :])
    return body, len(inputs)
