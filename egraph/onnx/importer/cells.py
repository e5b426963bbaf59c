"""Loop and Scan with the cell of an LSTM, a GRU or an RNN as body: one product of all inputs, and the fold of ONNX's operators.

Exporters without recurrent operators repeat their step. One run of the body is imported over placeholders. The form of its new state
determines the cell and the arguments of its gates. Each argument is split into ``sum_v v W_v + rest``. The W of the state are the recurrent
weights. Everything else is computed for all runs at once, as is a body that reads nothing of the previous run. Bodies of other forms are
left to be unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from egraph.onnx.importer.movement import concatenated, slice_axis
from egraph.onnx.importer.recurrence import fold
from egraph.onnx.importer.runs import OneRun, Runs, one_run, placeholder, scan_operands, scan_outputs
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node, TensorType, walk

LEAST_RUNS = 4
"""The least number of runs: shorter loops are unrolled, so that operators beside their products are fused with those around them."""
MOST_RUNS = 1 << 16
"""The number of runs up to which it is decided whether a loop continues."""
Body = Callable[[Sequence[Node]], list[Node]]
"""A function that imports one run of a body: it maps the values of its inputs to those of its outputs."""


def folded_loop(call: Call, run: Body) -> list[Node | None]:
    """Return the results of a Loop whose body is a cell; raise NotCore for others."""
    bound = MOST_RUNS if not call.has(0) else min(int(call.known(0).reshape(())), MOST_RUNS)
    if bound < LEAST_RUNS or (call.has(1) and not bool(call.known(1).reshape(()))):
        raise NotCore("few runs, or none")
    number = placeholder(call, "the number", TensorType("int64", ()))
    initial = [call[k] for k in range(2, len(call.operands))]

    def from_states(states: Sequence[Node]) -> list[Node]:
        again, *results = run([number, call.constant(True, "bool"), *states])
        return [*results[: len(states)], again, *results[len(states) :]]

    body = one_run(call, initial, from_states)
    runs = Runs(call, bound, body.placeholders | {number}, number)
    ends = runs.count_states(body)
    times = _times(call, runs.known(body.rows[0]).reshape(-1) != 0)
    if times < bound:
        runs = Runs(call, times, body.placeholders | {number}, number)
        ends = runs.count_states(body)
    finals = _finals(runs, body, ends)
    return [*finals, *(_if_used(call, len(finals) + k, partial(runs.of, row)) for k, row in enumerate(body.rows[1:]))]


def folded_scan(call: Call, run: Body) -> list[Node | None]:
    """Return the results of a Scan whose body is a cell; raise NotCore for others."""
    initial, scanned = scan_operands(call)
    times = scanned[0].steps
    if times < LEAST_RUNS:
        raise NotCore("few runs")
    parts = [placeholder(call, f"row {k}", each.row_type) for k, each in enumerate(scanned)]
    body = one_run(call, initial, lambda states: run([*states, *parts]))
    runs = Runs(call, times, body.placeholders | set(parts))
    in_order = np.arange(times)
    for part, each in zip(parts, scanned, strict=True):
        runs.lifted[part] = runs.at_positions(each.node, each.axis, in_order[::-1] if each.is_backward else in_order)
    finals = _finals(runs, body, runs.count_states(body))

    def stacked(row: Node, place: int, is_backward: bool) -> Node:
        whole = runs.at_positions(runs.of(row), 0, in_order[::-1]) if is_backward else runs.of(row)
        axis = axis_of(place, whole.type.rank)
        return call.transpose(whole, (*range(1, axis + 1), 0, *range(axis + 1, whole.type.rank)))

    each_row = enumerate(zip(body.rows, *scan_outputs(call, len(body.rows)), strict=True))
    return [*finals, *(_if_used(call, len(finals) + k, partial(stacked, *row)) for k, row in each_row)]


def _if_used(call: Call, position: int, result: Callable[[], Node]) -> Node | None:
    name = call.node.output[position]
    return result() if name and name in call.state.used else None


def _times(call: Call, goes_on: np.ndarray) -> int:
    """Return the number of runs of a Loop: up to the first run that no other follows, or its bound."""
    if goes_on.all():
        if not call.has(0) or int(call.known(0).reshape(())) != len(goes_on):
            raise NotCore("how often it runs is not known")
        return len(goes_on)
    times = int(np.argmin(goes_on)) + 1
    if times < LEAST_RUNS:
        raise NotCore("few runs")
    return times


def _finals(runs: Runs, body: OneRun, ends: Mapping[Node, int]) -> list[Node | None]:
    """Return the final states, with ``ends`` for those that count the runs. Record in ``runs`` the cell's new state in all runs."""
    call = runs.call
    cells = [k for k, state in enumerate(body.states) if state in body.placeholders and state not in ends]
    if not cells:
        return _final_states(call, body, ends)
    states, following = [body.states[k] for k in cells], [body.following[k] for k in cells]
    cell = _cell(runs, states, following)
    hidden, memory = cell.hidden, len(cells) - 1 - cell.hidden
    keeps_cell = len(cells) == 2 and call.node.output[cells[memory]] in call.state.used
    shape = states[hidden].type.sizes
    rows, units = int(np.prod(shape[:-1])), shape[-1]
    flat = [call.reshape(body.initial[cells[k]], (1, rows, units)) for k in ((hidden, memory) if len(cells) == 2 else (hidden,))]
    result = _folded(runs, cell, flat, keeps_cell=keeps_cell)
    outputs = call.reshape(slice_axis(call, result, 0, 0, runs.times), (runs.times, *shape))
    runs.lifted[following[hidden]] = outputs
    finals = _final_states(call, body, ends)
    finals[cells[hidden]] = call.reshape(slice_axis(call, outputs, 0, runs.times - 1, runs.times), shape)
    if keeps_cell:
        finals[cells[memory]] = call.reshape(slice_axis(call, result, 0, runs.times, runs.times + 1), shape)
    return finals


def _final_states(call: Call, body: OneRun, counted: Mapping[Node, int]) -> list[Node | None]:
    """Return the final values of states that count the runs or do not change; None for others."""
    finals: list[Node | None] = []
    for first, state in zip(body.initial, body.states, strict=True):
        end = call.reshape(call.constant(counted[state], state.type.dtype), state.type.sizes) if state in counted else None
        finals.append(first if state not in body.placeholders else end)
    return finals


@dataclass(frozen=True)
class Affine:
    """``sum_v v W_v + rest``: ``factors`` has the W of each v; the rest is absent or a value with the same columns."""

    factors: Mapping[Node, Node]
    rest: Node | None


@dataclass(frozen=True)
class Cell:
    """A cell by the arguments of its gates, in ONNX's order; ``hidden`` is the number of the state that the gates read."""

    name: str
    gates: tuple[Affine, ...]
    state: tuple[Node, ...]
    """The factor of the recurrent weights of each gate."""
    hidden: int = 0
    linear: int = 0
    activation: str = "tanh"
    late: Node | None = None


def _folded(runs: Runs, cell: Cell, initial: Sequence[Node], *, keeps_cell: bool) -> Node:
    call, (_, rows, units) = runs.call, initial[0].type.sizes
    recurrent, given = [], []
    for gate, state in zip(cell.gates, cell.state, strict=True):
        weight = gate.factors.get(state)
        if weight is None or weight.type.sizes != (units, units) or any(part.op == "Input" for part in walk((weight,))):
            raise NotCore("a gate without recurrent weights that are known")
        recurrent.append(weight)
        given.append(Affine({node: each for node, each in gate.factors.items() if node is not state}, gate.rest))
    weights = call.reshape(call.transpose(concatenated(call, recurrent, 1), (1, 0)), (1, len(recurrent) * units, units))
    late = call.constant(np.zeros((1, units)), "float32") if cell.late is None else call.reshape(cell.late, (1, units))
    products = _given(runs, given, rows, units)
    return fold(
        call, cell.name, products, weights, initial, late, linear=cell.linear, activation=cell.activation, keeps_cell=keeps_cell
    )


def _given(runs: Runs, gates: Sequence[Affine], rows: int, units: int) -> Node:
    """Return the part of the gates that does not depend on the state, in all runs: [times, rows, gates * units]."""
    call, shape = runs.call, (runs.times, rows, len(gates) * units)
    terms = []
    for node in dict.fromkeys(node for gate in gates for node in gate.factors):
        width = node.type.sizes[-1]
        absent = call.constant(np.zeros((width, units)), "float32")
        weights = concatenated(call, [gate.factors.get(node, absent) for gate in gates], 1)
        terms.append(call.apply("MatMul", _rows(runs, node, rows, width), weights))
    rests = [gate.rest for gate in gates]
    if any(rest is not None for rest in rests):
        is_bias = not any(rest is not None and (runs.varies(rest) or rest.type.elements != units) for rest in rests)
        nothing = call.constant(np.zeros((units,) if is_bias else (runs.times, rows, units)), "float32")
        parts = [nothing if rest is None else call.reshape(rest, (units,)) if is_bias else _rows(runs, rest, rows, units) for rest in rests]
        terms.append(concatenated(call, parts, 0 if is_bias else 2))
    total = call.chain("Add", terms) if terms else None
    if total is None or total.type.sizes != shape:
        raise NotCore("gates that no input reaches")
    return total


def _rows(runs: Runs, node: Node, rows: int, width: int) -> Node:
    """Return a value in all runs as [times, rows, width]; a value of one row is repeated."""
    shape = node.type.sizes
    if shape[-1:] != (width,) or node.type.elements not in (width, rows * width):
        raise NotCore("other rows than the state's")
    count = node.type.elements // width
    whole = runs.call.reshape(runs.of(node), (runs.times, count, width))
    return whole if count == rows else runs.call.apply("Expand", whole, shape=(runs.times, rows, width))


def _cell(runs: Runs, states: Sequence[Node], following: Sequence[Node]) -> Cell:
    """Recognise a cell by the form of its new states."""
    if len(states) == 2:
        for hidden, memory in ((0, 1), (1, 0)):
            for arguments in _lstm(states[memory], following[hidden], following[memory]):
                gates = tuple(_affine(runs, each, states[hidden]) for each in arguments)
                return Cell("LSTM", gates, (states[hidden],) * 4, hidden)
    if len(states) == 1:
        state, new = states[0], _without_reshapes(following[0])
        if new.op in ("Tanh", "Relu"):
            return Cell("RNN", (_affine(runs, new.inputs[0], state),), (state,), activation=new.op.lower())
        for gate, is_kept, fresh in _interpolated(runs.call, state, new):
            return _gru(runs, state, gate, fresh, is_kept=is_kept)
    raise NotCore("no cell that is known")


def _without_reshapes(node: Node) -> Node:
    """Return a value without reshapes that keep its last axis, and therefore the order of its rows."""
    while node.op == "Reshape" and node.type.rank > 0 and node.inputs[0].type.sizes[-1:] == node.type.sizes[-1:]:
        node = node.inputs[0]
    return node


def _operands_of(node: Node, op: str) -> Iterator[tuple[Node, Node]]:
    """Yield the operands of a commutative operator in both orders."""
    node = _without_reshapes(node)
    if node.op == op:
        first, second = (_without_reshapes(operand) for operand in node.inputs)
        yield first, second
        yield second, first


def _lstm(memory: Node, new_hidden: Node, new_memory: Node) -> Iterator[tuple[Node, Node, Node, Node]]:
    """Yield the arguments of the gates i, o, f and c: c' = s(f) c + s(i) tanh(c), h' = s(o) tanh(c')"""
    for output, shown in _operands_of(new_hidden, "Mul"):
        if output.op == "Sigmoid" and shown.op == "Tanh" and _without_reshapes(shown.inputs[0]) is _without_reshapes(new_memory):
            for kept, made in _operands_of(new_memory, "Add"):
                for forget, old in _operands_of(kept, "Mul"):
                    for enter, fresh in _operands_of(made, "Mul"):
                        if (forget.op, old, enter.op, fresh.op) == ("Sigmoid", memory, "Sigmoid", "Tanh"):
                            yield enter.inputs[0], output.inputs[0], forget.inputs[0], fresh.inputs[0]


def _interpolated(call: Call, state: Node, new: Node) -> Iterator[tuple[Node, bool, Node]]:
    """Yield the argument of the gate z of h' = z h + (1 - z) n, whether it is that of z (and not of 1 - z), and n."""
    for first, second in _operands_of(new, "Add"):
        for gate, kept in _operands_of(first, "Mul"):
            for other, fresh in _operands_of(second, "Mul"):
                if kept is state and fresh.op == "Tanh":
                    if gate.op == "Sigmoid" and _is_complement_of(call, other, gate):
                        yield gate.inputs[0], True, fresh
                    elif other.op == "Sigmoid" and _is_complement_of(call, gate, other):
                        yield other.inputs[0], False, fresh
        for gate, change in _operands_of(second, "Mul"):
            if gate.op == "Sigmoid" and change.op == "Sub":
                whole, part = (_without_reshapes(operand) for operand in change.inputs)
                if part is first and whole is state and first.op == "Tanh":
                    yield gate.inputs[0], True, first
                elif part is first is state and whole.op == "Tanh":
                    yield gate.inputs[0], False, whole


def _is_complement_of(call: Call, node: Node, gate: Node) -> bool:
    """Return whether a value is one minus a gate."""
    one = call.state.data(node.inputs[0]) if node.op == "Sub" else None
    return one is not None and bool((one == 1).all()) and _without_reshapes(node.inputs[1]) is gate


def _gru(runs: Runs, state: Node, gate: Node, fresh: Node, *, is_kept: bool) -> Cell:
    """Return a GRU's cell by the argument of its gate z and its new values n; the reset gate scales the state, or its product."""
    z = _affine(runs, gate, state)
    if not is_kept:
        z = _times_minus_one(runs.call, z)
    addends = list(_addends(fresh.inputs[0]))
    late = [part for part in addends if state in set(walk((part,)))]
    if len(late) != 1:
        raise NotCore("new values that read the state in several places")
    for reset, total in _operands_of(late[0], "Mul"):
        if reset.op == "Sigmoid" and total is not state:
            inside = _affine(runs, total, state)
            bias, units = inside.rest, state.type.sizes[-1]
            if set(inside.factors) != {state} or (bias is not None and (runs.varies(bias) or bias.type.elements != units)):
                raise NotCore("the reset gate scales more than a product and a bias")
            early = _sum(runs.call, [_affine(runs, part, state) for part in addends if part is not late[0]])
            n = Affine({**early.factors, state: inside.factors[state]}, early.rest)
            return Cell("GRU", (z, _affine(runs, reset.inputs[0], state), n), (state,) * 3, linear=1, late=bias)
    for scaled in walk((late[0],)):
        for reset, old in _operands_of(scaled, "Mul") if scaled.op == "Mul" else ():
            if reset.op == "Sigmoid" and old is state:
                n = _affine(runs, fresh.inputs[0], scaled)
                return Cell("GRU", (z, _affine(runs, reset.inputs[0], state), n), (state, state, scaled))
    raise NotCore("new values without a reset gate")


def _addends(node: Node) -> Iterator[Node]:
    node = _without_reshapes(node)
    if node.op == "Add":
        yield from (part for operand in node.inputs for part in _addends(operand))
    else:
        yield node


def _affine(runs: Runs, node: Node, state: Node) -> Affine:
    """Split a value into products by matrices that no run changes, and a rest. A rest that reads the state has no value in all runs."""
    node, call = _without_reshapes(node), runs.call
    columns = node.type.sizes[-1:]
    if node.op in ("Add", "Sub") and all(operand.type.sizes[-1:] == columns for operand in node.inputs):
        first, second = (_affine(runs, operand, state) for operand in node.inputs)
        return _sum(call, [first, second if node.op == "Add" else _times_minus_one(call, second)])
    if node.op == "MatMul" and node.inputs[1].type.rank == 2 and not runs.varies(node.inputs[1]):
        return _product(call, node.inputs[0], node.inputs[1], state)
    cut = _sliced_columns(node)
    if cut is not None:
        whole = _affine(runs, node.inputs[0], state)
        rest = None if whole.rest is None else slice_axis(call, whole.rest, whole.rest.type.rank - 1, *cut)
        return Affine({v: slice_axis(call, weight, 1, *cut) for v, weight in whole.factors.items()}, rest)
    return Affine({}, node)


def _sliced_columns(node: Node) -> tuple[int, int] | None:
    """Return the columns of a slice that takes all rows; None for other nodes."""
    if node.op != "Slice":
        return None
    starts, ends, steps = (node.integers(name) for name in ("starts", "ends", "steps"))
    sizes = node.inputs[0].type.sizes
    is_cut = (*starts[:-1], *ends[:-1]) == (*[0] * (len(sizes) - 1), *sizes[:-1]) and set(steps) <= {1}
    return (starts[-1], ends[-1]) if is_cut and sizes else None


def _product(call: Call, left: Node, weight: Node, state: Node) -> Affine:
    """Split a product: if values are concatenated, the rows of the matrix for each value are a matrix of their own."""
    left = _without_reshapes(left)
    if left.op == "Concat" and left.integer("axis") == left.type.rank - 1 and state in set(walk((left,))):
        terms, start = [], 0
        for part in left.inputs:
            width = part.type.sizes[-1]
            terms.append(_product(call, part, slice_axis(call, weight, 0, start, start + width), state))
            start += width
        return _sum(call, terms)
    return Affine({left: weight}, None)


def _sum(call: Call, terms: Sequence[Affine]) -> Affine:
    factors: dict[Node, Node] = {}
    for term in terms:
        for v, weight in term.factors.items():
            factors[v] = call.apply("Add", factors[v], weight) if v in factors else weight
    rests = [term.rest for term in terms if term.rest is not None]
    return Affine(factors, call.chain("Add", rests) if rests else None)


def _times_minus_one(call: Call, value: Affine) -> Affine:
    factors = {v: call.apply("Neg", weight) for v, weight in value.factors.items()}
    return Affine(factors, None if value.rest is None else call.apply("Neg", value.rest))
