"""One run of a loop's body over placeholders, and the values of all its runs at once: a leading axis counts the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from egraph.onnx.importer.integers import EXACT_TO
from egraph.onnx.importer.movement import expanded, slice_axes
from egraph.onnx.importer.state import Call, NotCore, axis_of, usable
from egraph.tensor import Node, TensorType, attributes, make, ops, walk
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import INTEGERS
from egraph.tensor.ops.reference import evaluate

COUNTS = (-float(1 << 20), float(1 << 20))
"""The least and the largest value of integers that count runs, well within the range that float32 holds exactly."""
REDUCTIONS = ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean")


def placeholder(call: Call, role: str, type: TensorType) -> Node:
    """Return a stand-in for a value that differs from run to run; its name differs from those of all inputs."""
    node = make("Input", (), attributes(name=f"{call.label}: {role} of one run"), type)
    if type.dtype in INTEGERS and type.elements == 1:
        call.state.ranges[node] = COUNTS
    return node


@dataclass(frozen=True)
class Scanned:
    """A sequence of which each run of a Scan receives one row."""

    node: Node
    axis: int
    is_backward: bool

    @property
    def steps(self) -> int:
        return self.node.type.sizes[self.axis]

    @property
    def row_type(self) -> TensorType:
        sizes = self.node.type.sizes
        return TensorType(self.node.type.dtype, (*sizes[: self.axis], *sizes[self.axis + 1 :]))


def scan_operands(call: Call) -> tuple[list[Node], list[Scanned]]:
    """Return a Scan's initial states, and its sequences."""
    count = int(call.required("num_scan_inputs"))
    nodes = [call[k] for k in range(len(call.operands))]
    states, sequences = nodes[: len(nodes) - count], nodes[len(nodes) - count :]
    if call.opset < 9 or not all(usable(node.type) for node in sequences):
        raise NotCore("a batch, or sizes that are not known")
    axes, directions = (call.attribute(f"scan_input_{name}", [0] * count) for name in ("axes", "directions"))
    return states, [
        Scanned(node, axis_of(int(axis), node.type.rank), bool(direction))
        for node, axis, direction in zip(sequences, axes, directions, strict=True)
    ]


def scan_outputs(call: Call, count: int) -> tuple[list[int], list[bool]]:
    """Return for each of a Scan's stacked results the axis that counts the runs, and whether the last run comes first."""
    axes, directions = (call.attribute(f"scan_output_{name}", [0] * count) for name in ("axes", "directions"))
    return [int(axis) for axis in axes], [bool(direction) for direction in directions]


@dataclass(frozen=True)
class OneRun:
    """The results of a body in one run, from the states of the previous run."""

    initial: tuple[Node, ...]
    states: tuple[Node, ...]
    """Placeholders, or initial values for states that no run changes."""
    following: tuple[Node, ...]
    """The states after the run."""
    rows: tuple[Node, ...]
    """The other results of a run: whether another run follows, and the rows that the loop stacks."""

    @property
    def placeholders(self) -> frozenset[Node]:
        return frozenset(state for state, first in zip(self.states, self.initial, strict=True) if state is not first)


def one_run(call: Call, initial: Sequence[Node], run: Callable[[Sequence[Node]], Sequence[Node]]) -> OneRun:
    """Import a body: ``run`` maps the states to the following states and the other results of the body."""
    stand_ins = [placeholder(call, f"state {k}", node.type) for k, node in enumerate(initial)]
    results = run(stand_ins)
    states = [first if results[k] is stand_ins[k] else stand_ins[k] for k, first in enumerate(initial)]
    if states != stand_ins:
        results = run(states)
    count = len(initial)
    if any(after.type != before.type or not usable(after.type) for after, before in zip(results[:count], states, strict=True)):
        raise NotCore("a state changes its size")
    return OneRun(tuple(initial), tuple(states), tuple(results[:count]), tuple(results[count:]))


@dataclass
class Runs:
    """Values in all runs: ``[times, *shape]`` for a value of shape ``shape`` in one run."""

    call: Call
    times: int
    placeholders: frozenset[Node]
    """Stand-ins for values that differ from run to run."""
    number: Node | None = None
    """The stand-in for the number of the run."""
    lifted: dict[Node, Node] = field(default_factory=dict)
    """The values in all runs of placeholders, if they are known, and of nodes computed from them."""
    varying: dict[Node, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.number is not None:
            self.count(self.number, 0, 1)

    def count(self, node: Node, first: int, step: int) -> np.ndarray:
        """Set a placeholder to ``first`` in the first run and increase it by ``step`` per run; return its values after each run."""
        values = first + step * np.arange(self.times + 1, dtype=np.int64)
        if values.min() < COUNTS[0] or values.max() > COUNTS[1]:
            raise NotCore("a number that grows large")
        self.lifted[node] = self.call.constant(values[:-1].reshape(self.times, *[1] * node.type.rank), node.type.dtype)
        return values[1:]

    def count_states(self, run: OneRun) -> dict[Node, int]:
        """Set the whole numbers among the states, if each run adds the same to them; return their final values."""
        started = {
            state: (int(known.reshape(())), after)
            for first, state, after in zip(run.initial, run.states, run.following, strict=True)
            if state in self.call.state.ranges and state in self.placeholders and (known := self.call.state.data(first)) is not None
        }
        first_run = Runs(self.call, 1, self.placeholders, self.number)
        for state, (start, _) in started.items():
            first_run.count(state, start, 0)
        steps = {state: int(first_run.known(after).reshape(())) - start for state, (start, after) in started.items()}
        counted = {state: self.count(state, start, steps[state]) for state, (start, _) in started.items()}
        if any(not np.array_equal(self.known(after).reshape(-1), counted[state]) for state, (_, after) in started.items()):
            raise NotCore("numbers that do not count the runs")
        return {state: int(values[-1]) for state, values in counted.items()}

    def varies(self, node: Node) -> bool:
        """Return whether a value may differ from run to run."""
        if node not in self.varying:
            for part in walk((node,)):
                self.varying[part] = part in self.placeholders or any(self.varying[operand] for operand in part.inputs)
        return self.varying[node]

    def known(self, node: Node) -> np.ndarray:
        """Return whole numbers or conditions that follow from constants, in all runs.

        Every intermediate value must be whole and exact in float32. They are computed here in float64, which rounds other values
        differently.
        """
        parts = list(walk((self.of(node),)))
        leaves = {part: self.call.state.data(part) for part in parts if not part.inputs}
        constants = {part: data for part, data in leaves.items() if data is not None}
        if len(constants) != len(leaves):
            raise NotCore("a number is not known at compile time")
        values = evaluate(parts, constants)
        for part, value in zip(parts, values, strict=True):
            if np.any(value != np.floor(value)) or (part.inputs and np.abs(value).max() > EXACT_TO):
                raise NotCore("a number may be rounded")
        return values[-1]

    def of(self, node: Node) -> Node:
        """Return the value of a node of the body in all runs."""
        if node not in self.lifted:
            if not usable(node.type):
                raise NotCore("a size is not known")
            self.lifted[node] = self._lifted(node) if self.varies(node) else self._repeated(node)
        return self.lifted[node]

    def _repeated(self, node: Node) -> Node:
        shape = node.type.sizes
        return expanded(self.call, self.call.reshape(node, (1, *shape)), (self.times, *shape))

    def _lifted(self, node: Node) -> Node:
        shape = node.type.sizes
        if node.op in OPS and OPS[node.op].category == "elementwise":
            return self._applied(node, [self._aligned(operand, len(shape)) for operand in node.inputs])
        if node.op in REDUCTIONS:
            axes = tuple(axis + 1 for axis in node.integers("axes"))
            return self.call.apply(node.op, self.of(node.inputs[0]), axes=axes)
        if node.op == "MatMul" and node.inputs[0].type.rank > 0 and node.inputs[1].type.rank == 2 and not self.varies(node.inputs[1]):
            return self._applied(node, [self.of(node.inputs[0]), node.inputs[1]])
        if node.op == "Reshape":
            return self.call.reshape(self.of(node.inputs[0]), (self.times, *shape))
        if node.op == "Transpose":
            return self.call.transpose(self.of(node.inputs[0]), (0, *(axis + 1 for axis in node.integers("perm"))))
        if node.op == "Expand":
            return expanded(self.call, self._aligned(node.inputs[0], len(shape)), (self.times, *shape))
        if node.op == "Concat":
            return self.call.apply("Concat", *map(self.of, node.inputs), axis=node.integer("axis") + 1)
        if node.op == "Slice":
            starts, ends, steps = (node.integers(name) for name in ("starts", "ends", "steps"))
            whole = self.of(node.inputs[0])
            return self.call.apply("Slice", whole, starts=(0, *starts), ends=(self.times, *ends), steps=(1, *steps))
        if node.op == "Gather" and not self.varies(node.inputs[0]) and node.inputs[1].type.elements == 1:
            rows = self.at_positions(node.inputs[0], node.integer("axis"), self.known(node.inputs[1]))
            return self.call.reshape(rows, (self.times, *shape))
        raise NotCore("it reads the run before" if node in self.placeholders else f"{node.op} of what differs from run to run")

    def _applied(self, node: Node, operands: Sequence[Node]) -> Node:
        return self.call.state.came_from(ops.apply(node.op, *operands, attributes=node.attributes), self.call.label)

    def _aligned(self, operand: Node, rank: int) -> Node:
        """Return an operand that broadcasts against results whose rank in one run is ``rank``."""
        if not self.varies(operand):
            return operand
        shape = operand.type.sizes
        return self.call.reshape(self.of(operand), (self.times, *[1] * (rank - len(shape)), *shape))

    def at_positions(self, node: Node, axis: int, positions: np.ndarray) -> Node:
        """Return ``node[..., positions[t], ...]`` for each run t, which is the first axis."""
        size, at = node.type.sizes[axis], positions.reshape(-1).astype(np.int64)
        if at.min() < -size or at.max() >= size:
            raise NotCore("an index is out of range")
        at = np.where(at < 0, at + size, at)
        order = axis, *(other for other in range(node.type.rank) if other != axis)
        first = self.call.transpose(node, order)
        for step in (1, -1):
            if np.array_equal(at, at[0] + step * np.arange(len(at))):
                cut = int(at[0]), int(at[-1]) + step, step
                return slice_axes(self.call, first, {0: cut if cut[1] >= 0 else (cut[0], -size - 1, step)})
        return self.call.apply("Gather", first, self.call.constant(at, "int64"), axis=0)
