"""Loop and Scan with a known number of runs: recurrent cells become folds, small bodies are unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx

from egraph.errors import EinsatError, ModelError
from egraph.onnx.importer.cells import folded_loop, folded_scan
from egraph.onnx.importer.model_file import to_array
from egraph.onnx.importer.movement import slice_axis, stacked
from egraph.onnx.importer.order import label, used_names
from egraph.onnx.importer.runs import scan_operands, scan_outputs
from egraph.onnx.importer.state import UNREADABLE, Call, Importing, NotCore
from egraph.tensor import Node

MOST_NODES = 3000
"""The most nodes of the bodies of all loops of a model together, each body counted once per run; larger loops are left to onnxruntime."""
MOST_RUNS = 128
"""The most copies of one body."""
ImportNode = Callable[[Importing, onnx.NodeProto, str], None]


def unrolled(call: Call, import_node: ImportNode) -> list[Node | None] | None:
    """Return the results of a loop with a known number of runs; None for other nodes."""
    if call.node.domain not in ("", "ai.onnx") or call.node.op_type not in ("Loop", "Scan"):
        return None
    try:
        body = call.required("body")
        if body.sparse_initializer:
            raise NotCore("sparse weights")
        is_loop = call.node.op_type == "Loop"
        try:
            return (folded_loop if is_loop else folded_scan)(call, lambda inputs: _run(call, body, inputs, 0, import_node))
        except (*UNREADABLE, EinsatError, RecursionError):  # a body may be thousands of operators deep
            return (_loop if is_loop else _scan)(call, body, import_node)
    except (*UNREADABLE, ModelError):  # onnxruntime runs the loop as a whole, even if a part of it cannot be read
        return None


def _most_runs(call: Call, body: onnx.GraphProto) -> int:
    """Return how many more copies of a body fit beside those already written."""
    return min(MOST_RUNS, (MOST_NODES - sum(call.state.unrolled)) // max(len(body.node), 1))


def _bounded(call: Call, times: int, body: onnx.GraphProto) -> None:
    if not 1 <= times <= _most_runs(call, body):
        raise NotCore("too many nodes, or none")


def _loop(call: Call, body: onnx.GraphProto, import_node: ImportNode) -> list[Node | None]:
    times = int(call.known(0).reshape(())) if call.has(0) else None
    if call.has(1) and not bool(call.known(1).reshape(())):
        raise NotCore("it does not run")
    if times is not None and not _ends_itself(body):
        _bounded(call, times, body)
    most = _most_runs(call, body)
    if times is not None and times < 1:
        raise NotCore("it does not run")
    carried = [call[k] for k in range(2, len(call.operands))]
    rows: list[list[Node]] = []
    for number in range(most if times is None else min(times, most)):
        inputs = [call.constant(number, "int64"), call.constant(True, "bool"), *carried]
        again, *results = _run(call, body, inputs, number, import_node)
        carried, row = results[: len(carried)], results[len(carried) :]
        rows.append(row)
        goes_on = call.state.data(again)
        if goes_on is None:
            raise NotCore("whether it runs again is not known")
        if not bool(goes_on.reshape(())):
            break
    else:
        if times is None or times > most:
            raise NotCore("too many nodes")
    call.state.unrolled.append(len(rows) * len(body.node))
    return [*carried, *(stacked(call, column, 0) for column in zip(*rows, strict=True))]


def _ends_itself(body: onnx.GraphProto) -> bool:
    """Return whether a body computes whether it runs again, so that the number of runs of its loop is only a bound."""
    again = body.output[0].name
    maker = next((node.op_type for node in body.node if again in node.output), "")
    return maker not in ("", "Identity", "Constant", "Cast")


def _scan(call: Call, body: onnx.GraphProto, import_node: ImportNode) -> list[Node | None]:
    states, scanned = scan_operands(call)
    times = scanned[0].steps
    _bounded(call, times, body)
    rows: list[list[Node]] = []
    for number in range(times):
        inputs = list(states)
        for each in scanned:
            at = times - 1 - number if each.is_backward else number
            inputs.append(call.reshape(slice_axis(call, each.node, each.axis, at, at + 1), each.row_type.sizes))
        results = _run(call, body, inputs, number, import_node)
        states, row = results[: len(states)], results[len(states) :]
        rows.append(row)
    call.state.unrolled.append(times * len(body.node))
    outputs: list[Node | None] = list(states)
    columns = list(zip(*rows, strict=True))
    for column, axis, is_backward in zip(columns, *scan_outputs(call, len(columns)), strict=True):
        outputs.append(stacked(call, column[::-1] if is_backward else column, axis))
    return outputs


def _run(call: Call, body: onnx.GraphProto, inputs: Sequence[Node], number: int, import_node: ImportNode) -> list[Node]:
    """Return the body's outputs for these inputs."""
    outer = call.state
    values = {**outer.values, **dict(zip((value.name for value in body.input), inputs, strict=True))}
    state = replace(outer, values=values, declared={}, used=outer.used | used_names(body), inside=f"{call.label}/{number}/")
    for tensor in body.initializer:
        values[tensor.name] = state.constant(to_array(tensor, state.folder))
    for position, node in enumerate(body.node):
        import_node(state, node, f"{call.label}/{number}/{label(node, position)}")
    return [values[value.name] for value in body.output]
