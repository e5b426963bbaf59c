"""Compare LSTM, GRU and RNN, imported as a product and a fold and computed by one kernel, with onnxruntime."""

from __future__ import annotations

import ctypes
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from egraph.errors import EinsatError
from egraph.onnx.exporter import export, serialized
from egraph.onnx.importer import load
from egraph.optimize.folding import Folder
from egraph.optimize.padding import Padding
from egraph.tensor import Node, TensorType, placeholder, walk
from egraph.tensor.expr.evaluate import evaluate as evaluate_scope
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.recurrence import GATES, MOST_UNROLLED
from egraph.tensor.ops.reference import evaluate, meaning
from lower.compile import CompileOptions, compile_program
from lower.eoperator.request import supports
from lower.targets.cpu.recurrence.match import KINDS
from runtime import Session
from runtime.devices.cpu.dispatcher import DLTENSOR_POINTER, INTEGER, LAUNCH_VARIABLE, TensorRecord, ValueRecord
from runtime.devices.cpu.native.build import build
from tests.support.lowering import choose

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
OUTPUTS = {"LSTM": ["y", "h", "c"], "GRU": ["y", "h"], "RNN": ["y", "h"]}


def recurrent(
    cell: str, sizes: tuple[int, int, int, int], direction: str = "forward", *, bias: bool = True, states: bool = True,
    outputs: tuple[str, ...] = (), batch_first: bool = False, **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model of one cell; ``sizes`` are the numbers of steps, batch entries, inputs and units."""
    steps, batch, width, units = sizes
    random, count, gates = np.random.default_rng(3), DIRECTIONS[direction], GATES[cell]
    scale = 1.0 / np.sqrt(units + width)
    tensors = {"w": (count, gates * units, width), "r": (count, gates * units, units), "b": (count, 2 * gates * units)}
    drawn = {name: (2 * scale * random.standard_normal(shape)).astype(np.float32) for name, shape in tensors.items()}
    constants = [numpy_helper.from_array(array, name) for name, array in drawn.items() if bias or name != "b"]
    names = ["x", "w", "r", "b" if bias else ""]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, batch, width])]
    if states:
        names += ["", "h0", *(["c0"] if cell == "LSTM" else [])]
        inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, batch, units]) for name in names[5:]]
    results = OUTPUTS[cell]
    nodes = [helper.make_node(cell, names, results, hidden_size=units, direction=direction, **attributes)]
    outputs = outputs or tuple(results)
    if batch_first:
        nodes.append(helper.make_node("Transpose", ["y"], ["z"], perm=[2, 0, 1, 3]))
        nodes.append(helper.make_node("Reshape", ["z", "flat"], ["u"]))
        constants.append(numpy_helper.from_array(np.array([batch, steps, count * units]), "flat"))
        outputs = ("u", *outputs[1:])
    graph = helper.make_graph(
        nodes, "recurrent", inputs, [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs], constants
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of(model: onnx.ModelProto, scale: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return {name: (scale * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feeds)]


def by_kernel(model: onnx.ModelProto, feeds: dict[str, np.ndarray], threads: int) -> list[np.ndarray]:
    graph = load(model).graph
    program = Folder(graph).fold(choose(graph, "recurrence"))
    assert any(kernel.implementation.text == "recurrence.fold" for kernel in program.kernels)
    assert not any(kernel.fragment.op == "Opaque" for kernel in program.kernels)
    with tempfile.TemporaryDirectory() as folder:
        compile_program(program, Path(folder), CompileOptions(threads=threads, export_graph=serialized))
        with Session(Path(folder), threads=threads) as session:
            return [np.asarray(value) for value in session.run(None, feeds)]


def compare(model: onnx.ModelProto, threads: int = 1, scale: float = 1.0) -> None:
    feeds = feeds_of(model, scale)
    for ours, theirs in zip(by_kernel(model, feeds, threads), by_onnxruntime(model, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


CELLS = [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {}), ("RNN", {"activations": ["Relu"]})]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(CELLS), st.tuples(st.sampled_from([1, 2, 3, 9]), *[st.sampled_from([1, 2, 3, 5, 8, 13])] * 2,
    st.sampled_from([1, 3, 4, 8, 15, 16, 17, 33, 64, 70])), st.sampled_from(sorted(DIRECTIONS)), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from([1, 2]),
)  # fmt: skip
def test_recurrences_agree_with_onnxruntime(
    cell: tuple[str, dict[str, Any]], sizes: tuple[int, int, int, int], direction: str, bias: bool, states: bool, first: bool, threads: int
) -> None:
    name, attributes = cell
    if "activations" in attributes:
        attributes = {"activations": attributes["activations"] * DIRECTIONS[direction]}
    compare(recurrent(name, sizes, direction, bias=bias, states=states, batch_first=first, **attributes), threads)


@pytest.mark.parametrize(("cell", "attributes"), CELLS[:4])
@pytest.mark.parametrize("sizes", [(40, 1, 20, 128), (9, 9, 20, 100), (3, 4, 5, 300)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_large_states_are_shared_by_threads(
    cell: str, attributes: dict[str, Any], sizes: tuple[int, int, int, int], direction: str
) -> None:
    compare(recurrent(cell, sizes, direction, **attributes), threads=2)
    compare(recurrent(cell, sizes, direction, **attributes), threads=3)


SOURCE = Path(__file__).parents[2] / "lower/targets/cpu/recurrence/recurrence.c"
BODY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, BODY, ctypes.c_void_p, ctypes.c_int)
TASKS_PER_THREAD = 4

Launcher = Callable[[Callable[[int], int], int], None]
"""Runs the tasks of a kernel, so many for each of its threads."""


class Environment(ctypes.Structure):
    _fields_ = [("sync_handle", ctypes.c_void_p), ("tasks", ctypes.c_int32)]


def called(node: Node, operands: Sequence[np.ndarray], threads: int, launcher: Launcher) -> np.ndarray:
    """Return the result of the C function for a fold when ``launcher`` runs its tasks."""
    library = ctypes.CDLL(str(build(SOURCE)))

    def launch(body: Callable[..., int], data: int, tasks: int) -> int:
        environment = Environment(None, tasks or TASKS_PER_THREAD * threads)
        launcher(lambda task: body(task, ctypes.addressof(environment), data), environment.tasks)
        return 0

    kept = LAUNCH(launch)
    slot = ctypes.c_void_p.in_dll(library, LAUNCH_VARIABLE)
    slot.value = ctypes.cast(kept, ctypes.c_void_p).value
    result = np.zeros(node.type.sizes, np.float32)
    arrays = [*(np.ascontiguousarray(operand, np.float32) for operand in operands), result]
    records, sizes = [], []
    for array in arrays:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        strides = (ctypes.c_int64 * array.ndim)(*(stride // 4 for stride in array.strides))
        sizes.append((shape, strides))
        addresses = ctypes.addressof(shape), ctypes.addressof(strides)
        records.append(TensorRecord(array.ctypes.data, 1, 0, array.ndim, 2, 32, 1, *addresses, 0))
    attributes = dict(node.attributes)
    form = str(attributes.get("linear_before_reset", attributes.get("activation", "")))
    integers = KINDS[node.op, form], list(DIRECTIONS).index(node.string("direction")), int(attributes.get("keeps_cell", 0) != 0)
    values = [ValueRecord(DLTENSOR_POINTER, 0, ctypes.addressof(record)) for record in records]
    values += [ValueRecord(INTEGER, 0, integer) for integer in integers]
    assert library.recurrence(None, (ValueRecord * len(values))(*values), len(values), None) == 0
    slot.value = None
    return result


def one_after_another(run: Callable[[int], int], tasks: int) -> None:
    for task in range(tasks):
        run(task)


def the_last_first(run: Callable[[int], int], tasks: int) -> None:
    for task in reversed(range(tasks)):
        run(task)


def together(run: Callable[[int], int], tasks: int) -> None:
    """Run each thread's share of the tasks in a thread of its own, as the dispatcher does."""

    def share(first: int) -> None:
        for task in range(first, first + TASKS_PER_THREAD):
            run(task)

    members = [threading.Thread(target=share, args=(first,)) for first in range(0, tasks, TASKS_PER_THREAD)]
    for member in members:
        member.start()
    for member in members:
        member.join()


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("form", sorted(KINDS))
def test_threads_that_share_a_step_may_come_in_any_order_or_never(form: tuple[str, str], direction: str) -> None:
    name, kind = form
    numbers, gates, directions = np.random.default_rng(4), GATES[name], DIRECTIONS[direction]
    attributes: dict[str, Any] = {"direction": direction}
    special: dict[str, dict[str, Any]] = {
        "LSTM": {"keeps_cell": 1}, "GRU": {"linear_before_reset": int(kind == "1")}, "RNN": {"activation": kind},
    }  # fmt: skip
    attributes |= special[name]
    for steps, batch, units in ((15, 1, 331), (5, 2, 340), (40, 3, 181)):
        panels = -(-units // 16)
        state = directions, batch, units
        shapes = [(steps, batch, directions * gates * units), (directions, panels, units, gates, 16), state]
        shapes += [state] if name == "LSTM" else [(directions, units)] if name == "GRU" else []
        node = apply(name, *(placeholder(i, TensorType("float32", shape)) for i, shape in enumerate(shapes)), **attributes)
        operands = [numbers.standard_normal(shape) for shape in shapes]
        operands[1] /= np.sqrt(units)
        (exact,) = evaluate([node], dict(zip(node.inputs, operands, strict=True)))
        alone = called(node, operands, 1, one_after_another)
        np.testing.assert_allclose(alone, exact, rtol=1e-4, atol=2e-5)
        for threads in (2, 3):
            for launcher in (one_after_another, the_last_first, together):
                np.testing.assert_array_equal(called(node, operands, threads, launcher), alone)


@pytest.mark.parametrize(("cell", "attributes"), CELLS)
@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_what_is_exported_computes_the_same(cell: str, attributes: dict[str, Any], direction: str) -> None:
    if "activations" in attributes:
        attributes = {"activations": attributes["activations"] * DIRECTIONS[direction]}
    model = recurrent(cell, (4, 2, 3, 17), direction, **attributes)
    exported = export(load(model).graph)
    assert not {node.op_type for node in exported.graph.node} & set(GATES)
    for ours, theirs in zip(by_onnxruntime(exported, feeds_of(model)), by_onnxruntime(model, feeds_of(model)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", sorted(GATES))
def test_the_meaning_is_what_is_evaluated_step_by_step(cell: str) -> None:
    random, numbers = Random(1), np.random.default_rng(0)
    for _ in range(12):
        shapes, values = OPS[cell].sample(random)
        node = apply(cell, *(placeholder(i, TensorType("float32", shape)) for i, shape in enumerate(shapes)), **values)
        operands = [numbers.standard_normal(shape) for shape in shapes]
        (ours,) = evaluate([node], dict(zip(node.inputs, operands, strict=True)))
        theirs = evaluate_scope(meaning(node), {str(i): operand for i, operand in enumerate(operands)})
        assert ours.shape == theirs.shape == node.type.sizes
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_long_folds_have_no_expression_but_a_value() -> None:
    shapes = ((MOST_UNROLLED + 1, 1, 2), (1, 1, 2, 1, 16), (1, 1, 2))
    node = apply("RNN", *(placeholder(i, TensorType("float32", s)) for i, s in enumerate(shapes)), direction="forward", activation="tanh")
    with pytest.raises(EinsatError, match="steps is not written"):
        meaning(node)
    (value,) = evaluate([node], {operand: np.zeros(operand.type.sizes) for operand in node.inputs})
    assert value.shape == (MOST_UNROLLED + 1, 1, 1, 2) and not value.any()


def opaque_in(model: onnx.ModelProto) -> set[str]:
    def all_nodes() -> set[Node]:
        return set(walk(load(model).graph.roots))

    return {node.op for node in all_nodes() if node.op in ("Opaque", *GATES)}


def test_what_has_no_form_stays_with_onnxruntime() -> None:
    assert opaque_in(recurrent("LSTM", (3, 2, 4, 5))) == {"LSTM"}
    assert opaque_in(recurrent("LSTM", (3, 2, 4, 5), clip=1.0)) == {"Opaque"}
    assert opaque_in(recurrent("GRU", (3, 2, 4, 5), activations=["HardSigmoid", "Tanh"])) == {"Opaque"}
    assert opaque_in(recurrent("LSTM", (3, 2, 4, 5), input_forget=1)) == {"Opaque"}
    lengths = recurrent("GRU", (3, 2, 4, 5))
    lengths.graph.initializer.append(numpy_helper.from_array(np.array([3, 2], np.int32), "lengths"))
    lengths.graph.node[0].input[4] = "lengths"
    assert opaque_in(lengths) == {"Opaque"}
    lengths.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array([3, 3], np.int32), "lengths"))
    assert opaque_in(lengths) == {"GRU"}


@pytest.mark.parametrize(("cell", "attributes"), CELLS[:3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_gates_saturate_and_what_is_no_number_stays_in_its_row(cell: str, attributes: dict[str, Any], value: float) -> None:
    model = recurrent(cell, (3, 4, 5, 20), states=False, **attributes)
    feeds = feeds_of(model)
    clean = by_kernel(model, feeds, 1)
    feeds["x"][1, 2, 3] = value
    states = by_kernel(model, feeds, 1)[0]
    np.testing.assert_array_equal(np.delete(states, 2, axis=2), np.delete(clean[0], 2, axis=2))
    np.testing.assert_array_equal(states[0], clean[0][0])
    if np.isnan(value):
        assert np.isnan(states[1:, 0, 2]).all()
    else:
        assert np.isfinite(states).all() and (np.abs(states) <= 1.0).all()
        np.testing.assert_allclose(states, by_onnxruntime(model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_gates_are_exact_to_a_few_last_bits() -> None:
    """A recurrence whose recurrent weights are zero is the hyperbolic tangent of its input."""
    points = np.concatenate([np.linspace(-20, 20, 30001), np.logspace(-20, 0, 5000), -np.logspace(-20, 0, 5000)]).astype(np.float32)
    points = np.concatenate([points, np.zeros(-len(points) % 16, np.float32)])
    units = len(points)
    model = recurrent("RNN", (units // 16, 16, 4, 4), bias=False, states=False)
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "r"):
            array = np.eye(4, dtype=np.float32)[None] * (tensor.name == "w")
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    feeds = {"x": np.repeat(points.reshape(-1, 16, 1), 4, axis=2)}
    ours, exact = by_kernel(model, feeds, 1)[0][:, 0], np.tanh(feeds["x"].astype(np.float64))
    worst = float(np.max(np.abs(ours - exact) / np.maximum(np.spacing(np.abs(exact).astype(np.float32)), 1e-45)))
    assert worst < 8


def test_a_fold_is_neither_generated_nor_padded() -> None:
    """Padding would put the added rows before the last state, and an expression of many steps would be endless."""
    small, large = (load(recurrent("GRU", (steps, 1, 2, 3), states=False, outputs=("y",))).graph for steps in (3, 9))
    short, long = (next(node for node in walk(graph.roots) if node.op == "GRU") for graph in (small, large))
    assert "folds along time" in Padding()._refused(short, long, small, large)
    leaves = [placeholder(i, operand.type) for i, operand in enumerate(long.inputs)]
    assert "fold" in (supports(apply("GRU", *leaves, attributes=long.attributes)) or "")
