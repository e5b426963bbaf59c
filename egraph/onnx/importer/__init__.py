"""Read an ONNX model into a Graph: fold constants, decompose composite operators, keep all other operators opaque."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from egraph.errors import ModelError
from egraph.onnx.importer import (
    blocks,
    contraction,
    einsum,
    elementwise,
    fourier,
    fused,
    grid_sample,
    integers,
    movement,
    normalization,
    places,
    quantisation,
    recurrence,
    reduction,
    resize,
)
from egraph.onnx.importer.fixed_inputs import constant_hints
from egraph.onnx.importer.folding import fold, fold_shape
from egraph.onnx.importer.functions import body_of
from egraph.onnx.importer.halves import half_types, in_float32, refusal
from egraph.onnx.importer.infer import infer
from egraph.onnx.importer.loops import unrolled
from egraph.onnx.importer.model_file import OLDEST, prepared, read_model, to_array
from egraph.onnx.importer.opaque import opaque
from egraph.onnx.importer.order import captured_names, label, ordered, used_names
from egraph.onnx.importer.sequences import remember, taken
from egraph.onnx.importer.sizes import give_sizes, input_types, shape_hints
from egraph.onnx.importer.state import UNREADABLE, Call, Importing, NotCore, usable
from egraph.onnx.importer.unsigned import with_unsigned_bytes
from egraph.onnx.types import array_type, from_proto
from egraph.tensor import Graph, Node, OnnxContext, attributes, make, walk

HANDLERS: Mapping[str, elementwise.Handler] = {
    **elementwise.HANDLERS, **movement.HANDLERS, **contraction.HANDLERS, **reduction.HANDLERS, **normalization.HANDLERS, **resize.HANDLERS,
    **quantisation.HANDLERS, **recurrence.HANDLERS, **einsum.HANDLERS, **places.HANDLERS, **fused.STANDARD_HANDLERS,
    **fourier.HANDLERS, **grid_sample.HANDLERS,
}  # fmt: skip
DOMAINS: Mapping[str, Mapping[str, elementwise.Handler]] = {
    **dict.fromkeys(("", "ai.onnx"), HANDLERS),
    "com.microsoft": {**quantisation.ONNXRUNTIME_HANDLERS, **blocks.ONNXRUNTIME_HANDLERS, **fused.HANDLERS},
}  # fmt: skip
"""The handlers of a domain's operators."""

TAKES_EMPTY_PARTS = frozenset({"Concat"})
"""Operators whose first operand may have no elements, as long as another operand has some."""

FOLD_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class ImportResult:
    """A graph with messages for the user: ``notes`` on what was done, ``hints`` of flags that would do more."""

    graph: Graph
    notes: tuple[str, ...]
    hints: tuple[str, ...]


def load(
    source: str | Path | onnx.ModelProto, *, shapes: Mapping[str, tuple[int, ...]] | None = None, fold_limit_bytes: int = FOLD_LIMIT_BYTES
) -> ImportResult:
    """Return the model as a Graph; raise ModelError with advice if it cannot be read.

    ``shapes`` gives sizes of inputs: of dynamic ones, in place of sizes that the file fixes, and of initializers that are also listed as
    inputs, which are constants otherwise. A constant expression whose value would exceed ``fold_limit_bytes``
    stays an expression, with a note.
    """
    model, folder = read_model(source)
    resized = give_sizes(model, shapes or {})
    model, notes = prepared(model)
    model, halves = widened(model, folder, frozenset(shapes or {}))
    notes += halves
    graph = model.graph
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    opsets[""] = opsets.pop("ai.onnx", opsets.get("", OLDEST))
    declared = {v.name: from_proto(v.type, v.name) for v in (*graph.value_info, *graph.output)}
    state = Importing(opsets, tuple(model.functions), model.ir_version, folder, fold_limit_bytes, declared)
    for text in (*notes, *resized):
        state.note(text)
    nodes = ordered(graph)
    state.used = used_names(graph)
    inputs = _bind_inputs(state, model, shapes or {})
    for position, node in nodes:
        _import_node(state, node, label(node, position))
    outputs = tuple((value.name, _value(state, value.name)) for value in graph.output)
    alive = set(walk(node for _, node in outputs))
    imported = Graph(
        name=graph.name or (Path(source).stem if isinstance(source, str | Path) else "model"),
        inputs=inputs,
        outputs=outputs,
        tensors={digest: data for digest, data in state.tensors.items() if _constant(digest, data) in alive},
        origins={node: tuple(names) for node, names in state.origins.items() if node in alive},
        context=OnnxContext(
            tuple(sorted(opsets.items())), tuple(f.SerializeToString(deterministic=True) for f in model.functions), model.ir_version
        ),
        names=_names(state, alive),
    )
    return ImportResult(with_unsigned_bytes(imported), tuple(state.notes), (*shape_hints(inputs), *constant_hints(imported)))


def widened(model: onnx.ModelProto, folder: Path | None, fed: frozenset[str] = frozenset()) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a model of float16 or bfloat16 in float32, or the same model if it has neither or must stay, and notes."""
    types = " and ".join(half_types(model))
    if not types:
        return model, ()
    reason = refusal(model, lambda domain, operator: operator in DOMAINS.get(domain, {}))
    if reason is not None:
        return model, (f"what the model computes in {types} is left to onnxruntime: {reason}",)
    return in_float32(model, folder, fed), (f"the model's {types} is computed in float32, without rounding between operators",)


def _names(state: Importing, alive: set[Node]) -> dict[Node, str]:
    """Return the first tensor name of every value that is still used."""
    names: dict[Node, str] = {}
    for name, node in state.values.items():
        if node in alive and node.op != "Input":
            names.setdefault(node, name)
    return names


def _constant(digest: str, data: np.ndarray) -> Node:
    """Return the Constant node of data that is already stored under its digest."""
    return make("Constant", (), attributes(digest=digest), array_type(data))


def _bind_inputs(state: Importing, model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Node, ...]:
    """Bind every input and initialiser to a value; an initialiser listed as an input is a constant unless ``shapes`` gives its sizes."""
    graph = model.graph
    listed = {value.name for value in graph.input}
    initialised = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    initialised -= listed.intersection(shapes)
    state.lazy.update({tensor.name: tensor for tensor in graph.initializer if tensor.name in initialised})
    overridable = [value.name for value in graph.input if value.name in initialised]
    if overridable and model.ir_version >= 4:
        some = ", ".join(overridable[:5]) + " ..." * (len(overridable) > 5)
        state.note(f"{len(overridable)} initialisers are also listed as inputs; they are constants here: {some}")
    for sparse in graph.sparse_initializer:
        state.values[sparse.values.name] = state.constant(_dense(sparse, state.folder))
    types = input_types([value for value in graph.input if value.name not in initialised], shapes)
    for name, type in types.items():
        state.values[name] = make("Input", (), attributes(name=name), type)
    return tuple(state.values[name] for name in types)


def _dense(sparse: onnx.SparseTensorProto, folder: Path | None) -> np.ndarray:
    values, indices = to_array(sparse.values, folder), to_array(sparse.indices, folder)
    result = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return result


def _value(state: Importing, name: str) -> Node:
    """Return the node of a tensor name, reading an initialiser at its first use."""
    if name not in state.values:
        if name not in state.lazy:  # an operand of a function that the node omits
            raise NotCore(f"nothing gives {name}")
        state.values[name] = state.constant(to_array(state.lazy[name], state.folder))
    return state.values[name]


def _import_node(state: Importing, node: onnx.NodeProto, name: str) -> None:
    operands = tuple(_value(state, n) if n else None for n in node.input)
    for captured in captured_names(node):
        _value(state, captured)
    call = Call(state, node, name, operands)
    for result_name, result in zip(node.output, _results(call), strict=True):
        if result_name and result is not None:
            state.values[result_name] = result


def _chosen_branch(call: Call) -> list[Node | None] | None:
    """Return the results of an If with a known condition by importing the branch in its place."""
    condition = call.data(0) if call.node.op_type == "If" and call.node.domain == "" else None
    branch: onnx.GraphProto | None = None
    if condition is not None and condition.size == 1:
        branch = call.attribute("then_branch" if bool(condition.reshape(())) else "else_branch")
    if branch is None or branch.sparse_initializer:
        return None
    state = replace(call.state, used=call.state.used | used_names(branch), inside=f"{call.label}/")
    for tensor in branch.initializer:
        state.values[tensor.name] = state.constant(to_array(tensor, state.folder))
    for position, node in enumerate(branch.node):
        _import_node(state, node, f"{call.label}/{label(node, position)}")
    return [_value(state, value.name) for value in branch.output]


def _defined(call: Call) -> list[Node | None] | None:
    """Return the results of an operator that the standard defines by others, if each of those is a core operator."""
    body = body_of(call)
    if body is None:
        return None
    state, function = body
    for position, node in enumerate(function.node):
        try:
            _import_node(state, node, f"{call.label}/{label(node, position)}")
        except (ModelError, NotCore):  # onnxruntime has a kernel for the operator even if its function cannot be read
            return None
        if any(name in state.values and state.values[name].op == "OpaqueOutput" for name in node.output):
            return None
    return [state.values[formal] if name else None for formal, name in zip(function.output, call.node.output, strict=False)]


def _handlers(node: onnx.NodeProto) -> list[elementwise.Handler]:
    """Return the handlers that may read a node: by its operator, or as an operator of numbers if its integers are known to be small."""
    tables = [DOMAINS.get(node.domain, {}), integers.HANDLERS if node.domain in ("", "ai.onnx") else {}]
    return [table[node.op_type] for table in tables if node.op_type in table]


def _results(call: Call) -> list[Node | None]:
    """Return the node's results by the first way that works: folded, composed of core operators, opaque."""
    constant = fold_shape(call)
    if constant is not None:
        return constant
    inside = _chosen_branch(call) or taken(call) or unrolled(call, _import_node)
    if inside is not None:
        return inside
    handlers = _handlers(call.node)
    core = bool(handlers) and any(v is not None for v in call.operands)
    first = call.operands if call.node.op_type in TAKES_EMPTY_PARTS else call.operands[:1]
    core = core and any(v is None or usable(v.type) for v in first)
    folded, types = fold(call, core=core)
    if folded is not None:
        return folded
    if core:
        for handler in handlers:
            try:
                results = handler(call)
                return results if isinstance(results, list) else [results]
            except UNREADABLE:
                pass  # the opaque form below checks the types and runs as in onnxruntime
        folded, _ = fold(call, core=False)
        if folded is not None:
            return folded
    results = (None if handlers else _defined(call)) or opaque(call, types or infer(call))
    remember(call, results)
    return results
