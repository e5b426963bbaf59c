"""Search equal blocks of a model once; for example, the layers of a transformer differ only in their weights.

A *run* is a stretch of the model's operators, in their order, that repeats: each *instance* applies the same operators with the same
attributes and types to its operands. The *outline* is the model with one block for each run: values that the block reads from outside are
inputs, values of it that others read are outputs. Rules, candidates, measurements and extraction see the outline, and the resulting program
is written out for every instance. All of this is substitution: an equation of the block holds for all inputs and weights.

Therefore no equation of the block may depend on the *values* of its weights. A constant that differs between instances is a float tensor of
several elements, and is represented in the outline by random numbers. Two expressions over it that have the same value there are equal as
expressions (Schwartz, Zippel), so the constant analyses join only what is equal in every instance. Blocks that differ in a single number,
or in integers, are not equal. Bytes that several numbers are packed into are an exception, because they are only unpacked.

Nothing is fused across the border of a block, so the border is drawn where the fewest values cross it. Values that kernels keep in several
layouts, such as images, do not cross, because the border would fix the layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from egraph.optimize.outline import Instance, Outline, Run
from egraph.tensor import LEAVES, Graph, Node, attributes, make, walk
from egraph.tensor.ops import OPS
from runtime.feeds import random_array

LARGEST_RANK = 3
"""Largest rank of a value that crosses a border between blocks. Images have more axes, and kernels keep these in several orders."""
LEAST_BYTES = 16
"""Fewest bytes of packed numbers that may differ between equal blocks: this many random bytes are not all the same by chance."""
LEAST_OPERATORS = 8
"""Fewest operators of a block: shorter stretches repeat by chance."""


def outlined(model: Graph, least_share: float) -> Outline:
    """Return the outline of a model if its equal blocks save at least this share of its operators, else the model as its own outline."""
    constants = _constants(model)
    operators = [node for node in walk(model.roots) if node.op not in LEAVES and node not in constants]
    runs = tuple(_runs(model, operators, constants))
    if not runs or sum(run.saved for run in runs) < least_share * len(operators):
        return Outline(model, model)
    return _outline(model, runs, constants)


def _constants(model: Graph) -> frozenset[Node]:
    """Return the nodes known at compile time, without unpacked bytes: kernels read the bytes and unpack them within the block."""
    constants: set[Node] = set()
    for node in walk(model.roots):
        if node.op == "Constant" or (node.inputs and constants.issuperset(node.inputs) and not _unpacks(node)):
            constants.add(node)
    return frozenset(constants)


def _runs(model: Graph, operators: Sequence[Node], constants: frozenset[Node]) -> Iterator[Run]:
    """Yield the runs of a stretch of operators in order: those before the one that saves most, that one, and those after it."""
    wiring, border = _Wiring.of(operators, constants), _Border.of(model, operators)
    for period, first, last in _periods(_labels(operators)):
        run = _best_run(wiring, border, period, first, last)
        if run is not None:
            start = operators.index(run.instances[0].operators[0])
            end = operators.index(run.instances[-1].operators[-1]) + 1
            yield from _runs(model, operators[:start], constants)
            yield run
            yield from _runs(model, operators[end:], constants)
            return


def _labels(operators: Sequence[Node]) -> np.ndarray:
    """Return a number for each operator, which is equal for those that may be at the same position of two blocks."""
    numbers: dict[tuple[object, ...], int] = {}
    keys = ((node.op, repr(node.attributes), node.type, tuple(operand.type for operand in node.inputs)) for node in operators)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


MOST_PERIODS = 4
"""Number of periods that are tried, those that save most first: blocks with equal operators may still read different values."""


def _periods(labels: np.ndarray) -> list[tuple[int, int, int]]:
    """Return periods, each with the first and last operator of its longest stretch."""
    stretches = []
    for period in range(LEAST_OPERATORS, len(labels) // 2 + 1):
        same = np.concatenate([[False], labels[:-period] == labels[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        starts, ends = edges[::2], edges[1::2]
        if len(starts):
            longest = int(np.argmax(ends - starts))
            start, end = int(starts[longest]), int(ends[longest])
            blocks = (end - start) // period + 1
            if blocks > 1:
                stretches.append(((blocks - 1) * period, -period, start, end + period))
    return [(-period, start, end) for _, period, start, end in sorted(stretches, reverse=True)[:MOST_PERIODS]]


def _best_run(wiring: _Wiring, border: _Border, period: int, first: int, last: int) -> Run | None:
    """Return the run of equal blocks that saves most and, among equals, has the fewest values crossing its borders.

    Operators from ``first`` to ``last`` are equal at a distance of ``period``.
    """
    best: tuple[tuple[int, int], Run] | None = None
    for start in range(first, min(first + period, last - 2 * period + 1)):
        count = (last - start) // period
        outputs = border.outputs(start, period, count)
        if outputs is None or (best is not None and ((count - 1) * period, -len(outputs)) <= best[0]):
            continue
        run = Run(wiring.equal_blocks(start, period, count), outputs)
        rank = run.saved, -len(outputs) - len(run.instances[0].operands)
        if len(run.instances) > 1 and (best is None or rank > best[0]):
            best = rank, run
    return best[1] if best else None


@dataclass(frozen=True)
class _Wiring:
    """The operands of all operators in order, as arrays; an operator's operands begin at its ``first_operand``."""

    operators: Sequence[Node]
    operands: Sequence[Node]
    first_operand: np.ndarray
    numbers: np.ndarray
    """A number for each operand, equal for equal nodes."""
    places: np.ndarray
    """The operand's position among the operators, or -1 if it is none."""
    is_constant: np.ndarray

    @staticmethod
    def of(operators: Sequence[Node], constants: frozenset[Node]) -> _Wiring:
        place = {node: at for at, node in enumerate(operators)}
        operands = [operand for node in operators for operand in node.inputs]
        numbers: dict[Node, int] = {}
        return _Wiring(
            operators,
            operands,
            np.cumsum([0, *(len(node.inputs) for node in operators)]),
            np.array([numbers.setdefault(operand, len(numbers)) for operand in operands], np.int64),
            np.array([place.get(operand, -1) for operand in operands], np.int64),
            np.array([operand in constants for operand in operands], bool),
        )

    def equal_blocks(self, start: int, period: int, count: int) -> tuple[Instance, ...]:
        """Return the blocks, from the first on, that are instances of one block, with other operands and weights."""
        first_form = self._form(start, period)
        first = self._instance(start, period)
        instances = [first]
        for at in range(start + period, start + count * period, period):
            if not np.array_equal(first_form, self._form(at, period)):
                break
            other = self._instance(at, period)
            pairs = zip(first.constants, other.constants, strict=True)
            if not all(left == right or _may_vary(left, first.operators) for left, right in pairs):
                break
            instances.append(other)
        return tuple(instances)

    def _slots(self, start: int, period: int) -> slice:
        """Return the slice of a block's operands."""
        return slice(int(self.first_operand[start]), int(self.first_operand[start + period]))

    def _form(self, start: int, period: int) -> np.ndarray:
        """Return each operand's position in the block or, if it is from outside, the place where the block first reads it."""
        slots = self._slots(start, period)
        places, numbers = self.places[slots] - start, self.numbers[slots]
        _, first_read, which = np.unique(numbers, return_index=True, return_inverse=True)
        return np.stack([np.where(places >= 0, places, -1 - first_read[which]), (places < 0) & self.is_constant[slots]])

    def _instance(self, start: int, period: int) -> Instance:
        slots = self._slots(start, period)
        operands, places = self.operands[slots], self.places[slots] - start
        outside = dict.fromkeys((operands[at], bool(self.is_constant[slots][at])) for at in np.flatnonzero(places < 0).tolist())
        return Instance(
            tuple(self.operators[start : start + period]),
            tuple(node for node, is_constant in outside if not is_constant),
            tuple(node for node, is_constant in outside if is_constant),
        )


@dataclass(frozen=True)
class _Border:
    """The last reader of each operator's value, and the values that may not cross a border between blocks.

    All are arrays over the operators in their order, in which readers come after their operands.
    """

    last_reader: np.ndarray
    is_root: np.ndarray
    has_layouts: np.ndarray

    @staticmethod
    def of(model: Graph, operators: Sequence[Node]) -> _Border:
        place = {node: at for at, node in enumerate(operators)}
        last_reader = np.zeros(len(operators), np.int64)
        for reader in walk(model.roots):
            for operand in reader.inputs:
                if operand in place:
                    last_reader[place[operand]] = max(last_reader[place[operand]], place.get(reader, len(operators)))
        roots = set(model.roots)
        has_layouts = [not node.type.is_static or node.type.rank > LARGEST_RANK for node in operators]
        return _Border(last_reader, np.array([node in roots for node in operators], bool), np.array(has_layouts, bool))

    def outputs(self, start: int, period: int, count: int) -> tuple[int, ...] | None:
        """Return the positions whose values are read outside of a block, or None if one of them is kept in several layouts."""
        inside = slice(start, start + count * period)
        ends = start + period * (1 + np.arange(count * period) // period)
        is_read = self.last_reader[inside] >= ends
        if (is_read & self.has_layouts[inside]).any():
            return None
        return tuple(np.flatnonzero((is_read | self.is_root[inside]).reshape(count, period).any(axis=0)).tolist())


def _may_vary(constant: Node, operators: Sequence[Node]) -> bool:
    if not constant.type.is_static or constant.type.dtype not in ("float32", "float64", "uint8"):
        return False
    if constant.type.dtype == "uint8":
        readers = (node for node in operators if constant in node.inputs)
        return constant.type.elements >= LEAST_BYTES and all(_unpacks(node) for node in readers)
    return constant.type.elements > 1


def _unpacks(node: Node) -> bool:
    return node.op in OPS and OPS[node.op].category == "unpacking"


def _outline(model: Graph, runs: tuple[Run, ...], constants: frozenset[Node]) -> Outline:
    tensors = dict(model.tensors)
    nodes: dict[Node, Node] = {}
    parameters: dict[Node, tuple[int, bool, int]] = {}
    outputs: dict[Node, str] = {}
    for number, run in enumerate(runs):
        first = run.instances[0]
        new = {node: _input(f"block {number} operand {at}", node) for at, node in enumerate(first.operands)}
        parameters |= {leaf: (number, False, at) for at, leaf in enumerate(new.values())}
        for at, constant in enumerate(first.constants):
            new[constant] = constant
            if any(instance.constants[at] != constant for instance in run.instances):
                new[constant] = unknown = _unknown(constant, number, at)
                tensors[unknown.string("digest")] = _random(unknown)
                parameters[unknown] = number, True, at
        for node in first.operators:
            new[node] = make(node.op, [new[operand] for operand in node.inputs], node.attributes, node.type)
        nodes |= {node: new[node] for node in first.operators}
        outputs |= {new[first.operators[at]]: f"block {number} output {at}" for at in run.outputs}
    blocks = {node for run in runs for instance in run.instances for node in instance.operators}
    read_by_blocks = {operand for run in runs for instance in run.instances for operand in instance.operands}
    results: dict[Node, Node] = {}
    rest: dict[Node, Node] = {}
    for node in walk(model.roots):
        if node in blocks:
            rest[node] = _input(f"value {len(rest)}", node)
            results[rest[node]] = node
            continue
        rest[node] = make(node.op, [rest[operand] for operand in node.inputs], node.attributes, node.type)
        if node.op not in LEAVES and node not in constants:
            nodes[node] = rest[node]
            if node in read_by_blocks or node in model.roots:
                outputs[rest[node]] = f"value {len(rest)}"
    reached = {node for node in walk(outputs) if node.op == "Input"}
    graph = replace(
        model,
        inputs=(*model.inputs, *(leaf for leaf in (*parameters, *results) if leaf in reached)),
        outputs=tuple((name, node) for node, name in outputs.items()),
        tensors=tensors,
        names={nodes[node]: name for node, name in model.names.items() if node in nodes},
        origins={nodes[node]: names for node, names in model.origins.items() if node in nodes},
    )
    return Outline(model, graph, runs, nodes, parameters, results)


def _input(name: str, node: Node) -> Node:
    return make("Input", (), attributes(name=f"einsat {name}"), node.type)


def _unknown(constant: Node, run: int, at: int) -> Node:
    digest = hashlib.sha256(f"block {run} weight {at} {constant.type}".encode()).hexdigest()[:32]
    return make("Constant", (), attributes(digest=digest), constant.type)


def _random(constant: Node) -> np.ndarray:
    seed = int(constant.string("digest")[:16], 16)
    return random_array(constant.type.dtype, constant.type.sizes, np.random.default_rng(seed), bound=256)
