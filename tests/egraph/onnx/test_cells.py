"""Loops that write the step of a recurrent operator become folds if they are such a step, and are never taken for another operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from egraph.errors import ModelError
from egraph.onnx.exporter import export
from egraph.onnx.importer import load
from egraph.tensor import walk
from tests.egraph.onnx.test_importer import model_of, run

STEPS, WIDTH, UNITS = 6, 3, 4
FOLDS = {"LSTM", "GRU", "RNN"}


@dataclass
class Writer:
    """Writes a loop as an exporter might; ``random`` makes the choices in which exporters differ."""

    random: Random
    batch: int = 2
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"v{len(self.nodes)}"], **attributes))
        return str(self.nodes[-1].output[0])

    def either(self, op: str, first: str, second: str) -> str:
        return self.node(op, *self.random.sample((first, second), 2))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        drawn = np.random.default_rng(self.random.randrange(1 << 30)).standard_normal(shape)
        self.weights[name] = (drawn / 2).astype(np.float32)
        return name

    def number(self, value: object, dtype: type = np.int64) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def product(self, value: str, width: int, columns: int, *, bias: bool) -> str:
        if not bias:
            return self.node("MatMul", value, self.weight(width, columns))
        if self.random.randrange(2):
            return self.node("Gemm", value, self.weight(columns, width), self.weight(columns), transB=1)
        return self.either("Add", self.node("MatMul", value, self.weight(width, columns)), self.weight(columns))

    def columns(self, value: str, gate: int) -> str:
        cut = [self.number([bound]) for bound in (gate * UNITS, (gate + 1) * UNITS, 1)]
        return self.node("Slice", value, *cut)

    def gates(self, x: str, h: str, count: int) -> list[tuple[str, str | None]]:
        """Return the contributions of the input and of the state to each gate, either separate or combined."""
        bias, way = bool(self.random.randrange(2)), self.random.randrange(3)
        if way == 0:
            pairs = [(self.product(x, WIDTH, UNITS, bias=bias), self.product(h, UNITS, UNITS, bias=bias)) for _ in range(count)]
            return [*pairs]
        places = self.random.sample(range(count), count)
        if way == 1:
            both = self.node("Concat", *self.random.sample((x, h), 2), axis=1)
            total = self.product(both, WIDTH + UNITS, count * UNITS, bias=bias)
            return [(self.columns(total, place), None) for place in places]
        given, read = (self.product(value, width, count * UNITS, bias=bias) for value, width in ((x, WIDTH), (h, UNITS)))
        return [(self.columns(given, place), self.columns(read, place)) for place in places]

    def sum(self, parts: tuple[str, str | None]) -> str:
        return parts[0] if parts[1] is None else self.either("Add", parts[0], parts[1])

    def lstm(self, x: str, h: str, c: str) -> tuple[str, str]:
        i, f, g, o = (self.sum(parts) for parts in self.gates(x, h, 4))
        kept = self.either("Mul", self.node("Sigmoid", f), c)
        made = self.either("Mul", self.node("Sigmoid", i), self.node("Tanh", g))
        new = self.either("Add", kept, made)
        return self.either("Mul", self.node("Sigmoid", o), self.node("Tanh", new)), new

    def gru(self, x: str, h: str, *, one: float = 1.0) -> str:
        gates = self.gates(x, h, 3)
        z, r = (self.node("Sigmoid", self.sum(parts)) for parts in gates[:2])
        given, read = gates[2]
        if read is None or self.random.randrange(2):
            scaled = self.product(self.either("Mul", r, h), UNITS, UNITS, bias=False)
            given = self.product(x, WIDTH, UNITS, bias=True)
        else:
            scaled = self.either("Mul", r, read)
        n = self.node("Tanh", self.either("Add", given, scaled))
        rest = self.node("Sub", self.number(one, np.float32), z)
        way = self.random.randrange(4 if one == 1 else 2)
        if way < 2:
            keep, take = (z, rest) if way else (rest, z)
            return self.either("Add", self.either("Mul", keep, h), self.either("Mul", take, n))
        first, second = (n, h) if way == 2 else (h, n)
        return self.either("Add", first, self.either("Mul", z, self.node("Sub", second, first)))

    def rnn(self, x: str, h: str) -> str:
        return self.node(self.random.choice(("Tanh", "Relu")), self.sum(self.gates(x, h, 1)[0]))


def loop_model(writer: Writer, body: Callable[[str, Sequence[str]], tuple[list[str], list[str]]], states: int) -> onnx.ModelProto:
    """Return a model around a Loop whose body maps a row and the states to new states and rows."""
    is_late, counts, carries = (bool(writer.random.randrange(2)) for _ in range(3))
    names = [f"s{k}" for k in range(states)]
    position = "counter" if counts else "number"
    if is_late:
        position = writer.node("Sub", writer.number(STEPS - 1), position)
    axis = writer.random.randrange(2)
    x = writer.node("Gather", "x", position, axis=axis)
    new, rows = body(x, names)
    goes_on = writer.node("Identity", "going")
    if counts:
        following = writer.node("Add", "counter", writer.number(1))
        goes_on = writer.node("Less", following, writer.number(STEPS))
    state = helper.make_tensor_type_proto(TensorProto.FLOAT, [writer.batch, UNITS])
    inputs = [helper.make_tensor_value_info("number", TensorProto.INT64, []), helper.make_tensor_value_info("going", TensorProto.BOOL, [])]
    inputs += [helper.make_value_info(name, state) for name in names]
    outputs = [helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []), *(helper.make_value_info(name, state) for name in new)]
    weights, kept = dict(writer.weights), []
    if counts:
        inputs.append(helper.make_tensor_value_info("counter", TensorProto.INT64, []))
        outputs.append(helper.make_tensor_value_info(following, TensorProto.INT64, []))
    matrices = [name for name, each in weights.items() if each.ndim == 2]
    if carries and matrices:  # a matrix that no iteration changes, passed as a state
        kept = matrices[:1]
        inputs.append(helper.make_tensor_value_info(kept[0], TensorProto.FLOAT, list(weights[kept[0]].shape)))
        outputs.append(helper.make_tensor_value_info("kept", TensorProto.FLOAT, list(weights[kept[0]].shape)))
        writer.nodes.append(helper.make_node("Identity", kept, ["kept"]))
    outputs += [helper.make_value_info(name, state) for name in rows]
    for k, value in enumerate(outputs):  # every output needs a name of its own
        if value.name in [each.name for each in outputs[:k]]:
            writer.nodes.append(helper.make_node("Identity", [value.name], [f"{value.name}_{k}"]))
            value.name = f"{value.name}_{k}"
    inner = [numpy_helper.from_array(each, name) for name, each in weights.items() if name not in kept]
    body_graph = helper.make_graph(writer.nodes, "body", inputs, outputs, inner)
    start = [f"{name}_start" for name in names]
    operands = ["steps", "going_start", *start, *(["zero"] if counts else []), *(["matrix"] if kept else [])]
    finals = [f"{name}_end" for name in names]
    results = [*finals, *(["count"] if counts else []), *(["matrix_end"] if kept else []), *(f"rows{k}" for k in range(len(rows)))]
    loop = helper.make_node("Loop", operands, results, body=body_graph)
    outside = [("steps", np.array(STEPS + 3 if counts else STEPS)), ("going_start", np.array(True)), ("zero", np.array(0))]
    outside += [("matrix", weights[name]) for name in kept]
    used = [name for name in results if name.startswith(("rows", "count")) or name in finals]
    x_shape = [STEPS, writer.batch, WIDTH] if axis == 0 else [writer.batch, STEPS, WIDTH]
    graph = helper.make_graph(
        [loop], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape), *(helper.make_value_info(n, state) for n in start)],
        [helper.make_empty_tensor_value_info(name) for name in used], [numpy_helper.from_array(each, name) for name, each in outside],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def imported(model: onnx.ModelProto) -> Counter[str]:
    """Import a model, compare it with onnxruntime, and return its operators."""
    graph, source = load(model).graph, np.random.default_rng(0)
    feeds = {node.string("name"): source.standard_normal(node.type.sizes).astype(np.float32) for node in graph.inputs}
    for expected, computed in zip(run(model, feeds), run(export(graph), feeds), strict=True):
        np.testing.assert_allclose(computed, expected, rtol=1e-4, atol=1e-5)
    return Counter(node.op for node in walk(graph.roots))


def cell_model(seed: int, name: str, *, changes: int = 0) -> onnx.ModelProto:
    """Return a loop that writes a cell, with some of its operators or operands replaced by others."""
    random = Random(seed)
    writer = Writer(random, batch=random.choice((1, 2)))

    def body(x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
        first = len(writer.nodes)
        if name == "LSTM":
            h, c = writer.lstm(x, states[0], states[1])
            new, rows = [h, c], [writer.node("Neg", h), h]
        else:
            h = writer.gru(x, states[0]) if name == "GRU" else writer.rnn(x, states[0])
            new, rows = [h], [h, writer.either("Add", h, writer.product(x, WIDTH, UNITS, bias=True))]
        for _ in range(changes):
            change(random, writer.nodes[first:], states)
        return new, rows

    return loop_model(writer, body, 2 if name == "LSTM" else 1)


def change(random: Random, nodes: Sequence[onnx.NodeProto], states: Sequence[str]) -> None:
    """Replace an operator by one of its kind, or an operand by a state or by an earlier result of an operator of the same kind."""
    node = random.choice([each for each in nodes if each.op_type in ("Add", "Sub", "Mul", "Tanh", "Sigmoid")])
    if random.randrange(2):
        node.op_type = random.choice(("Add", "Sub", "Mul") if len(node.input) == 2 else ("Tanh", "Sigmoid", "Relu"))
    else:
        gates = [each.output[0] for each in nodes if each.op_type in ("Tanh", "Sigmoid")]
        before = [gate for gate in gates if int(gate[1:]) < int(node.output[0][1:])]
        node.input[random.randrange(len(node.input))] = random.choice([*before, *states])


@given(st.integers(0, 1 << 30), st.sampled_from(sorted(FOLDS)))
@settings(deadline=None, max_examples=60)
def test_cells_that_loops_write_are_folds(seed: int, name: str) -> None:
    operators = imported(cell_model(seed, name))
    assert operators[name] == 1
    assert not operators["Opaque"] and not operators["Gather"]


@given(st.integers(0, 1 << 30), st.sampled_from(sorted(FOLDS)), st.integers(1, 2))
@settings(deadline=None, max_examples=60)
def test_a_changed_cell_means_what_it_says(seed: int, name: str, changes: int) -> None:
    model = cell_model(seed, name, changes=changes)
    if is_well_typed(model):
        imported(model)
    else:
        with pytest.raises(ModelError, match="ShapeInferenceError"):
            load(model)


def is_well_typed(model: onnx.ModelProto) -> bool:
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


def _cell_rows(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    h, c = writer.lstm(x, states[0], states[1])
    return [h, c], [c]


def _state_rows(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    h = writer.gru(x, states[0])
    return [h], [states[0]]


def _other_rest(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    h = writer.gru(x, states[0], one=2.0)
    return [h], [h]


def _peephole(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    i, f, g, o = (writer.sum(parts) for parts in writer.gates(x, states[0], 4))
    f = writer.node("Add", f, writer.node("Mul", states[1], writer.weight(UNITS)))
    made = writer.node("Mul", writer.node("Sigmoid", i), writer.node("Tanh", g))
    c = writer.node("Add", writer.node("Mul", writer.node("Sigmoid", f), states[1]), made)
    return [writer.node("Mul", writer.node("Sigmoid", o), writer.node("Tanh", c)), c], []


def _old_cell_shown(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    h, c = writer.lstm(x, states[0], states[1])
    gate = next(node for node in reversed(writer.nodes) if node.op_type == "Sigmoid").output[0]
    return [writer.node("Mul", gate, writer.node("Tanh", states[1])), c], [h]


def _states_exchanged(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    h, c = writer.lstm(x, states[0], states[1])
    return [c, h], []


def _one_row_for_all(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    """Project the state's mean over the batch: all rows get the same row."""
    mean = writer.node("ReduceMean", states[0], writer.number([0]), keepdims=1)
    h = writer.node("Tanh", writer.node("Add", writer.product(x, WIDTH, UNITS, bias=True), writer.product(mean, UNITS, UNITS, bias=False)))
    return [h], [h]


def _scaled_state(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    scaled = writer.node("Mul", states[0], writer.weight(UNITS))
    h = writer.node("Tanh", writer.node("Add", writer.product(x, WIDTH, UNITS, bias=True), scaled))
    return [h], [h]


def _learned_matrix(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compute the recurrent weights from the input."""
    square = writer.node("MatMul", writer.node("Transpose", x, perm=[1, 0]), x)
    h = writer.node("Tanh", writer.node("MatMul", states[0], writer.node("Pad", square, writer.number([0, 0, 1, 1]))))
    return [h], [h]


def _state_read_twice(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compute new values of a GRU that also read the state without the reset gate."""
    z, r = (writer.node("Sigmoid", writer.sum(parts)) for parts in writer.gates(x, states[0], 3)[:2])
    scaled, past = (writer.product(states[0], UNITS, UNITS, bias=False) for _ in range(2))
    n = writer.node("Tanh", writer.node("Add", writer.node("Mul", r, scaled), past))
    return [writer.node("Add", n, writer.node("Mul", z, writer.node("Sub", states[0], n)))], []


def _scaled_input(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    """Compute new values of a GRU whose reset gate also scales the input."""
    z, r = (writer.node("Sigmoid", writer.sum(parts)) for parts in writer.gates(x, states[0], 3)[:2])
    given = writer.node("Sin", writer.product(x, WIDTH, UNITS, bias=False))
    scaled = writer.node("Mul", r, writer.node("Add", writer.product(states[0], UNITS, UNITS, bias=False), given))
    n = writer.node("Tanh", writer.node("Add", writer.product(x, WIDTH, UNITS, bias=True), scaled))
    return [writer.node("Add", n, writer.node("Mul", z, writer.node("Sub", states[0], n)))], []


CHANGED = {
    _cell_rows: 2, _state_rows: 1, _other_rest: 1, _peephole: 2, _old_cell_shown: 2, _states_exchanged: 2, _one_row_for_all: 1,
    _scaled_state: 1, _learned_matrix: 1, _state_read_twice: 1, _scaled_input: 1,
}  # fmt: skip


@pytest.mark.parametrize("body", CHANGED, ids=lambda body: body.__name__)
def test_what_is_no_cell_is_no_fold(body: Callable[..., tuple[list[str], list[str]]]) -> None:
    for seed in range(5):
        writer = Writer(Random(seed), batch=1 + seed % 2)
        operators = imported(loop_model(writer, partial(body, writer), CHANGED[body]))
        assert not FOLDS & set(operators), body.__name__


@pytest.mark.parametrize("name", sorted(FOLDS))
@pytest.mark.parametrize(("axis", "is_backward"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_cells_that_scans_write_are_folds(name: str, axis: int, is_backward: int) -> None:
    writer = Writer(Random(axis + 2 * is_backward), batch=2)
    states = ["h", "c"] if name == "LSTM" else ["h"]
    new = [*writer.lstm("row", "h", "c")] if name == "LSTM" else [writer.gru("row", "h") if name == "GRU" else writer.rnn("row", "h")]
    state = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, UNITS])
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [2, WIDTH])
    made = writer.node("Identity", new[0])
    body = helper.make_graph(
        writer.nodes, "body", [*(helper.make_value_info(each, state) for each in states), row],
        [helper.make_value_info(each, state) for each in (*new, made)], [numpy_helper.from_array(w, n) for n, w in writer.weights.items()],
    )  # fmt: skip
    outputs = [*(f"{each}_end" for each in states), "rows"]
    scan = helper.make_node(
        "Scan", [*states, "x"], outputs, body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_input_directions=[is_backward],
        scan_output_axes=[axis], scan_output_directions=[is_backward],
    )  # fmt: skip
    shape = [STEPS, 2, WIDTH] if axis == 0 else [2, STEPS, WIDTH]
    inputs = [*(helper.make_value_info(each, state) for each in states), helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([scan], "g", inputs, [helper.make_empty_tensor_value_info(each) for each in outputs])
    operators = imported(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)]))
    assert operators[name] == 1


def independent(op: str, form: str) -> onnx.ModelProto:
    """Return a loop whose iterations read one row each, and nothing of earlier iterations."""
    reduced, kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [7]), helper.make_tensor_type_proto(TensorProto.FLOAT, [7, 3])
    nodes = [helper.make_node("Sub", ["s", "row"], ["d"]), helper.make_node(form, ["d", "axes"], ["p"], keepdims=0)]
    axes, minus = numpy_helper.from_array(np.array([1]), "axes"), numpy_helper.from_array(np.array(-1), "minus")
    if op == "Scan":
        inputs = [helper.make_value_info("t", kind), helper.make_tensor_value_info("row", TensorProto.FLOAT, [3])]
        nodes.append(helper.make_node("Identity", ["t"], ["u"]))
        body = helper.make_graph(nodes, "b", inputs, [helper.make_value_info("u", kind), helper.make_value_info("p", reduced)], [axes])
        loop = helper.make_node("Scan", ["s", "x"], ["e", "r"], body=body, num_scan_inputs=1)
    else:
        first = [helper.make_node("Gather", ["x", "k"], ["row"]), helper.make_node("Add", ["k", "minus"], ["m"])]
        nodes = [*first, *nodes, helper.make_node("Identity", ["c"], ["g"])]
        whole, flag = ((helper.make_tensor_type_proto(each, [])) for each in (TensorProto.INT64, TensorProto.BOOL))
        inputs = [helper.make_value_info(name, each) for name, each in (("i", whole), ("c", flag), ("k", whole))]
        outputs = [helper.make_value_info(name, each) for name, each in (("g", flag), ("m", whole), ("p", reduced))]
        body = helper.make_graph(nodes, "b", inputs, outputs, [axes, minus])
        loop = helper.make_node("Loop", ["n", "t", "z"], ["e", "r"], body=body)
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [5, 3]), ("s", [7, 3]))]
    constants = {"n": np.array(5), "t": np.array(True), "z": np.array(4)} if op == "Loop" else {}
    known = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([loop], "g", given, [helper.make_empty_tensor_value_info(name) for name in ("e", "r")], known)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("op", ["Loop", "Scan"])
@pytest.mark.parametrize("form", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd"])
def test_runs_that_read_nothing_of_each_other_are_computed_at_once(op: str, form: str) -> None:
    operators = imported(independent(op, form))
    assert not operators["Opaque"] and operators["Sub"] == operators[form] == 1


def _gate_of_one_row(writer: Writer, x: str, states: Sequence[str]) -> tuple[list[str], list[str]]:
    row = writer.node("ReduceMean", x, writer.number([0]), keepdims=1)
    wave = writer.node("Cos", writer.product(row, WIDTH, UNITS, bias=False))
    given = writer.node("Add", writer.product(row, WIDTH, UNITS, bias=True), wave)
    h = writer.node("Tanh", writer.node("Add", given, writer.product(states[0], UNITS, UNITS, bias=False)))
    return [h], [h]


def test_what_a_gate_is_given_for_all_rows_is_repeated() -> None:
    for seed in range(5):
        writer = Writer(Random(seed))
        assert imported(loop_model(writer, partial(_gate_of_one_row, writer), 1))["RNN"] == 1


def text_loop(body: str, **numbers: float) -> onnx.ModelProto:
    """Return a Loop of at most 20 iterations whose state s starts as x."""
    weights = ", ".join(f"{k % 7 / 9:.3f}" for k in range(36))
    known = "".join(f", float {name} = {{{value}}}" for name, value in numbers.items())
    model = model_of(
        f"(float[4,6] x) => (float e, float r) <int64 n = {{20}}, bool t = {{1}}, float[6,6] w = {{{weights}}}{known}> "
        "{ e, r = Loop(n, t, x) "
        f"<body = b (int64 i, bool c, float[4,6] s) => (bool d, float[4,6] o, float[4,6] p) {{ f = Cast<to = 1>(i) {body} }}> }}"
    )
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("step", [0.1, 0.2, 0.3, 0.7])
def test_a_condition_that_rounding_decides_is_not_foreseen(step: float) -> None:
    """The number of iterations is not predicted if it depends on rounding.

    For example, six times 0.1 is below 0.6 in float64, which would add an iteration.
    """
    for times in range(4, 20):
        imported(text_loop("a = Mul(f, k) d = Less(a, last) o = Identity(s) p = Mul(x, f)", k=step, last=round(step * times, 6)))


def test_a_recurrence_without_inputs_is_no_fold() -> None:
    assert not FOLDS & set(imported(text_loop("d = Identity(c) y = MatMul(s, w) o = Tanh(y) p = Neg(o)")))


def test_a_body_deeper_than_python_recurs_stays() -> None:
    chain = " ".join(f"p{k + 1} = Relu(p{k})" for k in range(1500))
    assert imported(text_loop(f"d = Identity(c) o = Identity(s) p0 = Mul(x, f) {chain} p = Neg(p1500)"))["Opaque"] == 1


def test_recurrent_weights_that_are_an_input_are_no_fold() -> None:
    body = "d = Identity(c) z = Transpose(x) q = MatMul(z, x) y = MatMul(s, q) g = Add(y, x) o = Tanh(g) p = Neg(o)"
    operators = imported(text_loop(body))
    assert not FOLDS & set(operators)


@pytest.mark.parametrize(
    ("following", "position", "computations"),
    [("Sub(one, k)", "k", 2), ("Add(k, one)", "k", 1), ("Add(k, one)", "Sub(k, four)", 1), ("Mul(k, one)", "k", 1)]
)
def test_rows_are_read_where_a_state_says(following: str, position: str, computations: int) -> None:
    """Iterations that read the row at a state's position agree with onnxruntime.

    Positions alternate, count up from the start or from the end, or stay.
    """
    place = position if "(" in position else f"Identity({position})"
    body = f"d = Identity(c) m = {following} at = {place} row = Gather(x, at) r = Neg(row)"
    model = model_of(
        "(float[4,6] x) => (int64 e, float y) "
        "<int64 n = {4}, bool t = {1}, int64 zero = {0}, int64 one = {1}, int64 four = {4}> "
        f"{{ e, y = Loop(n, t, zero) <body = b (int64 i, bool c, int64 k) => (bool d, int64 m, float[6] r) {{ {body} }}> }}"
    )
    model.graph.output[1].type.tensor_type.ClearField("shape")
    operators = imported(model)
    assert operators["Neg"] == computations and not operators["Opaque"]
